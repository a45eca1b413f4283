"""The executor of any cluster: takes orders, gives reports, and works in a thread between them."""

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from cloud_agent.clusters.attempt import Cluster
from cloud_agent.clusters.folder import RECORDS, SharedFolder
from cloud_agent.clusters.gang import ClusterGang
from cloud_agent.clusters.gang_record import forget, load, write
from cloud_agent.options import ClusterOptions
from runtime.core import (
    CheckpointDone,
    GangFailed,
    GangProgress,
    KeepLease,
    Report,
    ScaleWorkers,
    StartWorkers,
)
from runtime.executors.fetching import epochs, job_folder
from runtime.executors.gang import GangOrder
from runtime.executors.gang_record import Final, GangRecord
from runtime.periodic import monotonic_s
from runtime.trees import remove_tree

_log = logging.getLogger(__name__)
#: For this long after an order the cluster is polled more often, to see its effect soon.
_FAST_S, _FAST_POLL_S = 30.0, 0.5
#: Without gangs the cluster is polled this often for orphaned jobs of ours.
_IDLE_POLL_S = 60.0
#: While there are gangs, the agent should call `advance` again this soon; a call costs little.
_ASK_S = 0.2
#: How many folders of ended runs of a job stay, for their logs.
_KEEP_RUNS = 20
_NO_RECORD = "the folder of runs has no record of it"

_Order = GangOrder | KeepLease


class ClusterExecutor:
    """Runs gangs on a cluster; they outlive the agent. Calls never wait: a thread does the work.

    While the cluster or the folder does not answer, no gang counts as ended. `close` ends the
    thread, and no gang.
    """

    def __init__(
        self, options: ClusterOptions, cluster: Cluster, remembered: Mapping[str, int] | None = None
    ) -> None:
        """Take over the gangs of an earlier agent of this name.

        Args:
            options: How gangs are run.
            cluster: Where they run.
            remembered: The jobs and epochs that the agent knows it ran. If there are any and the
                folder is not mounted yet, these jobs count as running until it is.

        Raises:
            ValueError: the gangs' records cannot be read.
            OSError: the folder cannot be used.
        """
        self._options, self._cluster = options, cluster
        self._folder = SharedFolder(options.root, remembered or {})
        self._remembered = dict(remembered or {})
        self._has_loaded = False
        self._records = options.root / RECORDS
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._orders: deque[tuple[_Order, float]] = deque()
        self._said: list[Report] = []
        self._given: list[Final | CheckpointDone] = []
        self._stored: deque[Final | CheckpointDone] = deque()
        self._progress: tuple[GangProgress, ...] = ()
        self._stuck: tuple[tuple[str, float], ...] = ()
        self._now_s, self._steady_s = 0.0, monotonic_s()
        self._gangs: dict[str, ClusterGang] = {}
        self._fast_until_s = monotonic_s() + _FAST_S
        self._is_busy = True
        self._broken: Exception | None = None
        if self._folder.look():
            self._load()
        self._found = tuple(sorted(self._gangs if self._has_loaded else self._remembered))
        self._thread = threading.Thread(target=self._work, name="cluster", daemon=True)
        self._has_begun = False

    @property
    def away(self) -> str | None:
        """Why the folder or the cluster does not answer; None: they do."""
        return self._folder.problem or self._cluster.away

    # --- asked by the agent ---

    def start(self, order: _Order, now_s: float) -> None:
        """Take an order of any kind; the thread carries it out."""
        with self._lock:
            self._orders.append((order, now_s))
            self._is_busy = True
        self._fast_until_s = monotonic_s() + _FAST_S
        self._set_time(now_s)
        self._wake.set()

    scale = checkpoint = stop = keep_lease = start

    def progress(self, now_s: float) -> Sequence[GangProgress]:
        return self._progress

    def advance(self, now_s: float) -> Sequence[Report]:
        self._set_time(now_s)
        with self._lock:
            # The agent asks again only after it has stored what the call before gave it.
            self._stored += self._given
            said, self._said = self._said, []
            self._given = [one for one in said if isinstance(one, Final | CheckpointDone)]
        if self._stored:
            self._wake.set()
        if self._broken is not None:
            raise RuntimeError("the thread of the executor has ended") from self._broken
        return said

    def next_due_s(self) -> float | None:
        return self._now_s + _ASK_S if self._is_busy else None

    def running(self) -> tuple[str, ...]:
        """Name every job that the agent has not stored the end of: its workers may still run."""
        return self._found

    def stuck(self, now_s: float) -> Sequence[tuple[str, float]]:
        """Give the jobs whose workers run and take no steps, and since when."""
        return self._stuck

    def close(self) -> None:
        """End the thread. The gangs go on; an executor that starts later takes them over."""
        self._ending.set()
        self._wake.set()
        self._cluster.close()
        while self._has_begun and self._thread.is_alive():
            self._thread.join(0.1)
            self._cluster.close()

    def _set_time(self, now_s: float) -> None:
        """Set the thread's clock by the agent's; start the thread at the first call."""
        self._now_s, self._steady_s = now_s, monotonic_s()
        if not self._has_begun:
            self._has_begun = True
            self._cluster.begin(self._wake.set)
            self._thread.start()

    def _report(self, report: Report) -> None:
        with self._lock:
            self._said.append(report)

    def _load(self) -> None:
        """Take over the recorded gangs."""
        self._gangs = {record.job: self._gang_of(record) for record in load(self._records)}
        self._has_loaded, self._is_busy = True, bool(self._gangs)
        for gang in self._gangs.values():
            gang.repeat()

    def _gang_of(self, record: GangRecord) -> ClusterGang:
        return ClusterGang(self._options, self._cluster, record, self._folder.id, self._report)

    def _load_late(self) -> None:
        """Take over the recorded gangs, now that the folder is mounted; report others as failed."""
        self._load()
        for job, epoch in sorted(self._remembered.items()):
            if job not in self._gangs:
                self._report(GangFailed(job, epoch, _NO_RECORD))

    # --- the thread ---

    def _work(self) -> None:
        while not self._ending.is_set():
            self._wake.clear()
            try:
                self._round()
            except OSError as error:
                _log.warning("the shared folder does not answer: %s", error)
            except Exception as error:  # noqa: BLE001 - raised again where the agent asks
                self._broken = error
                return
            self._wake.wait(self._pause_s())

    def _round(self) -> None:
        # The folder is taken over here and not when the executor is made: an agent that is started
        # only to say that another agent of its name runs must not take its folder away from it.
        if not (self._folder.look() and self._folder.take()):
            return
        if not self._has_loaded:
            self._load_late()
        # Orders come before stored reports. The core may have given a gang a new epoch before it
        # heard that the gang had ended. The gang then reports its end again under the new epoch, so
        # it must not be dropped because the report under the old epoch is stored.
        self._carry_out_orders()
        self._take_stored()
        self._cluster.look(self._folder.id)
        now_s = self._now_s + monotonic_s() - self._steady_s
        for job, gang in sorted(self._gangs.items()):
            try:
                gang.advance(now_s)
            except OSError as error:  # such as a job that made its folder unreadable
                _log.warning("job %s: its files cannot be used: %s", job, error)
        runs = (gang.run for gang in self._gangs.values())
        self._cluster.delete_orphans({run for run in runs if run is not None})
        progress = (gang.progress() for _, gang in sorted(self._gangs.items()))
        self._progress = tuple(one for one in progress if one is not None)
        since = ((job, gang.stuck_since_s) for job, gang in sorted(self._gangs.items()))
        self._stuck = tuple((job, since_s) for job, since_s in since if since_s is not None)
        with self._lock:
            self._is_busy = bool(self._gangs or self._orders or self._said)

    def _pause_s(self) -> float:
        poll_s = self._options.poll_s
        if not self._gangs and not self._orders and self._folder.problem is None:
            return _IDLE_POLL_S
        return min(poll_s, _FAST_POLL_S) if monotonic_s() < self._fast_until_s else poll_s

    def _take_stored(self) -> None:
        """Drop gangs whose end the agent has stored, and checkpoints older than a stored one.

        What fails now is tried again in the next round.
        """
        again: list[Final | CheckpointDone] = []
        while self._stored:
            report = self._stored.popleft()
            gang = self._gangs.get(report.job)
            try:
                if gang is None:
                    continue
                if isinstance(report, CheckpointDone):
                    gang.checkpoints.stored(report)
                elif gang.record.final == report:
                    self._forget(report.job)
            except OSError as error:
                _log.warning("job %s: its record cannot be changed: %s", report.job, error)
                again.append(report)
        self._stored += again

    def _forget(self, job: str) -> None:
        forget(self._records, job)
        del self._gangs[job]
        folder = job_folder(self._options.root, job)
        remove_tree(folder / "fetched")
        for epoch in epochs(folder)[_KEEP_RUNS:]:
            remove_tree(folder / str(epoch))

    def _carry_out_orders(self) -> None:
        """Carry out what was ordered; what cannot be recorded is tried again in the next round.

        An order that fails holds back later orders of the same job, and no other job's: even if the
        folder is full, other jobs can be stopped and the lease can be renewed. The exception is a
        lease whose end cannot be recorded: until it is, no gang is started.
        """
        with self._lock:
            orders, self._orders = self._orders, deque()
        left: list[tuple[_Order, float]] = []
        stuck: set[str | None] = set()
        for order, said_s in orders:
            job = None if isinstance(order, KeepLease) else order.job
            if stuck.isdisjoint({job, None} if isinstance(order, StartWorkers) else {job}):
                try:
                    self._carry_out(order, said_s)
                    continue
                except OSError as error:
                    what = "the lease" if job is None else f"job {job}"
                    _log.warning("%s: an order cannot be recorded: %s", what, error)
            stuck.add(job)
            left.append((order, said_s))
        with self._lock:
            self._orders.extendleft(reversed(left))

    def _carry_out(self, order: _Order, said_s: float) -> None:
        gang = None if isinstance(order, KeepLease) else self._gangs.get(order.job)
        if isinstance(order, KeepLease):
            self._cluster.keep_lease(order.until_s, order.grace_s)
        elif isinstance(order, StartWorkers):
            self._take(order, gang, said_s)
        elif gang is not None:
            gang.take(order, said_s)
        elif isinstance(order, ScaleWorkers):
            # No gang of the job is known here. The core takes it to run under this epoch and would
            # wait for its end, so say that it has failed.
            self._report(GangFailed(order.job, order.epoch, _NO_RECORD))

    def _take(self, order: StartWorkers, known: ClusterGang | None, said_s: float) -> None:
        """Record a new gang. If the gang is known, the order came again or has a newer epoch."""
        program, why = order.spec.program, ""
        if program is None:
            why = "program: the job does not say what its workers run; submit it with a command"
        elif program.code is not None:
            why = (
                "code: agents of clusters fetch none; put it where the nodes have it and name that "
                "folder in workdir, or put it into the image"
            )
        elif program.outputs:
            why = "outputs: agents of clusters keep none; let the job write them where they belong"
        if why:
            self._report(GangFailed(order.job, order.epoch, why, False, ran=False))
            return
        if known is not None and known.record.final is None:
            known.take(order, said_s)
            return
        record = GangRecord(order.job, order.epoch, order.placement, order.spec, order.step)
        write(record, self._records)
        self._gangs[order.job] = self._gang_of(record)
