"""Uploads from a local disk to a store: in parts, each verified, only those that are missing.

A few parts are on their way at a time (`side_by_side`), each in a thread that takes its digest,
sends it and reads it back, while the files are read and added up in the caller's.

Parts are named after their digest, so a repeated upload knows which have arrived, and two writers
of one checkpoint cannot harm each other.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from runtime.checkpoints.errors import Damaged, OtherContent
from runtime.checkpoints.filesystem import Filesystem
from runtime.checkpoints.manifest import MANIFEST, Manifest, StoredFile
from runtime.checkpoints.source import Source
from runtime.checkpoints.transfer import TransferFlow
from runtime.threads import side_by_side


class Upload:
    """The parts of one checkpoint on their way into a folder of the store."""

    def __init__(
        self,
        filesystem: Filesystem,
        folder: str,
        flow: TransferFlow,
        committed: Manifest | None,
        reads_back: bool,
    ) -> None:
        """Look at what is there already.

        Args:
            filesystem: the store.
            folder: where the parts go.
            flow: its rate limit and progress.
            committed: the checkpoint that the folder holds already; nothing else may go there.
            reads_back: whether to verify each part by reading it back, or by its size alone.
        """
        self._filesystem = filesystem
        self._folder = folder
        self._flow = flow
        self._allowed = None if committed is None else committed.objects()
        self._reads_back = reads_back
        self._held = filesystem.entries(folder)
        self._verified: set[str] = set()
        self._sending: set[str] = set()
        self._turn = threading.Condition()

    def send(self, source: Source, part_bytes: int) -> list[StoredFile]:
        """Upload all files; give them as they are stored.

        Raises:
            CheckpointError: a file changed, the store failed, or the flow was stopped.
        """
        self._flow.total_bytes = source.size_bytes
        parts: dict[str, list[str]] = {file.path: [] for file in source.files}
        wholes: dict[str, str] = {}
        calls = self._calls(source, part_bytes, wholes)
        most = self._flow.at_once(self._filesystem.parts_at_once)
        for path, name, size_bytes in side_by_side(calls, most, self._flow.failed):
            parts[path].append(name)
            self._flow.done(size_bytes, path)
        return [
            StoredFile(
                path=file.path,
                size_bytes=file.size_bytes,
                # A file of one part has that part's digest.
                sha256=wholes.get(file.path) or parts[file.path][0],
                parts=parts[file.path],
            )
            for file in source.files
        ]

    def _calls(
        self, source: Source, part_bytes: int, wholes: dict[str, str]
    ) -> Iterator[Callable[[], tuple[str, str, int]]]:
        """Read all files and give what sends each part; note digests of files of none or many."""
        for file in source.files:
            whole = None if 0 < file.size_bytes <= part_bytes else hashlib.sha256()
            with file.opened() as stream:
                left = file.size_bytes  # a file that grows must not be read for ever
                while data := stream.read(min(part_bytes, left)):
                    left -= len(data)
                    self._flow.take()
                    if whole is not None:
                        whole.update(data)
                    yield partial(self._send_part, file.path, data)
            if whole is not None:
                wholes[file.path] = whole.hexdigest()

    def _send_part(self, path: str, data: bytes) -> tuple[str, str, int]:
        """Upload a part unless it is there; give its file's path, its name and its size."""
        name = hashlib.sha256(data).hexdigest()
        if self._allowed is not None and name not in self._allowed:
            raise OtherContent(
                f"{self._filesystem.address(self._folder)}: is committed with other content; what "
                "is committed never changes: commit under another step or a higher epoch"
            )
        with self._alone(name):
            if self._held.get(name) != len(data) or not self._is_verified(name, data):
                self._flow.take(len(data))
                self._filesystem.write(f"{self._folder}/{name}", data)
                self._held[name] = len(data)
                if not self._is_verified(name, data):
                    raise Damaged(
                        f"{self._filesystem.address(f'{self._folder}/{name}')}: is read back with "
                        "other content than was written; check the store's disks, then commit again"
                    )
                self._flow.moved(len(data))
        return path, name, len(data)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Have parts that are alike wait for each other: only the first one moves."""
        with self._turn:
            self._turn.wait_for(lambda: name not in self._sending)
            self._sending.add(name)
        try:
            yield
        finally:
            with self._turn:
                self._sending.discard(name)
                self._turn.notify_all()

    def _is_verified(self, name: str, data: bytes) -> bool:
        """Tell whether the store holds a part: read back and compared, or by its size alone."""
        if self._reads_back and name not in self._verified:
            self._flow.take(len(data))
            if not self._filesystem.holds(f"{self._folder}/{name}", data):
                return False
        self._verified.add(name)
        return True


def remove_partial_uploads(filesystem: Filesystem, folder: str, manifest: Manifest) -> None:
    """Remove the parts that interrupted uploads left beside a committed checkpoint.

    Raises:
        CheckpointError: the store cannot be asked, or refuses.
    """
    wanted = manifest.objects().keys() | {MANIFEST}
    for name, size in filesystem.entries(folder).items():
        if name not in wanted and size is not None:
            filesystem.remove(f"{folder}/{name}")
