"""Reads files that a job may have written or replaced, so that none can do harm.

Only a regular file is read (no link, pipe or device), of bounded size, and a record only if it has
the shape that we write. Anything else counts as missing.

Imports little, because the supervisor does.
"""

import json
import os
import stat
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

#: An order holds a program with its environment; a larger record is not ours.
RECORD_MAX_BYTES = 4 * 2**20

#: A type, some types, a list of one element (all are like it), or the keys that must be there.
Shape = type | tuple[type, ...] | list[Any] | dict[str, Any]


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; never blocks, as opening a pipe would.

    Raises:
        OSError: there is none, or it is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path}: is no plain file")
    return os.fdopen(descriptor, "rb")


def read_record(path: Path, shape: Shape) -> tuple[dict[str, Any], int] | None:
    """Give what a record of this shape says, and its owner's user id; None if there is none."""
    try:
        with open_regular_file(path) as file:
            about = os.fstat(file.fileno())
            if about.st_size > RECORD_MAX_BYTES:
                return None
            content = json.loads(file.read(RECORD_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return (content, about.st_uid) if isinstance(content, dict) and fits(content, shape) else None


def read_tail(path: Path, size: int) -> bytes:
    """Give the end of a file; empty if there is none."""
    try:
        with open_regular_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size)
    except OSError:
        return b""


def fits(value: Any, shape: Shape) -> bool:
    """Whether a JSON value has this shape; true and false are no numbers."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            key in value and fits(value[key], inner) for key, inner in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if shape is float:
        return type(value) in (int, float)
    return type(value) is shape


NULL: type = NoneType
