"""The checkpoint store: commit, find, fetch and retain, under any URL that fsspec knows.

    <URL>/<job>/<epoch>-<step>/<sha256 of a part>   the files, cut into parts
    <URL>/<job>/<epoch>-<step>/manifest.json        written last, when all else is verified
    <URL>/<job>/outputs/<epoch>/<path>              what the job leaves behind, as it is
    <URL>/<job>/failed-<epoch>-rank-<rank>.log      the end of what the gang that failed last wrote

An interrupted commit leaves no manifest, and so no checkpoint; the same call continues it.
What was stored below a job's first epoch is of another job, which had that name before: it is
neither found nor removed. Nor is what another cell stored (`runtime.checkpoints.places`).
All calls block and may come from any thread.
"""

import re
import secrets
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from runtime.checkpoints.catalogue import Catalogue, Checkpoint, missing
from runtime.checkpoints.download import Download
from runtime.checkpoints.errors import (
    CheckpointError,
    Damaged,
    OtherContent,
    Unstorable,
    explained,
)
from runtime.checkpoints.filesystem import Filesystem
from runtime.checkpoints.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_PART_BYTES,
    Manifest,
    checked,
    encode,
)
from runtime.checkpoints.places import JobPlaces
from runtime.checkpoints.source import Source, look
from runtime.checkpoints.transfer import MIB, Progress, TokenBucket, Traffic, Transfer, TransferFlow
from runtime.checkpoints.upload import Upload, remove_partial_uploads

__all__ = ["Checkpoint", "CheckpointError", "CheckpointStore", "Damaged", "Transfer"]

#: The size of a part, and the least size; an interruption costs those on their way.
_PART_BYTES, _LEAST_PART_BYTES = 16 * MIB, 1 * MIB
#: With a rate limit a part takes this many seconds, so that transfers are even and stop soon.
_PART_S = 4.0
_PROBE = ".probe"
_OUTPUTS = "outputs"
#: So much of the end of a failed gang's log is kept, in bytes.
LOG_BYTES = 256 * 1024
#: One of an earlier release names no epoch.
_is_log = re.compile(r"failed-(?:([0-9]{1,16})-)?rank-([0-9]{1,5})\.log").fullmatch


class CheckpointStore:
    """Checkpoints under one URL."""

    def __init__(
        self,
        url: str,
        *,
        rate_mib_per_s: float | None = None,
        verify: Literal["full", "size"] | None = None,
        part_bytes: int | None = None,
        cell: str | None = None,
        disk_file: Path | None = None,
    ) -> None:
        """Open the store; nothing is written yet.

        Args:
            url: a folder, such as `file:///srv/checkpoints` or `s3://bucket/folder`.
            rate_mib_per_s: what all transfers of this store may take together, reading back
                included; None for no limit.
            verify: whether a commit reads back all bytes, or trusts the sizes the store names;
                None reads back on a local disk only. Object stores check what they receive, and
                reading back would double the traffic of a thin link.
            part_bytes: how files are cut; None for 16 MiB, or less under a limit.
            cell: whose jobs these are, where other cells may use the URL, too.
            disk_file: remembers on which disk a folder of this machine is, so that nothing is
                written in its place where that is not mounted; None to remember it for now only.

        Raises:
            CheckpointError: the URL cannot be used.
            ValueError: a rate or size is out of range.
        """
        self._filesystem = Filesystem(url, disk_file)
        self._rate = TokenBucket(rate_mib_per_s)
        #: The totals of transfers to the store, and from it.
        self.commits, self.fetches = Traffic(), Traffic()
        self._reads_back = self._filesystem.is_local if verify is None else verify == "full"
        if part_bytes is None:
            part_bytes = _PART_BYTES
            if rate_mib_per_s is not None:
                evenly = int(min(rate_mib_per_s * _PART_S, 16.0) * MIB)
                part_bytes = max(evenly, _LEAST_PART_BYTES)
        if not 1 <= part_bytes <= MAX_PART_BYTES:
            raise ValueError(f"part_bytes is {part_bytes}; give 1 to {MAX_PART_BYTES}")
        #: Of a file that is cut, each part but the last.
        self.part_bytes = part_bytes
        self._places = JobPlaces(self._filesystem, cell)
        self._lock = threading.Lock()
        self._under_way: list[str] = []

    def commit(
        self,
        job: str,
        epoch: int,
        step: int,
        source: Path,
        created_s: float,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
        user: int | None = None,
        within: Path | None = None,
    ) -> Checkpoint:
        """Store a file or folder; returns only when the store was seen to hold all of it.

        The same call again, after whatever interruption, moves only the parts that are missing;
        after success it changes nothing and gives the same checkpoint.

        Args:
            job: whose it is.
            epoch: the allocation that wrote it.
            step: the optimiser steps that are in it.
            source: what the job wrote; must stay as it is until this returns.
            created_s: when, in seconds since the Unix epoch.
            progress: called from this thread after each part.
            stop: set it to give up after the parts under way.
            user: as whom to read it; None: as we are.
            within: a folder above it that its writer cannot replace; None: the one that it is in.

        Raises:
            CheckpointError: it is not committed; the text says what to do.
        """
        folder = checked(job, epoch, step)
        with self._lock:
            self._under_way.append(folder)
        try:
            with self.commits.counting(TransferFlow(self._rate, progress, stop)) as flow:
                found = look(source, user, within)
                catalogue = self._places.of(job, claims=True)
                return self._commit(catalogue, folder, (job, epoch, step), found, created_s, flow)
        finally:
            with self._lock:
                self._under_way.remove(folder)

    def _commit(
        self,
        catalogue: Catalogue,
        folder: str,
        about: tuple[str, int, int],
        files: Source,
        created_s: float,
        flow: TransferFlow,
    ) -> Checkpoint:
        job, epoch, step = about
        committed = catalogue.manifest(folder)
        upload = Upload(
            catalogue.filesystem,
            folder,
            flow,
            committed,
            self._reads_back or folder in catalogue.damaged,
        )
        # What is committed keeps its parts: the setting may have changed since.
        part_bytes = self.part_bytes if committed is None else committed.part_bytes
        stored = upload.send(files, part_bytes)
        if look(files.top, files.user, files.within) != files:
            raise CheckpointError(
                f"{files.top}: files came, went or changed while it was read; report a checkpoint "
                "only when it is complete on disk, and leave it alone after"
            )
        manifest = Manifest(
            job=job,
            epoch=epoch,
            step=step,
            created_s=float(created_s),
            part_bytes=part_bytes,
            files=stored,
            empty_folders=list(files.empty_folders),
            size_bytes=files.size_bytes,
        )
        manifest = _seal(catalogue, folder, manifest, committed)
        catalogue.damaged.discard(folder)
        return catalogue.checkpoint(manifest)

    def find(self, job: str, step: int, first_epoch: int = 0) -> Checkpoint | None:
        """Give the checkpoint of a step, of the newest epoch that has a whole one; or None.

        Whole means: the manifest is valid and every part is there in its size. What is in the
        parts is checked by `fetch`; one that it found damaged is found no more.

        Raises:
            CheckpointError: the store cannot be asked.
        """
        checked(job, 0, step)
        return next(self._places.of(job).whole(job, step, first_epoch), None)

    def committed(self, job: str, first_epoch: int = 0) -> list[Checkpoint]:
        """Give all whole checkpoints of a job, the newest first: by epoch, then by step.

        Raises:
            CheckpointError: the store cannot be asked.
        """
        checked(job, 0, 0)
        return list(self._places.of(job).whole(job, first_epoch=first_epoch))

    def fetch(
        self,
        checkpoint: Checkpoint,
        into: Path,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> Path:
        """Bring a checkpoint to `into/<epoch>-<step>/<the job's name for it>`; gives that path.

        It appears there at once, when every part is verified and on disk. The same call again
        goes on after an interruption, and repairs what was changed. One call at a time for one
        checkpoint and folder.

        Args:
            checkpoint: which, as `find` gave it.
            into: a local folder for this job alone; it is made if there is none.
            progress: called from this thread after each part.
            stop: set it to give up after the parts under way.

        Raises:
            Damaged: the store's copy is not what was stored; `find` gives another one from now
                on, if there is any.
            CheckpointError: the store or the local disk failed; the text says what to do.
        """
        folder = checked(checkpoint.job, checkpoint.epoch, checkpoint.step)
        catalogue = self._places.of(checkpoint.job)
        try:
            with self.fetches.counting(TransferFlow(self._rate, progress, stop)) as flow:
                return Download(catalogue.filesystem, folder, checkpoint.manifest, flow).fetch(into)
        except Damaged:
            with suppress(CheckpointError):  # a store that has gone away has damaged nothing
                if catalogue.manifest(folder) is not None:
                    catalogue.damaged.add(folder)
            raise
        except OSError as error:
            raise explained(error, "write the checkpoint", str(into)) from error

    def retain(
        self, job: str, keep: int, needed: Collection[int] = (), first_epoch: int = 0
    ) -> list[str]:
        """Delete all but the newest `keep` checkpoints and those of the needed steps.

        The newest one always stays, and of a needed step the one that `find` gives. Remains of
        interrupted commits go too, if they are older than the newest checkpoint and no commit of
        this store is under way there.

        Returns:
            The URLs of what was deleted.

        Raises:
            CheckpointError: the store cannot be asked, or refuses; call again later.
        """
        checked(job, 0, 0)
        catalogue = self._places.of(job, claims=True)
        whole = list(catalogue.whole(job, first_epoch=first_epoch))
        if not whole:
            return []
        kept = whole[: max(keep, 1)]
        for step in needed:
            kept += [each for each in whole if each.step == step][:1]
        stay = {(each.epoch, each.step) for each in kept}
        newest = (whole[0].epoch, whole[0].step)
        deleted = []
        for epoch, step in catalogue.folders(job, first_epoch):
            folder = checked(job, epoch, step)
            with self._lock:
                is_busy = folder in self._under_way
            if (epoch, step) in stay or (epoch, step) > newest or is_busy:
                continue
            # First the manifest: half of it is no checkpoint.
            catalogue.filesystem.remove(f"{folder}/{MANIFEST}")
            catalogue.filesystem.remove_folder(folder)
            deleted.append(catalogue.filesystem.address(folder))
        return deleted

    def keep_output(self, job: str, epoch: int, path: str, pieces: Iterable[bytes]) -> None:
        """Keep a file that a job leaves behind, under its own path, which must lead nowhere else.

        Raises:
            CheckpointError: the store cannot be asked, or refuses.
        """
        checked(job, epoch, 0)
        filesystem = self._places.of(job, claims=True).filesystem
        filesystem.write_pieces(f"{job}/{_OUTPUTS}/{epoch}/{path}", pieces)

    def outputs_kept(self, job: str, epoch: int, first_epoch: int = 0) -> str:
        """Note that the outputs of an epoch are kept; those of others go. Gives the folder's URL.

        Raises:
            CheckpointError: the store cannot be asked, or refuses.
        """
        checked(job, epoch, 0)
        filesystem = self._places.of(job, claims=True).filesystem
        for other in filesystem.entries(f"{job}/{_OUTPUTS}"):
            is_anothers = other.isdecimal() and int(other) < first_epoch
            if other != str(epoch) and not is_anothers:
                filesystem.remove_folder(f"{job}/{_OUTPUTS}/{other}")
        return filesystem.address(f"{job}/{_OUTPUTS}/{epoch}")

    def keep_log(self, job: str, epoch: int, rank: int, end: bytes, first_epoch: int = 0) -> None:
        """Keep the end of a failed gang's log, in place of that of the one that failed before it.

        Raises:
            CheckpointError: the store cannot be asked, or refuses.
        """
        checked(job, epoch, 0)
        filesystem = self._places.of(job, claims=True).filesystem
        name = f"failed-{epoch}-rank-{rank}.log"
        filesystem.write(f"{job}/{name}", end[-LOG_BYTES:])
        for _, _, other in _logs(filesystem, job, first_epoch):
            if other != name:
                filesystem.remove(f"{job}/{other}")

    def kept_log(self, job: str, rank: int, first_epoch: int = 0) -> tuple[bytes, str] | None:
        """Give the end of a failed gang's log and its URL, if that of this rank was kept.

        Raises:
            CheckpointError: the store cannot be asked.
        """
        checked(job, 0, 0)
        filesystem = self._places.of(job).filesystem
        mine = [name for _, at, name in _logs(filesystem, job, first_epoch) if at == rank]
        if not mine:
            return None
        path = f"{job}/{mine[-1]}"
        try:
            return filesystem.read(path, LOG_BYTES), filesystem.address(path)
        except Damaged:
            return None

    def probe(self) -> float | None:
        """Write, read and delete a small object; give when, by the store's clock, it was written.

        In seconds since the Unix epoch; None if the store does not say.

        Raises:
            CheckpointError: the store cannot be used; the text says what to do.
        """
        name = f"{_PROBE}-{secrets.token_hex(8)}"  # others of the fleet may probe now
        try:
            self._filesystem.write(name, b"tidegate")
            self._filesystem.read(name, 100)
            written_s = self._filesystem.written_s(name)
        except CheckpointError:
            with suppress(CheckpointError):  # what went wrong first is told
                self._filesystem.remove(name)
            raise
        self._filesystem.remove(name)
        return written_s


def _logs(filesystem: Filesystem, job: str, first_epoch: int) -> list[tuple[int, int, str]]:
    """List the kept ends of logs of a job: epoch, rank and name, by these."""
    found = [match for name in filesystem.entries(job) if (match := _is_log(name)) is not None]
    logs = [(int(match[1] or 0), int(match[2]), match[0]) for match in found]
    return sorted(log for log in logs if log[0] >= first_epoch)


def _seal(
    catalogue: Catalogue, folder: str, manifest: Manifest, committed: Manifest | None
) -> Manifest:
    """Write the manifest, if there is none, and make sure that all is there with it."""
    address = catalogue.filesystem.address(folder)
    if committed is not None:
        if (committed.files, committed.empty_folders) != (
            manifest.files,
            manifest.empty_folders,
        ):
            raise OtherContent(
                f"{address}: is committed with other content; what is committed never "
                "changes: commit under another step or a higher epoch"
            )
        manifest = committed
    elif gone := missing(catalogue.filesystem, folder, manifest):
        raise CheckpointError(f"{address}: part {gone[0]} did not stay; commit again")
    else:
        data = encode(manifest)
        if len(data) > MAX_MANIFEST_BYTES:
            raise Unstorable(f"{address}: has too many files; pack them into fewer")
        catalogue.filesystem.write(f"{folder}/{MANIFEST}", data)
    if catalogue.manifest(folder) != manifest or missing(catalogue.filesystem, folder, manifest):
        raise CheckpointError(
            f"{address}: somebody else removed parts of it meanwhile; see that one agent "
            "alone runs the job, then commit again"
        )
    remove_partial_uploads(catalogue.filesystem, folder, manifest)
    return manifest
