"""One gang on a cluster: what is wanted of it, what became of it, and the reports of both."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from cloud_agent.clusters.attempt import Attempt, Cluster
from cloud_agent.clusters.folder import HELD
from cloud_agent.clusters.held import Final, Held, Started
from cloud_agent.clusters.stillness import Stillness
from cloud_agent.clusters.terms import Terms
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
from runtime.executors.fetching import fetched, job_folder
from runtime.executors.saving import Committed, Offer, Saver, in_thread
from schemas.programs import Program


@dataclass(frozen=True, slots=True)
class Site:
    """What all gangs of an agent share."""

    terms: Terms
    cluster: Cluster
    say: Callable[[Report], None]

    @property
    def held(self) -> Path:
        """Folder of the files of what is held."""
        return self.terms.root / HELD


class Gang:
    """The workers of one job, whatever their epoch. All calls come from one thread."""

    def __init__(self, site: Site, held: Held) -> None:
        """Take over what is held, also from an agent that has ended."""
        self.held = held
        self._site = site
        self._saver = Saver(
            held.job, site.terms.store, site.terms.checkpoint_retention, held.committed_step
        )
        self._attempt: Attempt | None = None
        self._still = Stillness(site.terms, held.job)
        self._fetch: Future[Path] | None = None
        self._drop_fetch = threading.Event()
        self._has_started = False
        self._stop_by_s: float | None = None
        self._scale_by_s: float | None = None
        self._save_by_s: float | None = None
        #: Until when the last checkpoint may take, after a stop and after any end.
        self._stop_upload_by_s = self._upload_by_s = math.inf
        #: Of the run that has ended: whether that was said, and whether the job is done.
        self._is_freed = self._is_complete = False
        self._committed: Committed | None = None
        if held.started is not None and held.final is None:
            self._begin(held.started)

    @property
    def run(self) -> tuple[str, int] | None:
        """The job and epoch that the cluster may run for it; None: nothing."""
        if self._attempt is None or self._attempt.ended is not None:
            return None
        return self.held.job, self._attempt.started.epoch

    @property
    def stuck_since_s(self) -> float | None:
        """Since when its workers live and take no steps; None: they do, or never said any."""
        return None if self.run is None or self._is_unwanted else self._still.since_s

    # --- wishes ---

    def start_anew(self, order: StartWorkers, now_s: float) -> None:
        """Begin what the order asks for; what ran before is none of the agent's any more."""
        held = self.held
        if order.epoch <= held.epoch:
            return
        held.epoch, held.placement, held.spec = order.epoch, order.placement, order.spec
        held.anew_step, held.giving_up, held.left = order.step, [], []
        self._stop_by_s, self._scale_by_s, self._has_started = None, now_s, False
        self._stop_upload_by_s, self._is_complete = math.inf, False
        self._saver.abandon()
        held.write(self._site.held)

    def scale(self, order: ScaleWorkers) -> None:
        """Have it run on other GPUs, under the order's epoch."""
        held = self.held
        if order.epoch <= held.epoch or self._stop_by_s is not None or held.final is not None:
            return
        if without(held.placement, order.placement):
            held.giving_up.append(held.epoch)
        held.epoch, held.placement = order.epoch, order.placement
        self._has_started = False
        held.write(self._site.held)
        if self._is_complete:  # its result waits to be stored: nobody is left to start
            self._say_left(self._last_step())
            self._site.say(GangStarted(held.job, held.epoch, self._last_step()))

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        """Have it write a checkpoint if it does so on a signal, else wait for its next one."""
        self.held.epoch = max(self.held.epoch, order.epoch)
        if self._attempt is None or self._save_by_s is not None:
            return
        self._save_by_s = now_s + self._site.terms.save_s
        if self._program.saves == "on_signal":
            self._attempt.save()

    def stop(self, order: StopWorkers, now_s: float) -> None:
        """Have it leave; said again, only ever sooner."""
        # The epoch is higher where the agent ended before it could pass a change of size on.
        self.held.epoch = max(self.held.epoch, order.epoch)
        by_s = now_s + (order.grace_s if order.checkpoint else 0.0)
        self._stop_by_s = by_s if self._stop_by_s is None else min(self._stop_by_s, by_s)
        upload_s = self._site.terms.final_upload_timeout_s if order.checkpoint else 0.0
        self._stop_upload_by_s = min(self._stop_upload_by_s, by_s + upload_s)
        self._upload_by_s = min(self._upload_by_s, self._stop_upload_by_s)

    # --- turns ---

    def progress(self) -> GangProgress | None:
        """Say how far it is, once it trains and has said how fast."""
        if self._attempt is None or not self._has_started or self._is_unwanted:
            return None
        said = self._attempt.progress
        rate = said.samples_per_s(self.held.spec.samples_per_step)
        if said.step is None or rate is None:
            return None
        pace = said.pace(self.held.spec.samples_per_step)
        return GangProgress(self.held.job, self.held.epoch, said.step, rate, pace)

    def repeat(self) -> None:
        """Say again, after a restart, what may not have been stored."""
        held = self.held
        for epoch, step in held.left:
            self._site.say(WorkersLeft(held.job, epoch, step))
        if held.saved is not None:
            held.saved = replace(held.saved, epoch=held.epoch)
            self._site.say(held.saved)
        if held.final is not None:
            self._site.say(held.final)

    def stored(self, report: CheckpointDone) -> None:
        """Take note that the agent has stored this; older checkpoints may go.

        Raises:
            OSError: the shared folder does not answer.
        """
        if self.held.saved == report:
            self.held.saved = None
            self.held.write(self._site.held)
        if self._committed is not None and self._committed.uri == report.uri:
            self._saver.reported(self._committed)

    def turn(self, now_s: float) -> None:
        """Go on by what the cluster and the run's files show.

        Raises:
            OSError: the shared folder does not answer; nothing is lost.
        """
        if self.held.final is not None:
            return
        self._look(now_s)
        current = self._attempt
        if current is None:
            self._prepare(now_s)
        elif current.ended is None:
            current.turn(now_s, self._leave_by_s(now_s))
            self._look(now_s)  # last words come before the end
            self._note_start(current)
            self._still.look(current, now_s)
        if current is not None and current.ended is not None:
            if not self._is_freed:
                self._free(current, now_s)
            self._conclude(current, now_s)

    @property
    def _program(self) -> Program:
        program = self.held.spec.program
        assert program is not None
        return program

    @property
    def _is_unwanted(self) -> bool:
        """Whether the run that there is shall not be there."""
        started = self.held.started
        is_old = started is not None and started.epoch != self.held.epoch
        return is_old or self._stop_by_s is not None

    def _leave_by_s(self, now_s: float) -> float | None:
        """Until when the run that there is shall be gone; None: it shall stay."""
        if self._stop_by_s is not None:
            return self._stop_by_s
        if not self._is_unwanted:
            return self._still.end_by_s
        if self._scale_by_s is None:
            grace_s = self._site.terms.grace_s if self.held.anew_step is None else 0.0
            self._scale_by_s = now_s + grace_s
        return self._scale_by_s

    def _prepare(self, now_s: float) -> None:
        """Bring the checkpoint to go on from, then write down what will be submitted."""
        held, terms = self.held, self._site.terms
        if held.anew_step is not None:
            self._forget_past(held.anew_step)
        self._say_left(self._saver.step)
        step = self._saver.step
        if self._stop_by_s is not None:
            self._drop_fetch.set()
            if not self._saver.busy or now_s >= self._stop_upload_by_s:
                self._finish(GangStopped(held.job, held.epoch, step))
            return
        newest, resume = self._saver.newest, None
        if newest is not None and newest.step >= step and newest.announced.path.exists():
            step, resume = newest.step, newest.announced.path  # nodes see it; durable soon
        elif step > 0:
            if self._fetch is None:
                store, root, drop = terms.store, terms.root, self._drop_fetch
                self._fetch = in_thread(lambda: fetched(store, root, held.job, step, drop))
            if not self._fetch.done():
                return
            fetch, self._fetch = self._fetch, None
            if (error := fetch.exception()) is not None:
                text = f"its checkpoint cannot be brought here: {error}"
                self._finish(GangFailed(held.job, held.epoch, text))
                return
            resume = fetch.result()
        held.started = Started(held.epoch, held.placement, step, resume)
        held.write(self._site.held)
        self._begin(held.started)

    def _forget_past(self, step: int) -> None:
        """Let nothing of what ran before count, but the checkpoint of this step."""
        terms = self._site.terms
        self._saver = Saver(self.held.job, terms.store, terms.checkpoint_retention, step)
        self.held.anew_step, self.held.committed_step, self.held.saved = None, step, None
        self._drop_fetch.set()
        self._fetch, self._drop_fetch = None, threading.Event()

    def _begin(self, started: Started) -> None:
        self._scale_by_s, self._is_freed, self._is_complete = None, False, False
        self._upload_by_s, self._still = math.inf, Stillness(self._site.terms, self.held.job)
        folder = job_folder(self._site.terms.root, self.held.job) / str(started.epoch)
        self._attempt = self._site.cluster.attempt(
            folder, self.held.job, self.held.spec.tenant, self._program, started
        )

    def _note_start(self, current: Attempt) -> None:
        ended = current.ended  # perhaps before anybody looked
        trained = current.progress.step is not None or (ended is not None and ended.is_success)
        trains = current.trains if ended is None else trained
        if trains and not self._has_started and not self._is_unwanted:
            self._has_started = True
            self._site.say(GangStarted(self.held.job, self.held.epoch, current.step))

    def _free(self, ended: Attempt, now_s: float) -> None:
        """No worker is left: say what is free, and give the last checkpoint its time."""
        held, outcome = self.held, ended.ended
        # Workers that were asked to leave end well too; then only their steps tell.
        was_asked = self._is_unwanted or self._still.kill_reason is not None
        total = held.spec.total_steps
        is_whole = not was_asked or (total is not None and ended.step >= total)
        is_good = outcome is not None and outcome.is_success
        self._is_complete = is_good and is_whole and held.anew_step is None
        # A completed job's last checkpoint is its result: it has all the time that there is.
        upload_s = math.inf if self._is_complete else self._site.terms.final_upload_timeout_s
        self._upload_by_s = min(now_s + upload_s, self._stop_upload_by_s)
        self._saver.insist(self._upload_by_s)
        self._is_freed = True
        self._say_left(max(self._saver.step, ended.step))

    def _last_step(self) -> int:
        """The last step of a completed job; if it declared no total, the last that it said."""
        said = self._saver.step if self._attempt is None else self._attempt.step
        total = self.held.spec.total_steps
        return max(said, self._saver.step) if total is None else total

    def _say_left(self, step: int) -> None:
        """Say that the GPUs given up in changes of size are free."""
        held = self.held
        if not held.giving_up:
            return
        held.left += [(epoch, step) for epoch in held.giving_up]
        for epoch in held.giving_up:
            self._site.say(WorkersLeft(held.job, epoch, step))
        held.giving_up = []
        held.write(self._site.held)

    def _conclude(self, ended: Attempt, now_s: float) -> None:
        """Say how it ended, once the last checkpoint is durable or had its time; or go on."""
        held, outcome = self.held, ended.ended
        assert outcome is not None
        if self._is_unwanted and self._stop_by_s is None and not self._is_complete:
            held.started, self._attempt = None, None
            held.write(self._site.held)
        elif self._saver.busy and now_s < self._upload_by_s:
            return
        elif self._is_complete and self._saver.is_safe:
            self._finish(GangCompleted(held.job, held.epoch, self._last_step()))
        elif self._is_complete and self._stop_by_s is None:
            self._saver.insist(math.inf)
        elif self._stop_by_s is not None:
            self._finish(GangStopped(held.job, held.epoch, self._saver.step))
        elif self._still.kill_reason is not None:
            self._finish(GangFailed(held.job, held.epoch, self._still.kill_reason))
        else:
            self._finish(GangFailed(held.job, held.epoch, outcome.error, outcome.retriable))

    def _finish(self, final: Final) -> None:
        self._saver.abandon()
        self.held.final, self.held.committed_step = final, self._saver.step
        try:
            self.held.write(self._site.held)
        except OSError:
            self.held.final = None  # not said either, but at the next turn
            raise
        self._site.say(final)

    # --- checkpoints ---

    def _look(self, now_s: float) -> None:
        """Read what the workers say, and have their checkpoints made durable."""
        held, current = self.held, self._attempt
        if held.anew_step is not None:
            return
        if current is not None:
            for announced in current.progress.read(now_s):
                folder, epoch = current.folder, current.started.epoch
                self._saver.offer(Offer(folder, epoch, announced, now_s))
        result = self._saver.advance(now_s)
        if isinstance(result, Committed):
            self._save_by_s, self._committed = None, result
            held.committed_step = self._saver.step
            held.saved = CheckpointDone(
                held.job,
                held.epoch,
                result.offer.step,
                result.uri,
                result.size_mib,
                result.cost_s,
            )
            held.write(self._site.held)
            self._site.say(held.saved)
        elif result is not None:
            self._save_by_s = None
            self._site.say(CheckpointLost(held.job, held.epoch, result.error))
        if self._save_by_s is not None and now_s > self._save_by_s:
            self._save_by_s = None
            text = f"no checkpoint was announced within {self._site.terms.save_s:g} s"
            self._site.say(CheckpointLost(held.job, held.epoch, text))
