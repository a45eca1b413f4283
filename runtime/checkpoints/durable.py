"""Writing to a local disk so that it outlives a loss of power, and is there whole or not at all."""

import errno
import os
import threading
from pathlib import Path

#: The suffix of a file until it is whole.
UNFINISHED = ".unfinished-"


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


def write_file(path: Path, data: bytes) -> None:
    """Write a file, durably; readers see the old one or the whole new one."""
    # Two writers of one file must not share its temporary name.
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        with unfinished.open("wb", buffering=0) as stream:
            view = memoryview(data)
            while view:
                view = view[stream.write(view) :]
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
