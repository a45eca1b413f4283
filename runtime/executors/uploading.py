"""Uploads the checkpoints of a job to the store: one at a time, always the newest.

Uploads and downloads run in their own threads; the executor polls them.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from runtime.checkpoints.errors import OtherContent, Unstorable
from runtime.checkpoints.store import Checkpoint, CheckpointError
from runtime.core import CheckpointDone
from runtime.durable import write_json
from runtime.executors.folder import CHECKPOINTS, COMMITTED
from runtime.executors.local_checkpoints import (
    CheckpointSync,
    has_unstored_result,
    owner_of,
    run_folders,
)
from runtime.executors.options import ExecutorOptions
from runtime.executors.progress import AnnouncedCheckpoint
from runtime.executors.removing import Removals
from runtime.periodic import monotonic_s
from runtime.threads import in_thread

_MIB = 1024 * 1024
#: The longest wait between two tries of an upload.
_WAIT_MAX_S = 60.0
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """A checkpoint on the local disk."""

    #: The run that wrote it: its folder and its epoch.
    run: Path
    epoch: int
    announced: AnnouncedCheckpoint
    offered_s: float

    @property
    def step(self) -> int:
        """Steps done in it."""
        return self.announced.step


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A checkpoint is in the store, and so durable."""

    checkpoint: LocalCheckpoint
    uri: str
    size_mib: int
    cost_s: float

    def report(self, job: str, epoch: int) -> CheckpointDone:
        """Say so to the agent's core, under an epoch."""
        step = self.checkpoint.step
        return CheckpointDone(job, epoch, step, self.uri, self.size_mib, self.cost_s)


@dataclass(frozen=True, slots=True)
class UploadFailed:
    """A checkpoint could not be uploaded."""

    error: str


@dataclass(slots=True)
class _Upload:
    checkpoint: LocalCheckpoint
    begun_s: float  #: By the monotonic clock.
    stop: threading.Event
    future: "Future[Checkpoint]"


class CheckpointUploader:
    """Uploads the checkpoints of one job."""

    def __init__(
        self, options: ExecutorOptions, job: str, committed_step: int, first_epoch: int = 0
    ) -> None:
        """Begin with `committed_step` in the store; 0: there is no checkpoint."""
        self._job, self._store, self._first_epoch = job, options.store, first_epoch
        self._retention = options.checkpoint_retention
        #: The newest step that is in the store.
        self.step = committed_step
        self._reported = committed_step
        #: The newest checkpoint on the local disk, uploaded or not.
        self.newest: LocalCheckpoint | None = None
        self._on_disk: list[LocalCheckpoint] = []
        self._sync, self._removals = CheckpointSync(), Removals()
        self._upload: _Upload | None = None
        self._waiting: LocalCheckpoint | None = None
        #: What can never be uploaded, and why.
        self._refused: tuple[LocalCheckpoint, str] | None = None
        self._again_s = 0.0
        self._wait_s = 1.0
        self._until_s = -math.inf

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being uploaded, or waits for it."""
        return self._upload is not None or self._waiting is not None

    @property
    def newest_is_durable(self) -> bool:
        """Whether the newest checkpoint is in the store, or there is none here to upload."""
        return self.newest_here() is None or self.newest is None or self.newest.step <= self.step

    @property
    def why_never_durable(self) -> str | None:
        """Why the newest checkpoint can never be uploaded; None: it can be, as far as is known."""
        refused, why = self._refused or (None, None)
        return why if refused is self.newest else None

    @property
    def runs(self) -> set[Path]:
        """Folders of the runs whose checkpoints are retained or being uploaded."""
        return {checkpoint.run for checkpoint in self._on_disk}

    def newest_here(self) -> tuple[int, Path] | None:
        """Give step and path of the newest checkpoint on the local disk, uploaded or not."""
        if self.newest is None or not self.newest.announced.is_there:
            return None
        return self.newest.step, self.newest.announced.path

    def add(self, checkpoint: LocalCheckpoint) -> None:
        """Upload and sync this one, too; of several that wait, only the newest is uploaded."""
        step, path = checkpoint.step, checkpoint.announced.path
        self._on_disk = [
            one for one in self._on_disk if (one.step, one.announced.path) != (step, path)
        ]
        self._on_disk.append(checkpoint)
        if self.newest is None or step >= self.newest.step:
            self.newest = checkpoint
        under_way = self._upload.checkpoint.step if self._upload is not None else -1
        if step > max(self.step, under_way):
            self._waiting = checkpoint
        self._sync.sync(checkpoint.run, step, path)
        self._tidy()

    def retry_until(self, until_s: float) -> None:
        """Retry failing uploads until this time: there will be no later checkpoint."""
        self._until_s = until_s
        if not self.busy and not self.newest_is_durable:
            self._waiting = self.newest

    def advance(self, now_s: float) -> Uploaded | UploadFailed | None:
        """Begin a waiting upload; give the outcome of one that has ended."""
        result = None
        if self._upload is not None and self._upload.future.done():
            upload, self._upload = self._upload, None
            result = self._ended(upload, now_s)
        if self._upload is None and self._waiting is not None and now_s >= self._again_s:
            checkpoint, self._waiting = self._waiting, None
            self._begin(checkpoint)
        return result

    def reported(self, uploaded: Uploaded) -> None:
        """Note that the agent has stored the report of this upload.

        Raises:
            OSError: that cannot be recorded; the next agent reports it again.
        """
        checkpoint = uploaded.checkpoint
        self._reported = max(self._reported, checkpoint.step)
        record = {
            "step": checkpoint.step,
            "path": str(checkpoint.announced.path),
            "uri": uploaded.uri,
        }
        write_json(checkpoint.run / COMMITTED, record)

    def abandon(self) -> None:
        """Give up all uploads."""
        self._waiting = None
        if self._upload is not None:
            self._upload.stop.set()
            self._upload = None

    def _begin(self, checkpoint: LocalCheckpoint) -> None:
        stop = threading.Event()
        step, source = checkpoint.step, checkpoint.announced.path
        user = owner_of(checkpoint.run)
        needed = (self._reported,)  # a job that is started now is started from there

        def work() -> Checkpoint:
            try:
                stored = self._store.commit(
                    self._job,
                    checkpoint.epoch,
                    step,
                    source,
                    checkpoint.offered_s,
                    stop=stop,
                    user=user,
                    within=checkpoint.run,
                )
            except OtherContent:
                # It was stored before the agent or its machine went down, and the job wrote it
                # once more since.
                there = self._store.find(self._job, step, self._first_epoch)
                if there is None or there.epoch != checkpoint.epoch:
                    raise
                stored = there
            with contextlib.suppress(CheckpointError):  # tried again with the next checkpoint
                self._store.retain(self._job, self._retention, needed, self._first_epoch)
            return stored

        self._upload = _Upload(checkpoint, monotonic_s(), stop, in_thread(work))

    def _ended(self, upload: _Upload, now_s: float) -> Uploaded | UploadFailed | None:
        error = upload.future.exception()
        step = upload.checkpoint.step
        if error is None:
            stored = upload.future.result()
            self.step = max(self.step, step)
            self._again_s, self._wait_s = 0.0, 1.0
            self._tidy()
            pause_s = upload.checkpoint.announced.pause_s
            # Not by the time of day, which may be set meanwhile, by years after a boot.
            cost_s = monotonic_s() - upload.begun_s if pause_s is None else pause_s
            return Uploaded(
                upload.checkpoint, stored.uri, math.ceil(stored.size_bytes / _MIB), cost_s
            )
        # A job's file may have a name that is no Unicode, and no record can hold.
        said = f"checkpoint of step {step}: {error}".encode(errors="backslashreplace").decode()
        if isinstance(error, Unstorable):
            self._refused = upload.checkpoint, said
        elif now_s < self._until_s and upload.checkpoint.announced.is_there:
            self._waiting = self._waiting or upload.checkpoint
            _log.warning(
                "job %s: its last checkpoint, of step %d, was not uploaded, next try in %g s: %s",
                self._job,
                step,
                self._wait_s,
                error,
            )
            self._again_s = now_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, _WAIT_MAX_S)
            return None
        return UploadFailed(said)

    def _tidy(self) -> None:
        """Remove old checkpoints from the local disk, whether uploaded or not.

        A store that cannot be reached for hours must not fill the disk.
        """
        by_step = sorted(self._on_disk, key=lambda checkpoint: checkpoint.step)
        durable = [checkpoint for checkpoint in by_step if checkpoint.step <= self.step]
        others = [checkpoint for checkpoint in by_step if checkpoint.step > self.step]
        needed = [self._waiting, None if self._upload is None else self._upload.checkpoint]
        old = durable[: -self._retention]
        old += [
            checkpoint
            for checkpoint in others[: -max(2, self._retention)]
            if checkpoint not in needed
        ]
        self._on_disk = [checkpoint for checkpoint in self._on_disk if checkpoint not in old]
        # A job may reuse one name, so an old checkpoint may have the path of one that stays.
        kept = {checkpoint.announced.path for checkpoint in self._on_disk}
        users = {
            checkpoint.announced.path: owner_of(checkpoint.run)
            for checkpoint in old
            if checkpoint.announced.path not in kept
        }
        if len(durable) >= self._retention:
            # Of a run that was set aside we know what the gang began from, not what is older.
            with contextlib.suppress(OSError):  # they go the next time
                users |= {run / CHECKPOINTS: None for run in self._aside(durable[-1].run.parent)}
        self._removals.remove(users)

    def _aside(self, job: Path) -> Iterator[Path]:
        """Find the runs set aside whose checkpoints nobody needs."""
        for run in run_folders(job):
            if "." in run.name and run not in self.runs and not has_unstored_result(run):
                if (run / CHECKPOINTS).exists():
                    yield run
