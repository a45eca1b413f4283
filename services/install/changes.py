"""What an installation would change: compares content and mode of files with the present ones."""

import difflib
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.install.layout import CONFIG, GANGS_UNIT, UNIT, Layout
from services.install.wanted import File

#: The value of a key that holds a secret, to the end of its line or multi-line string.
_SECRET = re.compile(
    r"""(?ix)
    ( [\w.-]* (?: password | passwd | token | secret ) (?![\w-]*_file\b) [\w-]* ["']? \s* = \s* )
    (?: \"{3} (?s:.*?) (?: \"{3} | \Z ) | '{3} (?s:.*?) (?: '{3} | \Z ) | .* )
    """
)
#: In a URL: user and password, and the query.
_LOGIN = re.compile(r"""(?<=://)[^\s"']*(?=@)|(?<=\?)[^\s"']+""")
_SHOWN = {CONFIG, UNIT, GANGS_UNIT}


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one file."""

    file: File
    kind: Literal["new", "changed", "same"]
    #: The lines that go and come, of texts that may be shown.
    difference: Sequence[str] = ()


def changes(files: Sequence[File], layout: Layout) -> list[Change]:
    """Compare files with what is there."""
    return [_change(file, layout) for file in files]


def _change(file: File, layout: Layout) -> Change:
    place = layout.here(file.path)
    try:
        there, mode = place.read_bytes(), stat.S_IMODE(place.stat().st_mode)
    except FileNotFoundError:
        return Change(file, "new", _lines(file.path in _SHOWN, b"", file.content))
    # What a link leads to is the operator's, and so is its mode.
    if there == file.content and (mode == file.mode or place.is_symlink()):
        return Change(file, "same")
    lines = _lines(file.path in _SHOWN, there, file.content)
    modes = [] if mode == file.mode else [f"mode {mode:04o} becomes {file.mode:04o}"]
    return Change(file, "changed", [*modes, *lines])


def _lines(shown: bool, there: bytes, wanted: bytes) -> list[str]:
    if not shown:
        return []
    old, new = (masked(text.decode(errors="replace")) for text in (there, wanted))
    if not there:
        return [f"+{line}" for line in new.splitlines()]
    found = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line for line in found if not line.startswith(("---", "+++", "@@"))]


def masked(text: str) -> str:
    """Give a configuration without its passwords, tokens and other secrets, to be shown."""
    return _LOGIN.sub("…", _SECRET.sub(r"\1…", text))
