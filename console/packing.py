"""Packs a folder of code into an archive, the same bytes for the same files, and stores it once.

Its name in the store is its SHA-256. What an agent would not unpack is not packed
(`runtime.jobcode.rules`).
"""

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from console.output import fail
from console.serve import needing
from runtime.checkpoints.errors import CheckpointError
from runtime.jobcode.rules import ENTRIES_MAX, Unfit, check_link, parts_of

#: The most that an archive may have, in bytes.
PACKED_MAX = 64 * 2**20
#: And what is in it, before it is packed.
_UNPACKED_MAX = 512 * 2**20
#: What is no code: the history of it, and what Python makes of it.
_LEFT_OUT = (".git", "__pycache__")
_VARIABLE = "TIDEGATE_CODE_STORE"


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive of a folder, and where it belongs."""

    data: bytes
    sha256: str
    store: str

    @property
    def url(self) -> str:
        """Its address, from which agents fetch it."""
        return f"{self.store.rstrip('/')}/{self.name}"

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"{self.sha256}.tar.gz"

    def told(self) -> str:
        """Store it, unless it is there, and say so; say and end if that cannot be."""
        with needing("console"):
            from runtime.checkpoints.filesystem import Filesystem
        try:
            store = Filesystem(self.store)
            is_there = store.entries("").get(self.name) == len(self.data)
            if not is_there:
                store.write(self.name, self.data)
        except CheckpointError as error:
            fail(f"--code-store: {error}.")
        size = f"{len(self.data) / 1024:,.0f} KiB"
        return f"Its code, {size}, {'was there already' if is_there else 'is now'} at {self.url}."


def packed(folder: str, store: str | None) -> Packed:
    """Pack a folder; say what is wrong and end if it cannot be."""
    top = Path(folder)
    if not top.is_dir():
        fail(f"--code: {folder}: is no folder; name one, or an address such as s3://bucket/a.zip.")
    if not store:
        fail(
            f"--code-store is missing: {folder} is packed and put there, from where agents fetch "
            f"it, such as file:///shared/code or s3://bucket/code; or set ${_VARIABLE}."
        )
    try:
        data = _archive(top)
    except Unfit as error:
        fail(f"--code: {folder}: {error}; move it out of the folder.")
    except OSError as error:
        fail(f"--code: {error.filename or folder}: {error.strerror or error}.")
    if len(data) > PACKED_MAX:
        fail(
            f"--code: {folder}: is {len(data) // 2**20} MiB when packed, the limit is "
            f"{PACKED_MAX // 2**20}; keep data out of it, and read it from where it is."
        )
    return Packed(data, hashlib.sha256(data).hexdigest(), store)


def _archive(top: Path) -> bytes:
    found, size, count = io.BytesIO(), 0, 0
    with (
        # Without a name and a time in its head, the same files are the same bytes.
        gzip.GzipFile("", "wb", 6, found, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, name in _walk(top):
            count += 1
            if count > ENTRIES_MAX:
                raise Unfit(f"it holds more than {ENTRIES_MAX} files and folders")
            about = path.lstat()
            entry = tarfile.TarInfo(name)
            parts = parts_of(name)
            if stat.S_ISDIR(about.st_mode):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            elif stat.S_ISLNK(about.st_mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, os.fspath(path.readlink())
                check_link(parts, entry.linkname)
                archive.addfile(entry)
            elif stat.S_ISREG(about.st_mode):
                entry.mode = 0o755 if about.st_mode & 0o100 else 0o644
                entry.size = about.st_size
                size += about.st_size
                if size > _UNPACKED_MAX:
                    raise Unfit(f"it holds more than {_UNPACKED_MAX // 2**20} MiB")
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                raise Unfit(f"{name}: is a device, a pipe or a socket")
    return found.getvalue()


def _walk(top: Path) -> Iterator[tuple[Path, str]]:
    """Give what a folder holds with its path in it, in order, each folder before its content."""
    for entry in sorted(top.iterdir(), key=lambda one: one.name):
        if entry.name in _LEFT_OUT:
            continue
        yield entry, entry.name
        if entry.is_dir() and not entry.is_symlink():
            for path, name in _walk(entry):
                yield path, f"{entry.name}/{name}"
