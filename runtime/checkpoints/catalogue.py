"""Lists the checkpoints of a store: those with a valid manifest whose parts are all there."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runtime.checkpoints.errors import Damaged
from runtime.checkpoints.filesystem import Filesystem
from runtime.checkpoints.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    checked,
    decode,
)

#: How the folder of a checkpoint is called.
_FOLDER = re.compile(r"(0|[1-9][0-9]{0,15})-(0|[1-9][0-9]{0,15})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint."""

    job: str
    epoch: int
    step: int
    uri: str  #: Where it is, for people; without user and password.
    size_bytes: int
    manifest: Manifest


class Catalogue:
    """The checkpoints under a URL; asked anew each time, because others write there, too."""

    def __init__(self, filesystem: Filesystem) -> None:
        self.filesystem = filesystem
        #: Folders that a fetch found damaged; ignored until they are committed again.
        self.damaged: set[str] = set()

    def folders(self, job: str, first_epoch: int = 0) -> list[tuple[int, int]]:
        """Give epoch and step of all that there is of a job, whole or not, the newest first.

        What is older than its first epoch is of another job, which had the name before.

        Raises:
            CheckpointError: the store cannot be asked.
        """
        found = []
        for name, size in self.filesystem.entries(job).items():
            if size is None and (match := _FOLDER.fullmatch(name)):
                found.append((int(match[1]), int(match[2])))
        # Outside these bounds of `schemas.values` it is not ours.
        ours = (both for both in found if max(both) <= 2**53 and both[0] >= first_epoch)
        return sorted(ours, reverse=True)

    def whole(
        self, job: str, step: int | None = None, first_epoch: int = 0
    ) -> Iterator[Checkpoint]:
        """Give the whole checkpoints of a job, or of one step of it, the newest first.

        Raises:
            CheckpointError: the store cannot be asked.
        """
        for epoch, at in self.folders(job, first_epoch):
            if step is not None and at != step:
                continue
            folder = checked(job, epoch, at)
            if folder in self.damaged or (manifest := self.manifest(folder)) is None:
                continue
            if not missing(self.filesystem, folder, manifest):
                yield self.checkpoint(manifest)

    def manifest(self, folder: str) -> Manifest | None:
        """Give the manifest of a folder if it is valid and belongs there.

        Raises:
            CheckpointError: the store cannot be asked.
        """
        path = f"{folder}/{MANIFEST}"
        try:
            manifest = decode(
                self.filesystem.read(path, MAX_MANIFEST_BYTES), self.filesystem.address(path)
            )
        except Damaged:
            return None
        if checked(manifest.job, manifest.epoch, manifest.step) != folder:
            return None
        return manifest

    def checkpoint(self, manifest: Manifest) -> Checkpoint:
        """Give a committed checkpoint by its manifest."""
        uri = self.filesystem.address(checked(manifest.job, manifest.epoch, manifest.step))
        return Checkpoint(
            manifest.job, manifest.epoch, manifest.step, uri, manifest.size_bytes, manifest
        )


def missing(filesystem: Filesystem, folder: str, manifest: Manifest) -> list[str]:
    """Name the parts that the store does not hold in the right size; [] if it is whole.

    Raises:
        CheckpointError: the store cannot be asked.
    """
    held = filesystem.entries(folder)
    return [part for part, size in manifest.objects().items() if held.get(part) != size]
