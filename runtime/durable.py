"""Writing files that are there whole or not at all, and that outlive a loss of power where needed.

Imports little, because the supervisor does.
"""

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync folders.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and what it needs above it, durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def write_file(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o666,
    synced: bool = True,
    prepare: Callable[[int], None] | None = None,
) -> None:
    """Replace a file: readers see the old one or the whole new one, also after a crash.

    Args:
        path: The file.
        data: What it shall hold.
        mode: Its permissions from the start, less the umask.
        synced: Whether it outlives a loss of power, which takes a while.
        prepare: Is given the open file before it gets its name, to change its owner or mode.

    Raises:
        OSError: the disk does not take it; the old file is as it was.
    """
    # Two writers of one file must not share a draft.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.draft")
    draft.unlink(missing_ok=True)  # of a writer that was killed; or a link, which is not followed
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if prepare is not None:
                prepare(descriptor)
            if synced:
                os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if synced:
        sync_folder(path.parent)  # or the name might still refer to the old file


def write_json(path: Path, content: object, *, mode: int = 0o600, synced: bool = True) -> None:
    """Replace a file by JSON, as `write_file` does; only its owner reads it unless `mode` says so.

    Raises:
        OSError: the disk does not take it; the old file is as it was.
    """
    write_file(path, json.dumps(content).encode(), mode=mode, synced=synced)
