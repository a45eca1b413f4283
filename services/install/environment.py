"""The environment of the service: that of its own file, without the operator's shell.

Otherwise a shell in which TIDEGATE_MQTT_URL is set would make us check another broker.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from services.install.layout import ENVIRONMENT, Layout

_is_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch
#: What systemd.exec(5) takes for one entry: a value goes on in the next line within quotes, and
#: after a backslash, and blanks may stand around the name.
_entries = re.compile(
    r"""(?sx)
    [#;] (?: \\. | [^\n\\] )*
    | (?P<name> [ \t]* [^=\s] [^=\n]* ) =
      (?P<quoted> (?: [ \t]* (?: " (?: \\. | [^"\\] )* (?: " | \Z ) | ' [^']* (?: ' | \Z ) ) )* )
      (?P<plain> (?: \\. | [^\n\\] )* )
    | [^\n]+
    """
).finditer
_quoted = re.compile(
    r"""(?sx) " (?P<double> (?: \\. | [^"\\] )* ) "? | ' (?P<single> [^']* ) '?"""
).finditer


def service_environment(file: Path, ours: Mapping[str, str]) -> dict[str, str]:
    """Give the environment that the service has; without its file, if we may not read that."""
    try:
        content = file.read_bytes()
    except OSError:
        content = b""
    found = {name: value for name, value in ours.items() if not name.startswith("TIDEGATE_")}
    # Without value are those that systemd leaves out, too.
    return found | {name: value for _, name, value in _read(content) if value is not None}


def wrong_lines(content: bytes) -> list[int]:
    """Give the numbers of the lines from which systemd makes no variable, though they say one."""
    return [number for number, _, value in _read(content) if value is None]


def _read(content: bytes) -> Iterator[tuple[int, str, str | None]]:
    """Give each entry that is no comment: its line, its name and its value; None: it has none."""
    text = content.decode(errors="surrogateescape").replace("\r\n", "\n")
    for entry in _entries(text):
        said = entry[0].strip()
        if not said or said.startswith(("#", ";")):
            continue
        number = text.count("\n", 0, entry.start()) + 1
        name = (entry["name"] or "").strip()
        # One surrogate is a byte that is no UTF-8: systemd then drops all of the file.
        good = _is_name(name) is not None and not re.search("[\0\ud800-\udfff]", said)
        yield number, name, _value(entry["quoted"], entry["plain"]) if good else None


def _value(quoted: str, plain: str) -> str:
    parts = [
        re.sub(r"(?s)\\([\"\\`$\n])", _escaped, one["double"] or "") + (one["single"] or "")
        for one in _quoted(quoted)
    ]
    return "".join(parts) + re.sub(r"(?s)\\(.?)", _escaped, plain.strip())


def _escaped(found: re.Match[str]) -> str:
    return "" if found[1] == "\n" else found[1]


@contextmanager
def as_service(layout: Layout, given: Path | None = None) -> Iterator[None]:
    """Have the service's environment for a while; `given` is to be its file, if it is named."""
    before = dict(os.environ)
    try:
        _have(given or layout.here(ENVIRONMENT))
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def enter(layout: Layout) -> None:
    """Have the service's environment from here on."""
    _have(layout.here(ENVIRONMENT))


def _have(file: Path) -> None:
    wanted = service_environment(file, os.environ)
    os.environ.clear()
    os.environ.update(wanted)
