"""Downloads from a store to a local disk: parts are verified, and the whole appears at once."""

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from runtime.checkpoints.errors import CheckpointError, Damaged
from runtime.checkpoints.filesystem import Filesystem
from runtime.checkpoints.manifest import Manifest, StoredFile
from runtime.checkpoints.source import look
from runtime.checkpoints.transfer import TransferFlow
from runtime.durable import make_folder, sync_folder
from runtime.threads import side_by_side
from runtime.trees import entries_below, remove_tree


class Download:
    """One checkpoint on its way into a local folder, where it appears as `<epoch>-<step>`."""

    def __init__(
        self, filesystem: Filesystem, folder: str, manifest: Manifest, flow: TransferFlow
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._manifest = manifest
        self._flow = flow
        self._objects = manifest.objects()

    def fetch(self, into: Path) -> Path:
        """Fetch what is not there yet, and give the path under the name the job gave it.

        Raises:
            Damaged: the store's copy is not what was stored.
            CheckpointError: the store failed, or the flow was stopped.
            OSError: the local disk failed.
        """
        whole = into / f"{self._manifest.epoch}-{self._manifest.step}"
        unfinished = into / f".fetching-{whole.name}"
        self._flow.total_bytes = self._manifest.size_bytes
        if self._is_verified(whole):
            return whole / self._manifest.name
        make_folder(into)
        if whole.exists():  # a job has changed it; parts that are still right are not fetched again
            remove_tree(unfinished)
            whole.rename(unfinished)
        self._prune(unfinished)
        for path in self._manifest.empty_folders:
            make_folder(unfinished / path)
        for file in self._manifest.files:
            self._assemble(file, unfinished / file.path)
        unfinished.rename(whole)
        sync_folder(into)
        return whole / self._manifest.name

    def _is_verified(self, whole: Path) -> bool:
        """Tell whether an earlier fetch is there, each part with its digest in the manifest."""
        top = whole / self._manifest.name
        if not top.exists() or len(list(whole.iterdir())) != 1:
            return False
        try:
            found = look(top)
        except CheckpointError:
            return False
        if [(file.path, file.size_bytes) for file in found.files] != [
            (file.path, file.size_bytes) for file in self._manifest.files
        ] or list(found.empty_folders) != self._manifest.empty_folders:
            return False
        for file, stored in zip(found.files, self._manifest.files, strict=True):
            with file.where.open("rb") as stream:
                for part in stored.parts:
                    self._flow.take()
                    if not _has_digest(stream.read(self._objects[part]), part):
                        return False
        self._flow.done(self._manifest.size_bytes, self._manifest.name)
        return True

    def _prune(self, unfinished: Path) -> None:
        """Leave only plain files that belong there: a link would lead the writing elsewhere."""
        if unfinished.is_symlink() or unfinished.is_file():
            unfinished.unlink()
        wanted = {file.path for file in self._manifest.files}
        for entry in reversed([*entries_below(unfinished)] if unfinished.is_dir() else []):
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                if not any(path.iterdir()):
                    path.rmdir()
            elif entry.is_symlink() or not (
                entry.is_file() and path.relative_to(unfinished).as_posix() in wanted
            ):
                path.unlink()

    def _assemble(self, file: StoredFile, path: Path) -> None:
        """Put a file together, keeping the parts that are right already."""
        make_folder(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0) as stream:
            calls = self._calls(file, stream.fileno())
            most = self._flow.at_once(self._filesystem.parts_at_once)
            sizes: Iterator[int] = side_by_side(calls, most, self._flow.failed)
            if len(file.parts) == 1:  # as of most files in a folder: no thread for each
                sizes = (call() for call in calls)
            for size in sizes:
                self._flow.done(size, file.path)
            os.ftruncate(stream.fileno(), file.size_bytes)
            os.fsync(stream.fileno())
        sync_folder(path.parent)

    def _calls(self, file: StoredFile, there: int) -> Iterator[Callable[[], int]]:
        """Give what puts each part of a file into its place."""
        at = 0
        for part in file.parts:
            self._flow.take()
            yield partial(self._place, file, part, there, at)
            at += self._objects[part]

    def _place(self, file: StoredFile, part: str, there: int, at: int) -> int:
        """Bring a part unless it is there; give its size."""
        size = self._objects[part]
        if not _has_digest(os.pread(there, size, at), part):
            self._flow.take(size)
            _write(there, self._read_verified(file, part, size), at)
            self._flow.moved(size)
        return size

    def _read_verified(self, file: StoredFile, part: str, size: int) -> bytes:
        """Read a part from the store, and check it against its digest."""
        path = f"{self._folder}/{part}"
        for _ in range(2):  # a second try: the link may have damaged it, not the store
            data = self._filesystem.read(path, size)
            if _has_digest(data, part):
                return data
            self._flow.take(size)
        raise Damaged(
            f"{self._filesystem.address(path)}: is damaged, so {file.path!r} cannot be put "
            "together; resume from another checkpoint"
        )


def _has_digest(data: bytes, part: str) -> bool:
    return hashlib.sha256(data).hexdigest() == part


def _write(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
