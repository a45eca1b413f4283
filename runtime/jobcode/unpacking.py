"""Unpacks an archive of code into the current folder: `python -m runtime.jobcode.unpacking`.

An archive is what a tenant made, so it is read in a process of its own, as that tenant's user, with
limits on its memory, its time and what it writes. Nothing is written through a link: links are made
last. Arguments: the kind (`tar` or `zip`), the user's id (`-` for our own), the most bytes. The
archive is standard input. Exits with 3 if the archive is at fault; what is wrong is on standard
error.

Imports only the standard library: it becomes a user who may not be able to read more.
"""

import encodings.cp437  # noqa: F401 - names in zip files; later it could not be read
import gzip
import lzma
import os
import resource
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from runtime.identity import become
from runtime.jobcode.rules import ENTRIES_MAX, Unfit, check_link, parts_of, shown

_PIECE = 1024 * 1024
_LINK_MAX = 4096
#: After the end of a tar file come so many MiB at most.
_TRAILING_MAX = 64
_MEMORY_BYTES = 512 * 1024 * 1024
_CPU_S = 600
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
            EOFError)  # fmt: skip
#: The exit status that says that the archive is at fault.
UNFIT = 3


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of an archive."""

    path: str
    is_folder: bool = False
    is_executable: bool = False
    content: IO[bytes] | None = None
    link: str | None = None


class Unpacking:
    """What was unpacked so far, against its limits."""

    def __init__(self, bytes_max: int) -> None:
        """Begin with nothing."""
        self._left, self._bytes_max = bytes_max, bytes_max
        self._entries = 0
        self._links: list[tuple[list[str], str]] = []

    def take(self, entry: _Entry) -> None:
        """Unpack one entry; a link waits for the end.

        Raises:
            Unfit: it is nothing that may be unpacked.
            OSError: the disk does not take it.
        """
        self._count()
        parts = parts_of(entry.path)
        if entry.is_folder:
            self._make_folders(parts)
            return
        if not parts:
            raise Unfit(f"{shown(entry.path)}: is no name of a file")
        self._make_folders(parts[:-1])
        if entry.link is not None:
            check_link(parts, entry.link)
            self._links.append((parts, entry.link))
        elif entry.content is not None:
            self._write(parts, entry.content, 0o700 if entry.is_executable else 0o600)

    def make_links(self) -> None:
        """Make the links, now that nothing is written any more.

        Raises:
            Unfit: there is something else of that name.
            OSError: the disk does not take it.
        """
        for parts, target in self._links:
            try:
                os.symlink(target, "/".join(parts))  # noqa: PTH211
            except FileExistsError:
                raise Unfit(f"{shown('/'.join(parts))}: is in it twice") from None

    def _make_folders(self, parts: list[str]) -> None:
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            try:
                os.mkdir(path, 0o700)  # noqa: PTH102
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise Unfit(f"{shown(path)}: is a file and a folder in it") from None
            else:
                self._count()

    def _write(self, parts: list[str], content: IO[bytes], mode: int) -> None:
        path = "/".join(parts)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            number = os.open(path, flags, mode)
        except FileExistsError:
            raise Unfit(f"{shown(path)}: is in it twice") from None
        with os.fdopen(number, "wb") as file:
            while piece := content.read(min(_PIECE, self._left + 1)):
                self._left -= len(piece)
                if self._left < 0:
                    most = self._bytes_max // _PIECE
                    raise Unfit(f"it unpacks to more than {most} MiB (agent.workers.code_max_mib)")
                file.write(piece)

    def _count(self) -> None:
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise Unfit(f"it holds more than {ENTRIES_MAX} files and folders")


def _tar(file: IO[bytes]) -> Iterator[_Entry]:
    # A stream: nothing that an archive says leads back in it.
    with gzip.open(file) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
        while (one := archive.next()) is not None:
            if one.isdir():
                yield _Entry(one.name, is_folder=True)
            elif one.isreg():
                content = archive.extractfile(one)
                yield _Entry(one.name, is_executable=bool(one.mode & 0o100), content=content)
            elif one.issym():
                yield _Entry(one.name, link=one.linkname)
            else:
                raise Unfit(f"{shown(one.name)}: is a hard link, a device or a pipe")
        # A damaged header looks like the end. At the true end comes a checksum, after little else.
        for _ in range(_TRAILING_MAX):
            if not plain.read(_PIECE):
                return
        raise Unfit("it goes on after its end")


def _zip(file: IO[bytes]) -> Iterator[_Entry]:
    with zipfile.ZipFile(file) as archive:
        for one in archive.infolist():
            mode = one.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if one.is_dir():
                yield _Entry(one.filename, is_folder=True)
                continue
            if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
                raise Unfit(f"{shown(one.filename)}: is a device or a pipe")
            if one.flag_bits & 1:
                raise Unfit(f"{shown(one.filename)}: is encrypted")
            with archive.open(one) as content:
                if kind == stat.S_IFLNK:
                    yield _Entry(one.filename, link=os.fsdecode(content.read(_LINK_MAX)))
                else:
                    executable = bool(mode & 0o100)
                    yield _Entry(one.filename, is_executable=executable, content=content)


def unpack(kind: str, file: IO[bytes], bytes_max: int) -> None:
    """Unpack an archive into the current folder, which is empty.

    Raises:
        Unfit: the archive is at fault.
        OSError: the disk does not take it.
    """
    unpacking = Unpacking(bytes_max)
    try:
        for entry in _tar(file) if kind == "tar" else _zip(file):
            unpacking.take(entry)
    except _DAMAGED as error:
        raise Unfit(f"it is damaged, or no archive of its kind: {error}") from error
    except MemoryError as error:
        raise Unfit("it needs more memory to be unpacked than it may have") from error
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise Unfit(f"it is damaged: {type(error).__name__}") from error
    unpacking.make_links()


def _limit(bytes_max: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(arguments: list[str]) -> int:
    """Unpack what standard input holds; give the exit status."""
    kind, user, bytes_max = arguments[0], arguments[1], int(arguments[2])
    os.umask(0o077)
    if user != "-":
        become(int(user), [])
    _limit(bytes_max)
    try:
        unpack(kind, sys.stdin.buffer, bytes_max)
    except Unfit as error:
        sys.stderr.write(f"{error}\n")
        return UNFIT
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
