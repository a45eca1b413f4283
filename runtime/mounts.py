"""What is mounted on a machine, as its kernel lists it."""

import os
import re
from pathlib import Path
from typing import NamedTuple

#: What this process sees.
MOUNTS = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """A file system, or a part of one, that is mounted."""

    root: str  #: Which part.
    point: str  #: Where.
    kind: str


def mounted(listed: Path = MOUNTS) -> list[Mount]:
    """Give all mounts in the kernel's order; a name may be no UTF-8.

    Raises:
        OSError: the list cannot be read.
    """
    found = []
    for line in os.fsdecode(listed.read_bytes()).split("\n"):
        before, _, after = line.partition(" - ")
        if after:
            root, point = map(_name, before.split(" ")[3:5])
            found.append(Mount(root, point, after.split(" ")[0]))
    return found


def _name(written: str) -> str:
    """Read a name, in which blanks, tabs, line feeds and backslashes are octal (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda it: chr(int(it[1], 8)), written)
