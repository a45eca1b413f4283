"""The only module that knows fsspec: whole objects under one URL, and errors that say what to do.

An object is written at once or not at all: on a local disk by a rename, durably, and in object
stores by their nature. Where a backend cannot (sftp, say), a crash may leave a short object, so
readers compare sizes.
"""

import copy
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from runtime.checkpoints.disk import Disk
from runtime.checkpoints.errors import CheckpointError, Damaged, explained
from runtime.durable import make_folder, sync_folder, write_file
from runtime.untrusted_files import open_regular_file

PARTS_AT_ONCE = 4
#: User and password in a URL, up to the last @: they are never shown.
_SECRET = re.compile(r"(?<=://)[^/]+@")
#: How much of an object is held beside the original while both are compared.
_PIECE_BYTES = 2**20


class Filesystem:
    """The objects under a URL. Paths are relative to it, with `/`; safe for use by threads."""

    def __init__(self, url: str, disk_file: Path | None = None) -> None:
        """Open a URL.

        Args:
            url: where the objects are.
            disk_file: remembers the disk of a folder of this machine; None: nothing does.

        Raises:
            CheckpointError: the URL's kind is unknown, or its package is not installed.
        """
        #: The URL as it may be shown: without user and password.
        self.url = _SECRET.sub("", url).rstrip("/")
        self._fs, self._root = _opened(url, self.url)
        self._root = self._root.rstrip("/")
        if not self._root and self._fs.root_marker == "":
            raise CheckpointError(
                f"{self.url}: names no bucket; give one, as in s3://bucket/folder"
            )
        #: Whether it is a folder of this machine.
        self.is_local = isinstance(self._fs, LocalFileSystem)
        self._disk = Disk(self._root, self.url, disk_file) if self.is_local else None
        #: Parts on their way at a time: one after the other, each waits for disk, digest and store
        #: in turn. A file system that is not made for it, such as SFTP, has but one connection.
        self.parts_at_once = PARTS_AT_ONCE if self.is_local or self._fs.async_impl else 1

    def below(self, folder: str) -> "Filesystem":
        """Give the objects in a folder of it, over the same connection."""
        inside = copy.copy(self)
        inside.url, inside._root = f"{self.url}/{folder}", f"{self._root}/{folder}"
        return inside

    def address(self, path: str) -> str:
        """Give the URL of an object, for people."""
        return f"{self.url}/{path}"

    def entries(self, folder: str) -> dict[str, int | None]:
        """Give the names in a folder with their sizes in bytes, None for folders; {} if none.

        Raises:
            CheckpointError: the store cannot be asked.
        """
        whole = f"{self._root}/{folder}"
        with self._explained("list", folder):
            self._fs.invalidate_cache()  # others write there too
            try:
                found = self._fs.ls(whole, detail=True)
            except (FileNotFoundError, NotADirectoryError) as error:
                if _is_missing_bucket(error):
                    raise
                return {}
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: (
                int(entry["size"]) if entry["type"] == "file" else None
            )
            for entry in found
            if entry["name"].rstrip("/") != whole  # some stores list the folder in itself
        }

    def read(self, path: str, limit_bytes: int) -> bytes:
        """Read an object whole.

        Raises:
            Damaged: it is not there, or is larger than the limit.
            CheckpointError: it cannot be read.
        """
        with self._explained("read", path):
            try:
                if self.is_local:
                    with Path(f"{self._root}/{path}").open("rb") as stream:
                        data = stream.read(limit_bytes + 1)
                else:
                    data = bytes(
                        self._fs.cat_file(f"{self._root}/{path}", start=0, end=limit_bytes + 1)
                    )
            except FileNotFoundError as error:
                if _is_missing_bucket(error):
                    raise
                raise Damaged(f"{self.address(path)}: is missing") from error
        if len(data) > limit_bytes:
            raise Damaged(f"{self.address(path)}: is larger than the {limit_bytes} bytes it may be")
        return data

    @contextmanager
    def reading(self, path: str) -> Iterator[IO[bytes]]:
        """Open an object to be read in pieces; of a local disk a plain file below the URL alone.

        Raises:
            CheckpointError: it cannot be read, or a link leads elsewhere.
        """
        with self._explained("read", path):
            if self.is_local:
                stream = self._inside(path)
            else:
                stream = self._fs.open(f"{self._root}/{path}", "rb")
            with stream:
                yield stream

    def _inside(self, path: str) -> IO[bytes]:
        """Open a plain file, and see where it is once it is open: whoever wrote it may move it."""
        stream = open_regular_file(Path(f"{self._root}/{path}").resolve())
        there = Path(f"/proc/self/fd/{stream.fileno()}").readlink()
        if Path(self._root).resolve() not in there.parents:
            stream.close()
            raise CheckpointError(f"{self.address(path)}: is a link that leads elsewhere")
        return stream

    def holds(self, path: str, data: bytes) -> bool:
        """Read an object back and tell whether it is exactly this.

        Raises:
            CheckpointError: it cannot be read.
        """
        whole = f"{self._root}/{path}"
        at = 0
        with self._explained("read back", path):
            stream = Path(whole).open("rb") if self.is_local else self._fs.open(whole, "rb")  # noqa: SIM115
            with stream:
                while piece := stream.read(_PIECE_BYTES):
                    if piece != data[at : at + len(piece)]:
                        return False
                    at += len(piece)
        return at == len(data)

    def write(self, path: str, data: bytes) -> None:
        """Write an object whole, in place of the one that may be there.

        Raises:
            CheckpointError: it cannot be written; the one before is then still there.
        """
        with self._explained("write", path):
            if self.is_local:
                whole = Path(f"{self._root}/{path}")
                make_folder(whole.parent)
                write_file(whole, data)
            else:
                try:
                    self._fs.pipe_file(f"{self._root}/{path}", data)
                except FileNotFoundError as error:
                    if _is_missing_bucket(error):
                        raise
                    self._make_folders(path)
                    self._fs.pipe_file(f"{self._root}/{path}", data)

    def write_pieces(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write an object of any size, in place of the one that may be there.

        Raises:
            CheckpointError: it cannot be written; of a store that is no local disk, a part may be.
        """
        whole = f"{self._root}/{path}"
        with self._explained("write", path):
            if not self.is_local:
                with suppress(FileExistsError):
                    self._make_folders(path)
                with self._fs.open(whole, "wb") as stream:
                    for piece in pieces:
                        stream.write(piece)
                return
            # A name of its own: one made of the file's may be longer than a disk takes.
            draft = Path(whole).with_name(f".{os.getpid()}-{threading.get_ident()}.draft")
            make_folder(draft.parent)
            try:
                with draft.open("wb") as stream:
                    for piece in pieces:
                        stream.write(piece)
                    stream.flush()
                    os.fsync(stream.fileno())
                draft.replace(whole)
            finally:
                draft.unlink(missing_ok=True)
            sync_folder(draft.parent)

    def written_s(self, path: str) -> float | None:
        """Give when an object was written, in seconds since the Unix epoch by the store's clock.

        None if the store does not say.
        """
        try:
            written: datetime = self._fs.modified(f"{self._root}/{path}")
        except Exception:  # noqa: BLE001  backends without such a thing say so in many ways
            return None
        return (written if written.tzinfo else written.replace(tzinfo=UTC)).timestamp()

    def remove(self, path: str) -> None:
        """Remove an object, if it is there.

        Raises:
            CheckpointError: it cannot be removed.
        """
        with self._explained("delete", path):
            try:
                self._fs.rm_file(f"{self._root}/{path}")
                if self.is_local:
                    sync_folder(Path(f"{self._root}/{path}").parent)
            except FileNotFoundError:
                pass

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there.

        Raises:
            CheckpointError: it cannot be removed; part of it may be gone.
        """
        whole = f"{self._root}/{folder}"
        with self._explained("delete", folder):
            self._fs.invalidate_cache()  # or it deletes what was there earlier
            try:
                if self.is_local:
                    shutil.rmtree(whole)
                else:
                    self._fs.rm(whole, recursive=True)
            except FileNotFoundError:
                pass

    def _make_folders(self, path: str) -> None:
        """Make what is missing under the root. The root itself may be a bucket: never made."""
        names = path.split("/")
        for depth in range(1, len(names)):
            with suppress(FileExistsError):
                folder = "/".join([self._root, *names[:depth]])
                self._fs.mkdir(folder, create_parents=False)

    @contextmanager
    def _explained(self, doing: str, path: str) -> Iterator[None]:
        try:
            if self._disk is not None:
                self._disk.see()
            yield
        except CheckpointError:
            raise
        except Exception as error:
            raise explained(error, doing, self.address(path)) from error


def _opened(url: str, shown: str) -> tuple[Any, str]:
    if not url:
        raise CheckpointError("no URL; give one, such as file:///srv/checkpoints")
    kind, mark, rest = url.partition("://")
    if mark and kind.lower() in ("file", "local") and not rest.startswith("/"):
        raise CheckpointError(
            f"{shown}: names another machine, or no whole path; mount the folder here and write "
            "file:///folder, with three slashes"
        )
    try:
        # A server whose address was allowed must not send us on to another.
        more = {"allow_redirects": False} if kind.lower() in ("http", "https") else {}
        filesystem, root = fsspec.core.url_to_fs(url, **more)
    except ImportError as error:
        raise CheckpointError(f"{shown}: {_package(url, error)}, then start again") from error
    except ValueError as error:
        raise CheckpointError(
            f"{shown}: {error}; use file:///folder, s3://bucket/folder or another URL of fsspec"
        ) from error
    except Exception as error:
        raise explained(error, "open", shown) from error
    return filesystem, root


def _package(url: str, error: ImportError) -> str:
    known = known_implementations.get(url.partition("://")[0], {})
    package = known.get("class", "").partition(".")[0]
    if package and package != "fsspec":
        return f"install {package}"
    return str(error)


def _is_missing_bucket(error: BaseException) -> bool:
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket"
