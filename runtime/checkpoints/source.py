"""The files of a checkpoint as the job wrote them: read safely, and changes are noticed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runtime.checkpoints.errors import CheckpointError, explained
from runtime.identity import as_user

#: The most files and folders of a checkpoint: as it reads and writes a manifest of many more, the
#: agent hears nobody for seconds.
ENTRIES_MAX = 100_000
_WAIT = "report a checkpoint only when it is complete on disk, and leave it alone after"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when the checkpoint was looked at."""

    path: str  #: Relative; begins with the checkpoint's name.
    where: Path
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
                descriptor = os.open(self.where, flags)
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
            raise explained(error, "read the checkpoint", str(self.where)) from error

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
    files: tuple[SourceFile, ...]
    empty_folders: tuple[str, ...]
    user: int | None = None  #: As whom it was looked at.

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)


def look(source: Path, user: int | None = None) -> Source:
    """List what makes up a checkpoint, in order of paths, as a user; None: as ourselves.

    Raises:
        CheckpointError: there is none, it has no file or too many, or holds what is neither file
            nor folder.
    """
    with as_user(user):
        return _looked(source, user)


def _looked(source: Path, user: int | None) -> Source:
    files: list[SourceFile] = []
    empty: list[str] = []
    waiting, found = [(source, source.name)], 0
    try:
        while waiting:
            where, path = waiting.pop()
            _named(where, path)
            status = where.lstat()
            if stat.S_ISDIR(status.st_mode):
                before = found
                with os.scandir(where) as listing:
                    for entry in listing:
                        found += 1
                        if found > ENTRIES_MAX:
                            raise CheckpointError(
                                f"{source}: holds more than {ENTRIES_MAX} files and folders; pack "
                                "them into fewer"
                            )
                        waiting.append((where / entry.name, f"{path}/{entry.name}"))
                if found == before:
                    empty.append(path)
            elif stat.S_ISREG(status.st_mode):
                inode = (status.st_dev, status.st_ino)
                files.append(
                    SourceFile(path, where, status.st_size, status.st_mtime_ns, inode, user)
                )
            else:
                raise CheckpointError(
                    f"{where}: is a link or a special file; a checkpoint is made of plain files"
                )
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename}: there is no such checkpoint; {_WAIT}") from error
    except OSError as error:
        raise explained(error, "read the checkpoint", str(error.filename or source)) from error
    if not files:
        raise CheckpointError(f"{source}: holds no file; {_WAIT}")
    by_path = sorted(files, key=lambda file: file.path)
    return Source(source, tuple(by_path), tuple(sorted(empty)), user)


def _named(where: Path, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{where!r}: its name is not UTF-8; rename it") from error
    if path in ("", "..") or len(path) > 4096:
        raise CheckpointError(f"{where}: give the checkpoint's own path, of at most 4096 letters")
