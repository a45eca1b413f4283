"""One gang as a machine of states, driven by `advance`.

fetching    its checkpoint is brought here
launching   its workers live, none has said that it took a step
running     they train
leaving     they were asked to leave, for good or for a change of size
between     they have left for a change of size that the agent, restarted, must be told again
uploading   they are gone; the last checkpoint gets the time it may have
over        all is said
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from runtime.core import (
    CheckpointDone,
    CheckpointLost,
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStarted,
    GangStopped,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    WorkersLeft,
)
from runtime.core.state import without
from runtime.executors.fetching import Fetch
from runtime.executors.live import Live
from runtime.executors.options import ProcessOptions
from runtime.executors.runs import Order, Run, Why
from runtime.executors.saving import Committed, Saver

Phase = Literal["fetching", "launching", "running", "leaving", "between", "uploading", "over"]

#: Workers that should be gone for so long are ended without their supervisor's help.
_OVERDUE_S = 10.0
#: The agent core says its wishes again at once after a restart.
_BETWEEN_S = 60.0
#: The last checkpoint of a completed job is its result: it is tried again for this long.
_RESULT_S = 600.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stop:
    deadline_s: float
    saves: bool


class Gang:
    """The workers of one job on this machine, whatever their epoch."""

    def __init__(self, options: ProcessOptions, order: StartWorkers | Order, saver: Saver) -> None:
        """Use `begun` or `adopted`."""
        self.job, self.epoch, self.placement = order.job, order.epoch, order.placement
        self.phase: Phase = "fetching"
        self.live: Live | None = None
        #: Runs of before: their workers are gone, perhaps not all their checkpoints are durable.
        self.older: list[Live] = []
        #: What to do once the reports given so far are written down.
        self.settling: list[Callable[[], None]] = []
        self._options, self._spec, self._saver = options, order.spec, saver
        self._now_s = -math.inf  # the moment of the present call
        self._said: list[Report] = []
        self._fetch: Fetch | None = None
        self._stop: _Stop | None = None
        self._anew: StartWorkers | None = None
        self._given_up: list[int] = []
        self._left: tuple[int, ...] = ()
        self._due_s = math.inf
        self._save_by_s: float | None = None
        self._final: Callable[[], Report] | None = None

    @classmethod
    def begun(cls, options: ProcessOptions, order: StartWorkers, now_s: float) -> "Gang":
        """Begin what the order asks for."""
        gang = cls(options, order, Saver(order.job, options.store, options.keep, order.step))
        gang._now_s = now_s
        gang._begin(order.step)
        return gang

    @classmethod
    def adopted(cls, options: ProcessOptions, run: Run, older: Sequence[Run]) -> "Gang":
        """Go on with a run that an agent of before began; `older` are those it was scaled from."""
        order = run.order
        durable = [said["step"] for one in (run, *older) if (said := one.committed()) is not None]
        step = max([order.committed_step, *durable])
        gang = cls(options, order, Saver(order.job, options.store, options.keep, step))
        gang.older = [Live(options, one) for one in older]
        gang._left = order.left
        # Said again, for the agent may have died before it was written down.
        gang._said += [WorkersLeft(order.job, epoch, order.step) for epoch in order.left]
        gang.live, asked = Live(options, run), run.asked_to()
        gang.phase = "launching" if asked is None else "leaving"
        if asked is None and not run.was_begun:
            gang._launch_run(run)
        return gang

    # --- what others may see ---

    @property
    def waits(self) -> bool:
        """Whether something is under way that ends soon."""
        return self.phase != "running" or self._saver.busy or self._save_by_s is not None

    @property
    def result_is_safe(self) -> bool:
        """Whether the job is complete, and its newest checkpoint durable."""
        return self._final == self._completed and self._saver.is_safe

    def progress(self) -> GangProgress | None:
        """How far it is; None before the first step, and of one that does not say."""
        return self.live.progress(self.epoch) if self.live and self.phase == "running" else None

    # --- orders ---

    def start(self, order: StartWorkers, now_s: float) -> None:
        """Begin anew; what ran before is none of the agent's any more."""
        if order.epoch <= self.epoch:
            return
        self._now_s, self._anew = now_s, order
        self.epoch, self.placement = order.epoch, order.placement
        if self.phase in ("launching", "running", "leaving"):
            self._ask_to_leave(0.0, kill=True, why="stop")
        else:
            self._begin_anew(order)

    def scale(self, order: ScaleWorkers, now_s: float) -> None:
        """Go on with these GPUs: the workers save, leave, and begin anew."""
        if order.epoch <= self.epoch:
            return
        self._now_s = now_s
        if without(self.placement, order.placement):
            self._given_up.append(self.epoch)
        self.epoch, self.placement = order.epoch, order.placement
        if self.phase in ("launching", "running"):
            self._ask_to_leave(self._options.grace_s, kill=False, why="scale")
        elif self.phase == "between":
            self._resize()
        elif self.phase == "fetching":
            self._say_left()

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        """Have a checkpoint written; whatever comes of it is the answer."""
        self.epoch = max(self.epoch, order.epoch)
        if self._save_by_s is not None:
            return
        self._save_by_s = now_s + self._options.save_s
        if self.live is not None and self.phase == "running":
            self._ask_to_save(self.live)

    def stop(self, order: StopWorkers, now_s: float) -> None:
        """Leave for good; asked again, only ever sooner and harder."""
        self._now_s, self._anew, self.epoch = now_s, None, max(self.epoch, order.epoch)
        stop = self._stop or _Stop(math.inf, saves=True)
        stop.deadline_s = min(stop.deadline_s, now_s + order.grace_s)
        stop.saves = stop.saves and order.checkpoint
        self._stop = stop
        if self.phase in ("launching", "running", "leaving"):
            left_s = max(0.0, stop.deadline_s - now_s)
            self._ask_to_leave(left_s, kill=not stop.saves, why="stop")
        elif self.phase != "over":
            if self._fetch is not None:
                self._fetch.cancel.set()
            if self._final is None:
                self._end(self._stopped, self._upload_until_s())
            self._due_s = min(self._due_s, self._upload_until_s())

    # --- time ---

    def advance(self, now_s: float) -> list[Report]:
        """Give what has happened since the last call, in order."""
        self._now_s = now_s
        self._read()
        while True:
            before = self.phase
            self._look()
            if self.phase in (before, "over"):
                break
        if self._save_by_s is not None and now_s >= self._save_by_s:
            self._lose(f"the job wrote no checkpoint within {self._options.save_s:g} s")
        said, self._said = self._said, []
        return said

    def abandon(self) -> None:
        """Let go of transfers; the workers live on."""
        self._saver.abandon()
        if self._fetch is not None:
            self._fetch.cancel.set()

    def _read(self) -> None:
        """Read what the workers say, and make durable what they announce."""
        for live in (*self.older, self.live):
            for offer in live.offers(self._now_s) if live is not None else ():
                self._saver.offer(offer)

    def _look(self) -> None:
        outcome = self._saver.advance(self._now_s)
        if isinstance(outcome, Committed):
            self._say_saved(outcome)
        elif outcome is not None:
            self._lose(outcome.error)
        if self.phase == "fetching" and self._fetch is not None:
            self._look_at_fetch(self._fetch)
        elif self.phase == "between" and self._now_s >= self._due_s:
            self._fail("the agent was restarted while the gang changed its size")
        elif self.phase == "uploading":
            self._look_at_upload()
        elif self.live is not None and self.phase == "leaving":
            self._look_at_leavers(self.live)
        elif self.live is not None and self.phase in ("launching", "running"):
            self._look_at_workers(self.live)

    def _look_at_fetch(self, fetch: Fetch) -> None:
        if not fetch.future.done():
            return
        self._fetch = None
        error = fetch.future.exception()
        if error is None:
            self._launch(self._saver.step, fetch.future.result())
        else:
            self._fail(f"its checkpoint cannot be brought here: {error}")

    def _look_at_workers(self, live: Live) -> None:
        if live.run.gone():
            self._read()  # its last words came before its end
            self._ended_unasked(live)
        elif self.phase == "launching":
            if live.has_started(self._now_s):
                self._say_started(live)
                self.phase = "running"
                self._ask_to_save(live)
        elif live.becomes_stuck(self._now_s):
            said = f"alive, but no step after {live.step}"
            _log.warning("job %s, epoch %d: %s", self.job, self.epoch, said)
            if self._options.end_stuck:
                live.doom = f"stuck: {said}"
                live.run.kill()

    def _ended_unasked(self, live: Live) -> None:
        why = live.failure()
        if self.phase == "launching" and (why is None or live.file.step is not None):
            self._say_started(live)
        if why is None:
            self._complete()
        else:
            self._fail(why.error, retriable=why.retriable)

    def _look_at_leavers(self, live: Live) -> None:
        if not live.run.gone():
            if self._due_s == math.inf:  # perhaps the agent of before died before it asked them
                why = live.run.asked_to() or "stop"
                self._ask_to_leave(self._options.grace_s, kill=False, why=why)
            elif self._now_s >= self._due_s:
                live.run.kill()
            return
        self._read()
        if self._anew is not None:
            self._begin_anew(self._anew)
        elif live.reached_the_end:
            self._complete()
        elif self._stop is not None or live.run.asked_to() == "stop":
            self._end(self._stopped, self._upload_until_s())
        elif live.run.order.epoch < self.epoch:
            self._resize()
        else:
            self.phase, self._due_s = "between", self._now_s + _BETWEEN_S

    def _look_at_upload(self) -> None:
        if self._saver.busy and self._now_s < self._due_s:
            return
        if self._saver.busy:
            self._saver.abandon()
            self._lose("the last checkpoint was not durable in the time that was left")
        assert self._final is not None
        self._said.append(self._final())
        self.phase = "over"

    # --- begin ---

    def _begin(self, step: int) -> None:
        if self._spec.program is None:
            self._fail("the job names no program; this agent runs real workers", retriable=False)
        elif step == 0:
            self._launch(0, None)
        else:
            self._fetch = Fetch(self._options.store, self._options.root, self.job, step)
            self.phase = "fetching"

    def _begin_anew(self, order: StartWorkers) -> None:
        self.abandon()
        self._anew = self._stop = self._fetch = self._final = self._save_by_s = None
        self._given_up, self._left, self._spec = [], (), order.spec
        self._saver = Saver(self.job, self._options.store, self._options.keep, order.step)
        if self.live is not None:
            self.settling.append(self.live.run.close)
        self.live, self.older = None, []  # what they saved is of another past
        self._begin(order.step)

    def _resize(self) -> None:
        """Begin with the new GPUs from the newest checkpoint here, durable or not yet."""
        assert self.live is not None
        order, newest = self.live.run.order, self._saver.newest
        self._say_left()
        if newest is not None and newest.announced.path.exists():
            self._launch(newest.step, newest.announced.path)
        else:
            self._launch(order.step, order.resume)

    def _launch(self, step: int, resume: Path | None) -> None:
        committed = self._saver.step
        order = Order(
            self.job, self.epoch, self.placement, self._spec, step, committed, resume, self._left
        )
        if self.live is not None:
            self.older.append(self.live)
            self.live = None
        self._launch_run(Run(self._options, order))

    def _launch_run(self, run: Run) -> None:
        try:
            run.launch()
        except (OSError, ValueError) as error:
            self._fail(f"its workers cannot be started: {error}")
        else:
            self.live, self.phase = Live(self._options, run), "launching"

    # --- end ---

    def _ask_to_leave(self, grace_s: float, *, kill: bool, why: Why) -> None:
        assert self.live is not None
        self.phase, self._due_s = "leaving", self._now_s + grace_s + _OVERDUE_S
        try:
            self.live.run.stop(grace_s, kill=kill, why=why)
        except OSError:  # the wish cannot be written down: the disk is full
            self.live.run.kill()

    def _end(self, final: Callable[[], Report], until_s: float) -> None:
        """Say `final` once the last checkpoint is durable, or the time for it is over."""
        self._saver.insist(until_s)
        self._final, self._due_s, self.phase = final, until_s, "uploading"

    def _complete(self) -> None:
        self._end(self._completed, math.inf)
        self._saver.insist(self._now_s + _RESULT_S)

    def _fail(self, error: str, *, retriable: bool = True) -> None:
        def failed() -> Report:
            return GangFailed(self.job, self.epoch, error, retriable)

        self._end(failed, self._now_s + self._options.upload_s)

    def _completed(self) -> Report:
        return GangCompleted(self.job, self.epoch, self._spec.total_steps)

    def _stopped(self) -> Report:
        return GangStopped(self.job, self.epoch, self._saver.step)

    def _upload_until_s(self) -> float:
        if self._stop is None:
            return self._now_s + self._options.upload_s
        return self._stop.deadline_s + self._options.upload_s if self._stop.saves else self._now_s

    # --- words ---

    def _ask_to_save(self, live: Live) -> None:
        program = self._spec.program
        if self._save_by_s is not None and program and program.saves == "on_signal":
            live.run.save()

    def _say_started(self, live: Live) -> None:
        self._said.append(GangStarted(self.job, self.epoch, live.step))

    def _say_left(self) -> None:
        step = self._saver.step if self.live is None else self.live.step
        self._said += [WorkersLeft(self.job, epoch, step) for epoch in self._given_up]
        self._left = (*self._left, *self._given_up)
        self._given_up = []

    def _say_saved(self, done: Committed) -> None:
        self._save_by_s = None
        step, mib = done.offer.step, done.size_mib
        self._said.append(CheckpointDone(self.job, self.epoch, step, done.uri, mib, done.cost_s))
        self.settling.append(partial(self._saver.reported, done))

    def _lose(self, error: str) -> None:
        self._save_by_s = None
        self._said.append(CheckpointLost(self.job, self.epoch, error))
