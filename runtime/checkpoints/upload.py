"""Uploads from a local disk to a store: in parts, each verified, only those that are missing.

Parts are named after their digest, so a repeated upload knows which have arrived, and two writers
of one checkpoint cannot harm each other.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor

from runtime.checkpoints.errors import CheckpointError, Damaged
from runtime.checkpoints.filesystem import Filesystem
from runtime.checkpoints.manifest import MANIFEST, Manifest, StoredFile
from runtime.checkpoints.source import Source, SourceFile
from runtime.checkpoints.transfer import TransferFlow


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

    def send(self, source: Source, part_bytes: int) -> list[StoredFile]:
        """Upload all files; give them as they are stored.

        Raises:
            CheckpointError: a file changed, the store failed, or the flow was stopped.
        """
        self._flow.total_bytes = source.size_bytes
        return [self._send_file(file, part_bytes) for file in source.files]

    def _send_file(self, file: SourceFile, part_bytes: int) -> StoredFile:
        parts: list[str] = []
        whole = hashlib.sha256()
        is_cut = file.size_bytes > part_bytes
        # Hashing costs most here: a file of several parts is hashed as a whole in a thread of its
        # own, while a part is sent. A file of one part has that part's digest.
        with file.opened() as stream, ThreadPoolExecutor(1, "whole file") as beside:
            left = file.size_bytes  # a file that grows must not be read for ever
            while data := stream.read(min(part_bytes, left)):
                left -= len(data)
                self._flow.take()
                hashed = beside.submit(whole.update, data) if is_cut else None
                part = hashlib.sha256(data)
                parts.append(part.hexdigest())
                moved = self._send_part(parts[-1], data)
                if hashed is not None:
                    hashed.result()
                self._flow.done(len(data), file.path, moved)
                # Or two parts would be held while the next is read.
                data, hashed = b"", None
        sha256 = whole.hexdigest() if is_cut or not parts else parts[0]
        return StoredFile(path=file.path, size_bytes=file.size_bytes, sha256=sha256, parts=parts)

    def _send_part(self, name: str, data: bytes) -> bool:
        """Upload a part unless it is there; tell whether it had to be moved."""
        if self._allowed is not None and name not in self._allowed:
            raise CheckpointError(
                f"{self._filesystem.address(self._folder)}: is committed with other content; what "
                "is committed never changes: commit under another step or a higher epoch"
            )
        if self._held.get(name) == len(data) and self._is_verified(name, data):
            return False
        self._flow.take(len(data))
        self._filesystem.write(f"{self._folder}/{name}", data)
        self._held[name] = len(data)
        if not self._is_verified(name, data):
            raise Damaged(
                f"{self._filesystem.address(f'{self._folder}/{name}')}: is read back with other "
                "content than was written; check the store's disks, then commit again"
            )
        return True

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
