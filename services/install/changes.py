"""What an installation would change: files by content and mode, against what is there."""

import difflib
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.install.layout import CONFIG, UNIT, Layout
from services.install.wanted import File

#: What is never shown: passwords, in keys of their own or in an address.
_SECRET = re.compile(r'(?<=password = ").*(?=")|(?<=://)[^/@"\s]+(?=@)')
_SHOWN = {CONFIG, UNIT}


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one file."""

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
    if there == file.content and mode == file.mode:
        return Change(file, "same")
    lines = _lines(file.path in _SHOWN, there, file.content)
    modes = [] if mode == file.mode else [f"mode {mode:04o} becomes {file.mode:04o}"]
    return Change(file, "changed", [*modes, *lines])


def _lines(shown: bool, there: bytes, wanted: bytes) -> list[str]:
    if not shown:
        return []
    old, new = (_SECRET.sub("…", text.decode(errors="replace")) for text in (there, wanted))
    if not there:
        return [f"+{line}" for line in new.splitlines()]
    found = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line for line in found if not line.startswith(("---", "+++", "@@"))]
