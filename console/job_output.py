"""What a job wrote, made fit for a terminal: a program may write what takes a terminal over."""

import codecs
import re
import sys

#: ECMA-48: control sequences (CSI), strings (OSC, DCS, SOS, PM, APC) to their end, and the others.
#: A string ends where another begins: else each of many without an end is searched to the end.
_sequence = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[]P^_X]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"
)
_open = re.compile(
    r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*"
    r"|(?:\x1b[]P^_X]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*\x1b?"
    r"|\x1b[ -/]*|\r)\Z"
)
#: What is left of them, and whatever else a terminal does not show but obeys: the last have what
#: follows shown in another order than it is written in.
control = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: A sequence that does not end within so many characters is none.
_OPEN_MAX = 4096


class Plain:
    """Takes out of a stream of text what controls a terminal."""

    def __init__(self) -> None:
        """Begin."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Give what can be shown by now; a sequence that is not whole yet waits for its rest."""
        text = self._rest + self._decoder.decode(data, final)
        text = _sequence.sub("", text).replace("\r\n", "\n")
        found = None if final else _open.search(text, max(0, len(text) - _OPEN_MAX))
        self._rest = "" if found is None else found[0]
        text = text if found is None else text[: found.start()]
        return control.sub("", text.replace("\r", "\n"))


class Output:
    """Standard output for what a job wrote."""

    def __init__(self, *, raw: bool) -> None:
        """Write as it is, or for a terminal without what controls it, unless `raw`."""
        self._plain = Plain() if sys.stdout.isatty() and not raw else None

    def write(self, data: bytes, *, final: bool = False) -> None:
        """Write, at once."""
        if self._plain is not None:
            sys.stdout.write(self._plain.feed(data, final=final))
        elif (buffer := getattr(sys.stdout, "buffer", None)) is not None:
            sys.stdout.flush()
            buffer.write(data)
        else:
            sys.stdout.write(data.decode(errors="replace"))
        sys.stdout.flush()
