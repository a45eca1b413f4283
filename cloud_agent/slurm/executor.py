"""Runs gangs as Slurm jobs.

A gang is one Slurm job, marked in its comment with agent, job and epoch. Tidegate chooses the
nodes and how many GPUs of each; which devices these are is Slurm's choice, and that nobody else
has them is Slurm's to enforce (`gres`). GPU indices in a placement are therefore counts here.

A gang runs once under an epoch, whatever is submitted, requeued or answered late: the batch script
takes a fence in the run folder first, and the agent takes the same fence before it gives a gang up
that has not begun (see `scripts`). Jobs of the agent's that it does not hold are cancelled.

A change of size is a new Slurm job: the workers save and leave, the next ones go on from there.
Programs that resize in place are restarted too.
"""

import logging
import shutil
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait

from cloud_agent.slurm.attempt import Listing
from cloud_agent.slurm.commands import Slurm, SlurmError, SlurmJob, by_gang
from cloud_agent.slurm.gang import Gang, Site
from cloud_agent.slurm.held import Final, Held, forget, load
from cloud_agent.slurm.options import SlurmOptions
from runtime.core import (
    CheckpointDone,
    CheckpointWorkers,
    GangFailed,
    GangProgress,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.executors.fetching import epochs, job_folder
from runtime.executors.saving import in_thread
from runtime.metering.beat import steady_s

_log = logging.getLogger(__name__)
#: For so long after an order Slurm is asked more often, so that its effect is seen soon.
_HURRY_S, _HURRY_POLL_S = 30.0, 0.5
#: With nothing held, Slurm is asked this often whether a job of ours is left.
_IDLE_POLL_S = 60.0
#: The agent should ask again this soon while a gang is held; asking costs no more than a look.
_ASK_S = 0.2
#: Folders of ended runs of a job that stay, for their logs.
_KEEP_RUNS = 20

_Order = StartWorkers | ScaleWorkers | CheckpointWorkers | StopWorkers


class SlurmExecutor:
    """Runs gangs on a Slurm cluster; they outlive the agent. Never waits: a thread does the work.

    While Slurm does not answer, nothing is concluded and nothing submitted; what is observed
    converges when it is back. `close` ends the thread, and no gang.
    """

    def __init__(self, options: SlurmOptions) -> None:
        """Take over what an earlier agent of this name held.

        Raises:
            ValueError: the files of what is held cannot be read.
        """
        self._options = options
        self._slurm = Slurm(options)
        self._site = Site(options, self._slurm, self._say)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._orders: deque[tuple[_Order, float]] = deque()
        self._said: list[Report] = []
        self._given: list[Final | CheckpointDone] = []
        self._stored: deque[Final | CheckpointDone] = deque()
        self._progress: tuple[GangProgress, ...] = ()
        self._now_s, self._steady_s = 0.0, steady_s()
        self._gangs = {held.job: Gang(self._site, held) for held in load(self._site.held)}
        self._hurry_until_s = steady_s() + _HURRY_S
        self._found = tuple(sorted(self._gangs))
        self._is_busy = bool(self._gangs)
        self._asked: Future[list[SlurmJob]] | None = None
        self._broken: Exception | None = None
        #: Why Slurm does not answer; None: it does.
        self.away: str | None = None
        for gang in self._gangs.values():
            gang.repeat()
        self._thread = threading.Thread(target=self._work, name="slurm", daemon=True)
        self._has_begun = False

    # --- asked by the agent ---

    def start(self, order: StartWorkers, now_s: float) -> None:
        self._tell(order, now_s)

    def scale(self, order: ScaleWorkers, now_s: float) -> None:
        self._tell(order, now_s)

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        self._tell(order, now_s)

    def stop(self, order: StopWorkers, now_s: float) -> None:
        self._tell(order, now_s)

    def progress(self, now_s: float) -> Sequence[GangProgress]:
        return self._progress

    def advance(self, now_s: float) -> Sequence[Report]:
        self._meet(now_s)
        with self._lock:
            # Asked again, the agent has stored what it was given before.
            self._stored += self._given
            said, self._said = self._said, []
            self._given = [one for one in said if isinstance(one, Final | CheckpointDone)]
        if self._stored:
            self._wake.set()
        if self._broken is not None:
            raise RuntimeError("the thread that speaks with Slurm has ended") from self._broken
        return said

    def next_due_s(self) -> float | None:
        return self._now_s + _ASK_S if self._is_busy else None

    def running(self) -> tuple[str, ...]:
        """Every job whose end is not stored: its workers live, or Slurm may yet begin them."""
        return self._found

    def close(self) -> None:
        """End the thread; the gangs go on, and the next executor of this name finds them."""
        self._ending.set()
        self._wake.set()
        while self._has_begun and self._thread.is_alive():
            self._slurm.interrupt()
            self._thread.join(0.1)

    def _tell(self, order: _Order, now_s: float) -> None:
        with self._lock:
            self._orders.append((order, now_s))
            self._is_busy = True
        self._hurry_until_s = steady_s() + _HURRY_S
        self._meet(now_s)
        self._wake.set()

    def _meet(self, now_s: float) -> None:
        """Learn what time it is; the thread begins when first asked anything."""
        self._now_s, self._steady_s = now_s, steady_s()
        if not self._has_begun:
            self._has_begun = True
            self._thread.start()

    def _say(self, report: Report) -> None:
        with self._lock:
            self._said.append(report)

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
        self._take_stored()
        self._obey()
        listing = self._list()
        now_s = self._present_s()
        for _, gang in sorted(self._gangs.items()):
            gang.turn(listing, now_s)
        self._cancel_strays(listing)
        progress = (gang.progress() for _, gang in sorted(self._gangs.items()))
        self._progress = tuple(one for one in progress if one is not None)
        with self._lock:
            self._is_busy = bool(self._gangs or self._orders or self._said)

    def _pause_s(self) -> float:
        poll_s = self._options.poll_s
        if not self._gangs:
            return _IDLE_POLL_S
        return min(poll_s, _HURRY_POLL_S) if steady_s() < self._hurry_until_s else poll_s

    def _present_s(self) -> float:
        return self._now_s + steady_s() - self._steady_s

    def _take_stored(self) -> None:
        """Let go of gangs whose end is stored, and of what else was kept until it was."""
        while self._stored:
            report = self._stored.popleft()
            gang = self._gangs.get(report.job)
            if gang is None:
                continue
            if isinstance(report, CheckpointDone):
                gang.stored(report)
            elif gang.held.final == report:
                self._forget(report.job)

    def _forget(self, job: str) -> None:
        forget(self._site.held, job)
        del self._gangs[job]
        folder = job_folder(self._options.root, job)
        shutil.rmtree(folder / "fetched", ignore_errors=True)
        for epoch in epochs(folder)[_KEEP_RUNS:]:
            shutil.rmtree(folder / str(epoch), ignore_errors=True)

    def _obey(self) -> None:
        while self._orders:
            order, said_s = self._orders[0]
            gang = self._gangs.get(order.job)
            if isinstance(order, StartWorkers):
                self._take(order, gang, said_s)
            elif gang is not None and isinstance(order, ScaleWorkers):
                gang.scale(order)
            elif gang is not None and isinstance(order, CheckpointWorkers):
                gang.checkpoint(order, said_s)
            elif gang is not None:
                assert isinstance(order, StopWorkers)
                gang.stop(order, said_s)
            self._orders.popleft()  # only now: one that could not be written down is tried again

    def _take(self, order: StartWorkers, known: Gang | None, said_s: float) -> None:
        """Write a new gang down; what is held already is the same order said again."""
        if order.spec.program is None:
            self._say(
                GangFailed(
                    order.job,
                    order.epoch,
                    "program: the job does not say what its workers run; submit it with a command",
                    retriable=False,
                )
            )
            return
        if known is not None and known.held.final is None:
            known.start_anew(order, said_s)
            return
        held = Held(order.job, order.epoch, order.placement, order.spec, order.step)
        held.write(self._site.held)
        self._gangs[order.job] = Gang(self._site, held)

    def _list(self) -> Listing:
        """Give a fresh listing; None as long as Slurm is still asked, or if it does not answer.

        It is asked in a thread, so that the runs' own files are read meanwhile. Nothing is
        submitted meanwhile: that takes a listing.
        """
        if self._asked is None:
            self._asked = in_thread(self._slurm.jobs)
        wait([self._asked], self._options.poll_s)
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        try:
            jobs = asked.result()
        except SlurmError as error:
            if self.away is None:
                _log.warning("Slurm does not answer: %s", error)
            self.away = str(error)
            return None
        self.away = None
        return by_gang(jobs)

    def _cancel_strays(self, listing: Listing) -> None:
        """End what runs under our name and is not held: of an older epoch, or submitted late."""
        held = {gang.run for gang in self._gangs.values()}
        strays: list[SlurmJob] = []
        for which, jobs in (listing or {}).items():
            strays += [one for one in jobs if which not in held and not one.ended]
        for one in strays:
            try:
                self._slurm.cancel(one.id)
            except SlurmError:
                return  # it is listed again
