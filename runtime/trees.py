"""Folders that a job filled: as deep, as wide and as odd as it likes, while it may change them.

Python's own walks and removals call themselves for each level, and end with a RecursionError; a
removal holds each level open, too. None of these does.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def entries_below(folder: Path, most: int | None = None) -> Iterator["os.DirEntry[str]"]:
    """Give all that is in a folder, each folder before what is in it; no link is followed.

    Raises:
        OSError: a folder cannot be listed, or there is more than `most`.
    """
    waiting, found = [str(folder)], 0
    while waiting:
        with os.scandir(waiting.pop()) as listing:
            for entry in listing:
                found += 1
                if most is not None and found > most:
                    raise OSError(f"{folder}: holds more than {most} files and folders")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                yield entry


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, or a file; what cannot be removed stays.

    Folders within are moved to the top and emptied there, so that no path grows too long; two are
    open at a time. No link is followed.
    """
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        top = _opened(str(path), None)
        try:
            _empty(top)
        finally:
            os.close(top)
        path.rmdir()


def _empty(top: int) -> None:
    # Named after nothing that a job could know, so that nothing is in the way.
    prefix, moved, emptied = secrets.token_hex(8), 0, 0
    moved = _move_up(top, top, prefix, moved)
    while emptied < moved:
        name = f"{prefix}-{emptied}"
        emptied += 1
        with contextlib.suppress(OSError):
            folder = _opened(name, top)
            try:
                moved = _move_up(folder, top, prefix, moved)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _move_up(folder: int, top: int, prefix: str, moved: int) -> int:
    """Remove the files of a folder, move its folders to the top; give how many are moved by now."""
    with os.scandir(folder) as listing:
        for entry in listing:
            if folder == top and entry.name.startswith(prefix):
                continue
            # A job can make folders that cannot be moved, too (project quotas), and a thousand deep
            # these are too deep for Python.
            with contextlib.suppress(OSError, RecursionError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                elif _rename(entry.name, folder, f"{prefix}-{moved}", top):
                    moved += 1
                else:
                    moved = _move_content_up(entry.name, folder, top, prefix, moved)
    return moved


def _move_content_up(name: str, folder: int, top: int, prefix: str, moved: int) -> int:
    inner = _opened(name, folder)
    try:
        moved = _move_up(inner, top, prefix, moved)
    finally:
        os.close(inner)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=folder)
    return moved


def _rename(name: str, folder: int, new: str, top: int) -> bool:
    """Move a folder to the top; tell whether it can be. Those of a container's image cannot."""
    try:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:
        os.close(_opened(name, folder))  # which opens it to its owner
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _opened(name: str, within: int | None) -> int:
    """Open a folder, and let its owner do anything there: a job may have closed it."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    place = os.open(name, os.O_PATH | flags, dir_fd=within)
    try:
        if os.fstat(place).st_mode & 0o700 != 0o700:
            Path(f"/proc/self/fd/{place}").chmod(0o700)
        return os.open(".", os.O_RDONLY | flags, dir_fd=place)
    finally:
        os.close(place)
