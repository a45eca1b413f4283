"""The files of a checkpoint as the job wrote them: read safely, and changes are noticed.

A job may put a link anywhere in its folder, at any moment, and the agent may read what the job may
not: another job's files, its own keys. So what is read is opened folder by folder, from one that no
job can replace, and no link is followed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runtime.checkpoints.errors import CheckpointError, Unstorable, explained
from runtime.identity import as_user

#: The most files and folders of a checkpoint: as it reads and writes a manifest of many more, the
#: agent hears nobody for seconds.
ENTRIES_MAX = 100_000
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WAIT = "report a checkpoint only when it is complete on disk, and leave it alone after"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when the checkpoint was looked at."""

    path: str  #: Relative; begins with the checkpoint's name.
    where: Path
    within: Path  #: A folder above it that no job can replace.
    size_bytes: int
    modified_ns: int
    inode: tuple[int, int]
    user: int | None = None  #: As whom it is read.

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Read the file; what is read is the file that was looked at, unchanged to the end.

        Raises:
            CheckpointError: it has changed, or cannot be read.
        """
        # A job may swap a file for a link or a pipe; it must neither lead elsewhere nor hang.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            with as_user(self.user):
                descriptor = _opened(self.within, self.where, flags)
            try:
                opened = os.fdopen(descriptor, "rb")
            except OSError:  # it is a folder now
                os.close(descriptor)
                raise
            with opened as stream:
                self._hold(os.fstat(stream.fileno()))
                yield stream
                self._hold(os.fstat(stream.fileno()))
                if stream.tell() != self.size_bytes:
                    raise CheckpointError(f"{self.where}: changed while it was read; {_WAIT}")
        except FileNotFoundError as error:
            raise CheckpointError(f"{self.where}: vanished while it was read; {_WAIT}") from error
        except OSError as error:
            raise _unread(error, self.where) from error

    def _hold(self, now: os.stat_result) -> None:
        if (now.st_size, now.st_mtime_ns, (now.st_dev, now.st_ino)) != (
            self.size_bytes,
            self.modified_ns,
            self.inode,
        ):
            raise CheckpointError(f"{self.where}: changed while it was read; {_WAIT}")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint on the local disk: one file, or a folder with all that is in it."""

    top: Path
    within: Path
    files: tuple[SourceFile, ...]
    empty_folders: tuple[str, ...]
    user: int | None = None  #: As whom it was looked at.

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)


def look(source: Path, user: int | None = None, within: Path | None = None) -> Source:
    """List what makes up a checkpoint, in order of paths, as a user; None: as ourselves.

    Args:
        source: The file or folder.
        user: As whom to look.
        within: A folder above it that no job can replace; None: the one that it is in.

    Raises:
        Unstorable: it has no file or too many, or holds what is neither file nor folder, or what
            the user may not read.
        CheckpointError: there is none, or the disk failed.
    """
    with as_user(user):
        return _looked(source, user, source.parent if within is None else within)


def _looked(source: Path, user: int | None, within: Path) -> Source:
    files: list[SourceFile] = []
    empty: list[str] = []
    _named(source, source.name)
    try:
        waiting, found = [(source, source.name, _status(within, source))], 0
        while waiting:
            where, path, status = waiting.pop()
            _named(where, path)
            if stat.S_ISDIR(status.st_mode):
                before = found
                for name, inner in _listed(within, where):
                    found += 1
                    if found > ENTRIES_MAX:
                        raise Unstorable(
                            f"{source}: holds more than {ENTRIES_MAX} files and folders; pack "
                            "them into fewer"
                        )
                    waiting.append((where / name, f"{path}/{name}", inner))
                if found == before:
                    empty.append(path)
            elif stat.S_ISREG(status.st_mode):
                inode = (status.st_dev, status.st_ino)
                about = (status.st_size, status.st_mtime_ns, inode, user)
                files.append(SourceFile(path, where, within, *about))
            else:
                raise _no_plain_file(where)
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename}: there is no such checkpoint; {_WAIT}") from error
    except OSError as error:
        raise _unread(error, error.filename or source) from error
    if not files:
        raise Unstorable(f"{source}: holds no file; {_WAIT}")
    by_path = sorted(files, key=lambda file: file.path)
    return Source(source, within, tuple(by_path), tuple(sorted(empty)), user)


def _opened(within: Path, where: Path, flags: int) -> int:
    """Open what is at a path below a folder, and nowhere else.

    Raises:
        CheckpointError: there is a link on the way.
        OSError: it cannot be opened.
    """
    folder = os.open(within, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *above, name = where.relative_to(within).parts
        for part in above:
            inner = os.open(part, os.O_PATH | _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _no_plain_file(where) from error
        raise OSError(error.errno, error.strerror, str(where)) from error
    finally:
        os.close(folder)


def _status(within: Path, where: Path) -> os.stat_result:
    descriptor = _opened(within, where, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _listed(within: Path, folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    descriptor = _opened(within, folder, os.O_RDONLY | _FOLDER)
    try:
        with os.scandir(descriptor) as listing:
            for entry in listing:
                yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(descriptor)


def _unread(error: OSError, where: object) -> CheckpointError:
    said = explained(error, "read the checkpoint", str(where))
    return Unstorable(str(said)) if error.errno in (errno.EACCES, errno.EPERM) else said


def _no_plain_file(where: Path) -> CheckpointError:
    return Unstorable(
        f"{where}: is a link or a special file, or lies behind a link; a checkpoint is made of "
        "plain files"
    )


def _named(where: Path, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise Unstorable(f"{where!r}: its name is not UTF-8; rename it") from error
    if path in ("", "..") or len(path) > 4096:
        raise Unstorable(f"{where}: give the checkpoint's own path, of at most 4096 letters")
