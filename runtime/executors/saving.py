"""How checkpoints of a job become durable: one upload at a time, of the newest.

Uploads and downloads run in threads of their own; the executor looks at them from time to time.
"""

import contextlib
import logging
import math
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from runtime.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore
from runtime.executors.folder import CHECKPOINTS, COMMITTED, write_json
from runtime.executors.kept import Keeper, owner_of, run_folders, unstored_result
from runtime.executors.progress import Announced
from runtime.identity import as_user

_MIB = 1024 * 1024
#: A store that is back is noticed within this.
_WAIT_MAX_S = 60.0
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def in_thread(work: Callable[[], _T]) -> "Future[_T]":
    """Do it in a thread that does not keep the process from ending."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whoever waits for the future learns of it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


@dataclass(frozen=True, slots=True)
class Offer:
    """A checkpoint on the local disk."""

    #: The run that wrote it: its folder and its epoch.
    run: Path
    epoch: int
    announced: Announced
    offered_s: float

    @property
    def step(self) -> int:
        """Steps done in it."""
        return self.announced.step


@dataclass(frozen=True, slots=True)
class Committed:
    """It is durable."""

    offer: Offer
    uri: str
    size_mib: int
    cost_s: float


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """It could not be made durable."""

    error: str


@dataclass(slots=True)
class _Upload:
    offer: Offer
    begun_s: float
    stop: threading.Event
    future: "Future[Checkpoint]"


class Saver:
    """Makes the checkpoints of one job durable."""

    def __init__(self, job: str, store: CheckpointStore, keep: int, committed_step: int) -> None:
        """Begin with `committed_step` durable; 0: nothing has to be."""
        self._job, self._store, self._keep = job, store, keep
        #: The newest step that is durable.
        self.step = committed_step
        self._reported = committed_step
        #: The newest checkpoint on the local disk, durable or not.
        self.newest: Offer | None = None
        self._on_disk: list[Offer] = []
        self._keeper = Keeper()
        self._upload: _Upload | None = None
        self._waiting: Offer | None = None
        self._again_s = 0.0
        self._wait_s = 1.0
        self._until_s = -math.inf

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is on its way, or waits to be."""
        return self._upload is not None or self._waiting is not None

    @property
    def is_safe(self) -> bool:
        """Whether the newest checkpoint is durable, or none is here that could be."""
        return self.newest_here() is None or self.newest is None or self.newest.step <= self.step

    @property
    def runs(self) -> set[Path]:
        """Folders of the runs whose checkpoints are retained, or on their way."""
        return {offer.run for offer in self._on_disk}

    def newest_here(self) -> tuple[int, Path] | None:
        """Give step and path of the newest checkpoint on the local disk, durable or not yet."""
        if self.newest is None or not self.newest.announced.path.exists():
            return None
        return self.newest.step, self.newest.announced.path

    def offer(self, offer: Offer) -> None:
        """Make this one durable too; of several that wait, the newest alone is."""
        step, path = offer.step, offer.announced.path
        self._on_disk = [
            one for one in self._on_disk if (one.step, one.announced.path) != (step, path)
        ]
        self._on_disk.append(offer)
        if self.newest is None or step >= self.newest.step:
            self.newest = offer
        under_way = self._upload.offer.step if self._upload is not None else -1
        if step > max(self.step, under_way):
            self._waiting = offer
        self._keeper.keep(offer.run, step, path)
        self._tidy()

    def insist(self, until_s: float) -> None:
        """Try again what fails, or failed, until the moment: it is the last chance."""
        self._until_s = until_s
        if not self.busy and not self.is_safe:
            self._waiting = self.newest

    def advance(self, now_s: float) -> Committed | NotCommitted | None:
        """Begin what waits; give what became of what was under way."""
        result = None
        if self._upload is not None and self._upload.future.done():
            upload, self._upload = self._upload, None
            result = self._ended(upload, now_s)
        if self._upload is None and self._waiting is not None and now_s >= self._again_s:
            offer, self._waiting = self._waiting, None
            self._begin(offer, now_s)
        return result

    def reported(self, committed: Committed) -> None:
        """Take note that it was reported, and that the report is written down.

        Raises:
            OSError: the note cannot be written; the next agent reports it again.
        """
        offer = committed.offer
        self._reported = max(self._reported, offer.step)
        record = {"step": offer.step, "path": str(offer.announced.path), "uri": committed.uri}
        write_json(offer.run / COMMITTED, record)

    def abandon(self) -> None:
        """Give up what is not durable yet."""
        self._waiting = None
        if self._upload is not None:
            self._upload.stop.set()
            self._upload = None

    def _begin(self, offer: Offer, now_s: float) -> None:
        stop = threading.Event()
        step, source = offer.step, offer.announced.path
        user = owner_of(offer.run)
        needed = (self._reported,)  # whoever goes on now goes on from there

        def work() -> Checkpoint:
            stored = self._store.commit(
                self._job, offer.epoch, step, source, offer.offered_s, stop=stop, user=user
            )
            with contextlib.suppress(CheckpointError):  # what is too many now goes the next time
                self._store.retain(self._job, self._keep, needed)
            return stored

        self._upload = _Upload(offer, now_s, stop, in_thread(work))

    def _ended(self, upload: _Upload, now_s: float) -> Committed | NotCommitted | None:
        error = upload.future.exception()
        step = upload.offer.step
        if error is None:
            stored = upload.future.result()
            self.step = max(self.step, step)
            self._again_s, self._wait_s = 0.0, 1.0
            self._tidy()
            pause_s = upload.offer.announced.pause_s
            cost_s = max(0.0, now_s - upload.begun_s) if pause_s is None else pause_s
            return Committed(upload.offer, stored.uri, math.ceil(stored.size_bytes / _MIB), cost_s)
        if now_s < self._until_s and upload.offer.announced.path.exists():
            self._waiting = self._waiting or upload.offer
            _log.warning(
                "job %s: its last checkpoint, of step %d, is not stored, tried again in %g s: %s",
                self._job,
                step,
                self._wait_s,
                error,
            )
            self._again_s = now_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, _WAIT_MAX_S)
            return None
        return NotCommitted(f"checkpoint of step {step}: {error}")

    def _tidy(self) -> None:
        """Remove from the local disk what is older than the newest, durable ones and others.

        The others: a store that cannot be reached for hours must not fill the disk.
        """
        by_step = sorted(self._on_disk, key=lambda offer: offer.step)
        durable = [offer for offer in by_step if offer.step <= self.step]
        others = [offer for offer in by_step if offer.step > self.step]
        needed = [self._waiting, None if self._upload is None else self._upload.offer]
        old = durable[: -self._keep]
        old += [offer for offer in others[: -max(2, self._keep)] if offer not in needed]
        self._on_disk = [offer for offer in self._on_disk if offer not in old]
        # A job may write to one name again and again; what is kept may have the same.
        kept = {offer.announced.path for offer in self._on_disk}
        users = {
            offer.announced.path: owner_of(offer.run)
            for offer in old
            if offer.announced.path not in kept
        }
        if len(durable) >= self._keep:
            # Of a run that was put aside we know what the gang began from, not what is older.
            with contextlib.suppress(OSError):  # they go the next time
                users |= {run / CHECKPOINTS: None for run in self._aside(durable[-1].run.parent)}
        if users:
            in_thread(lambda: _remove(users))

    def _aside(self, job: Path) -> Iterator[Path]:
        """Find the runs put aside whose checkpoints nobody needs."""
        for run in run_folders(job):
            if "." in run.name and run not in self.runs and not unstored_result(run):
                if (run / CHECKPOINTS).exists():
                    yield run


def _remove(users: Mapping[Path, int | None]) -> None:
    for path, user in users.items():
        with as_user(user), contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
