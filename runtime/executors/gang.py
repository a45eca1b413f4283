"""The lifecycle of one gang, the same wherever its workers run.

What is wanted of a gang is in its record. Each call of `advance` compares that with what is seen,
and takes the next step: fetch a checkpoint, start workers, have them leave under another epoch,
upload what they saved last, report the end. So a step that a full disk or an absent folder cut off
is taken at the next call, and an agent that is restarted goes on from the record.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, Literal, TypeVar

from runtime.core import (
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
from runtime.executors.attempt import Attempt, Leave, Outcome
from runtime.executors.failures import Failure
from runtime.executors.gang_checkpoints import Found, GangCheckpoints
from runtime.executors.gang_record import Final, GangRecord, StartedRun
from runtime.executors.options import ExecutorOptions
from runtime.executors.stall_detector import StallDetector

#: What a gang can be told.
GangOrder = StartWorkers | ScaleWorkers | CheckpointWorkers | StopWorkers
#: What becomes of a gang whose workers are gone. One that goes on is started again.
Ending = Literal["goes_on", "complete", "stopped", "failed"]
AnAttempt = TypeVar("AnAttempt", bound=Attempt)


class Gang(ABC, Generic[AnAttempt]):
    """The workers of one job, whatever their epoch. All calls come from one thread."""

    def __init__(
        self, options: ExecutorOptions, record: GangRecord, report: Callable[[Report], None]
    ) -> None:
        """Begin what a record says; nothing is started before the first `advance`."""
        self.record = record
        #: The present run, also once its workers are gone; None: there is none.
        self.attempt: AnAttempt | None = None
        self.checkpoints = GangCheckpoints(options, record, report, self._write)
        self._options, self._report = options, report
        self._now_s = -math.inf  # the moment of the present call
        self._stall = StallDetector(options, record.job)
        self._runs_since_s: float | None = None
        self._has_started = False
        self._stop: Leave | None = None
        self._scale_by_s: float | None = None
        self._scale_grace_s = options.grace_s
        self._ending: Ending | None = None
        self._outcome = Outcome(False)
        #: By when the last checkpoint must be uploaded: after a stop, and after any end.
        self._stop_upload_by_s = self._upload_by_s = math.inf

    # --- what others may see ---

    @property
    def stuck_since_s(self) -> float | None:
        """Since when its workers have taken no step; None: they do, or never reported any."""
        return self._stall.since_s if self._trains else None

    def progress(self) -> GangProgress | None:
        """Give how far it is, once it trains and its rate is known."""
        record, attempt = self.record, self.attempt
        if attempt is None or not self._trains:
            return None
        said, per_step = attempt.progress, record.spec.samples_per_step
        pace, rate = said.pace(per_step), said.samples_per_s(per_step)  # the pace may set the rate
        if said.step is None or rate is None:
            return None
        return GangProgress(record.job, record.epoch, self._step, rate, pace, said.metrics)

    def repeat(self) -> None:
        """Report again, after a restart, what the agent may not have stored."""
        record = self.record
        for epoch, step in record.left:
            self._report(WorkersLeft(record.job, epoch, step))
        if record.saved is not None:
            record.saved = replace(record.saved, epoch=record.epoch)
            self._report(record.saved)
        if record.final is not None:
            self._report(record.final)

    # --- orders ---

    def take(self, order: GangOrder, now_s: float) -> None:
        """Take an order, perhaps for the second time; `advance` carries it out."""
        record, final = self.record, self.record.final
        if final is not None:
            if isinstance(order, ScaleWorkers | StopWorkers) and order.epoch > final.epoch:
                # The core has taken that epoch, and ignores an end under an earlier one.
                record.epoch, record.final = order.epoch, replace(final, epoch=order.epoch)
                # Before it is recorded: an order that comes again would change nothing then.
                self._report(record.final)
                self._write()
        elif isinstance(order, CheckpointWorkers):
            if not self.checkpoints.is_asked:
                self.checkpoints.ask(now_s)
                self._save()
        elif isinstance(order, StopWorkers):
            self._take_stop(order, now_s)
        elif order.epoch > record.epoch:
            if isinstance(order, StartWorkers):  # what the earlier run does no longer counts
                record.anew_step, record.giving_up, record.left = order.step, [], []
                record.spec, self._scale_by_s = order.spec, now_s
                self._stop, self._stop_upload_by_s, self._ending = None, math.inf, None
                self.checkpoints.abandon()
            else:
                self._scale_grace_s = max(self._options.grace_s, order.save_s)
                if without(record.placement, order.placement):
                    record.giving_up.append(record.epoch)
            record.epoch, record.placement = order.epoch, order.placement
            self._has_started = False
            self._write()

    def _take_stop(self, order: StopWorkers, now_s: float) -> None:
        # The epoch is higher if the agent ended before it could pass on a change of size.
        self.record.epoch = max(self.record.epoch, order.epoch)
        by_s = now_s + (order.grace_s if order.checkpoint else 0.0)
        upload_s = self._options.final_upload_timeout_s if order.checkpoint else 0.0
        asked = self._stop or Leave(math.inf, "stop")
        self._stop = asked.tightened(by_s, saves=order.checkpoint)
        self._stop_upload_by_s = min(self._stop_upload_by_s, by_s + upload_s)
        self._upload_by_s = min(self._upload_by_s, self._stop_upload_by_s)

    # --- what kinds of executors do each in their way ---

    @abstractmethod
    def _write(self) -> None:
        """Write the record down, where no other file says the same; raises OSError."""

    @abstractmethod
    def _launch(self, started: StartedRun) -> AnAttempt | None:
        """Give the attempt of a recorded run; None if it cannot be, and `_fail` was told why."""

    @abstractmethod
    def _advance(self, attempt: AnAttempt, leave: Leave | None) -> None:
        """Have an attempt take its next steps; with `leave`, see that its workers go in time."""

    def _find_origin(self) -> Found | Failure | None:
        """Give what to start from, or why there is nothing; None: it is being fetched."""
        return self.checkpoints.find(self.checkpoints.newest_here())

    def _drop_fetch(self) -> None:
        """Give up what is being fetched."""
        self.checkpoints.drop()

    def _runs(self) -> Sequence[AnAttempt]:
        """Give the runs whose progress is read."""
        return () if self.attempt is None else (self.attempt,)

    def _failure(self, outcome: Outcome) -> GangFailed:
        record, error = self.record, self._stall.kill_reason or outcome.error
        return GangFailed(record.job, record.epoch, error, outcome.retriable, ran=outcome.ran)

    @property
    def _is_storing(self) -> bool:
        """Whether what the workers left behind is on its way to the store."""
        return self.checkpoints.busy

    @property
    def _is_superseded(self) -> bool:
        """Whether the present run is of an older epoch than was ordered."""
        is_old = self.attempt is not None and self.attempt.epoch != self.record.epoch
        return is_old or self.record.anew_step is not None

    @property
    def _is_unwanted(self) -> bool:
        """Whether the present run must end."""
        return self._is_superseded or self._stop is not None

    # --- time ---

    def advance(self, now_s: float) -> None:
        """Take the next steps, by what is seen of the workers and their files.

        Raises:
            OSError: files do not answer; nothing is lost.
        """
        if self.record.final is not None:
            return
        self._now_s = now_s
        self._look()
        if self._ending is None:
            if self.attempt is None:
                self._prepare()
            else:
                self._follow(self.attempt)
        if self._ending is not None:
            self._conclude(self._ending)

    @property
    def _trains(self) -> bool:
        return self._has_started and self._ending is None and not self._is_unwanted

    @property
    def _step(self) -> int:
        """How far it is; never beyond the end."""
        if self.attempt is not None:
            step, total = self.attempt.step, self.record.spec.total_steps
            return step if total is None else min(step, total)
        known = self.checkpoints.known
        return self.checkpoints.step if known is None else known[0]

    def _look(self) -> None:
        """Read the workers' progress, and upload the checkpoints that they announce."""
        if self.record.anew_step is None:
            self.checkpoints.look(self._runs(), self._now_s)

    # --- begin ---

    def _prepare(self) -> None:
        """Fetch the checkpoint to go on from, then record the run that is started."""
        record = self.record
        if record.anew_step is not None:
            self._forget_past(record.anew_step)
        self._report_left()
        if self._stop is not None:
            self._drop_fetch()
            self._take_end(Outcome(False, ran=False))
            return
        found = self._find_origin()
        if isinstance(found, Failure):
            self._fail(found)
        elif found is not None:
            record.started = StartedRun(record.epoch, record.placement, *found)
            self._write()
            self._begin(record.started)

    def _forget_past(self, step: int) -> None:
        """Ignore all earlier work except the checkpoint of this step."""
        record = self.record
        self._drop_fetch()
        record.anew_step, record.committed_step = None, step
        record.started = record.saved = None
        self.checkpoints = GangCheckpoints(self._options, record, self._report, self._write)

    def _begin(self, started: StartedRun) -> None:
        self._expect(started)
        self.attempt = self._launch(started)

    def _expect(self, started: StartedRun) -> None:
        """Begin to count for this run."""
        self.checkpoints.begin((started.step, started.resume))
        self._scale_by_s, self._runs_since_s = None, None
        self._ending, self._upload_by_s = None, math.inf
        is_resumed = started.step > 0
        self._stall = StallDetector(self._options, self.record.job, is_resumed=is_resumed)

    # --- while there are workers ---

    def _follow(self, attempt: AnAttempt) -> None:
        self._advance(attempt, self._leave())
        self._look()  # the last lines may have come just before the end
        self._note_start(attempt)
        if attempt.ended is not None:
            self._take_end(attempt.ended)
        elif self._trains:
            self._stall.look(
                self._now_s,
                moved_s=attempt.progress.moved_s,
                step_interval_s=attempt.progress.step_interval_s,
                begun_s=self._runs_since_s,
                step=self._step,
                epoch=self.record.epoch,
            )

    def _note_start(self, attempt: AnAttempt) -> None:
        said, ended, now_s = attempt.progress, attempt.ended, self._now_s
        if attempt.runs and self._runs_since_s is None:
            self._runs_since_s = now_s
        lived_s = now_s - (self._runs_since_s or now_s)
        is_well = attempt.runs and lived_s >= self._options.quiet_start_s
        if ended is not None:  # perhaps before its first step was seen
            is_well = ended.is_success
        # Lines that were there before were already read by an earlier agent.
        if not attempt.trains and said.caught_up and (said.step is not None or is_well):
            attempt.trains = True
        if not attempt.trains:
            return
        if not self._has_started and not self._is_unwanted:
            self._has_started = True
            self._report(GangStarted(self.record.job, self.record.epoch, self._step))
            if self.checkpoints.is_asked:
                self._save()  # before, they might not have known the signal

    def _save(self) -> None:
        """Ask workers that write a checkpoint on a signal; others write their next one."""
        program = self.record.spec.program
        if self._trains and self.attempt is not None and self.attempt.ended is None:
            if program is not None and program.saves == "on_signal":
                self.attempt.save()

    def _leave(self) -> Leave | None:
        """By when and how the present workers are to leave; None: they go on."""
        usual_s = self._now_s + self._options.grace_s
        if self._stop is not None:
            if self._stop.by_s == math.inf:  # an agent died that perhaps had not asked them
                self._stop = replace(self._stop, by_s=usual_s)
            return self._stop
        if self._is_unwanted:
            is_anew = self.record.anew_step is not None
            if self._scale_by_s is None:
                self._scale_by_s = self._now_s + (0.0 if is_anew else self._scale_grace_s)
            return Leave(self._scale_by_s, "stop" if is_anew else "scale", not is_anew)
        by_s = self._stall.end_by_s
        return None if by_s is None else Leave(by_s, "stuck", saves=False)

    # --- end ---

    def _fail(self, why: Failure) -> None:
        """Let it end although no workers were started."""
        self._take_end(Outcome(False, why.error, why.retriable, ran=False))

    def _take_end(self, outcome: Outcome) -> None:
        """No worker is left: report the free GPUs, and give the last upload its time."""
        record, attempt, total = self.record, self.attempt, self.record.spec.total_steps
        # Workers that were asked to leave exit with 0, too; then only their steps tell.
        was_asked = self._is_unwanted or self._stall.kill_reason is not None
        reached_end = attempt is not None and total is not None and attempt.step >= total
        if record.anew_step is not None:
            self._ending = "goes_on"
        elif outcome.is_success and (reached_end or not was_asked):
            self._ending = "complete"
        elif self._stop is not None:
            self._ending = "stopped"
        elif self._is_superseded:
            self._ending = "goes_on"
        else:
            is_stopped = attempt is not None and attempt.lease_ended
            self._ending = "stopped" if is_stopped else "failed"
        self._outcome = outcome
        # A completed job's last checkpoint is its result: its upload has no deadline.
        is_complete = self._ending == "complete"
        by_s = self._now_s + (math.inf if is_complete else self._options.final_upload_timeout_s)
        self._upload_by_s = min(by_s, self._stop_upload_by_s)
        self.checkpoints.retry_until(self._upload_by_s)
        self._report_left()

    def _conclude(self, ending: Ending) -> None:
        """Report the end once the last upload is done or its time is over; or start again."""
        record, is_complete, ran = self.record, ending == "complete", self._outcome.ran
        if ending == "goes_on":
            self.attempt, self._ending = None, None
            self._prepare()
            return
        self._report_left()
        if is_complete and self._stop is None and not self._has_started:
            self._has_started = True  # a change of size: there is no work left to do on its GPUs
            self._report(GangStarted(record.job, record.epoch, self._last_step()))
        if self._is_storing and self._now_s < self._upload_by_s:
            return
        self.checkpoints.give_up()
        lost = self.checkpoints.lost_result if is_complete and self._stop is None else None
        if ending == "failed" or lost is not None:  # else its GPUs would wait for ever
            self._finish(self._failure(lost or self._outcome))
        elif is_complete and self.checkpoints.newest_is_durable:
            self._finish(GangCompleted(record.job, record.epoch, self._last_step()))
        elif is_complete and self._stop is None:
            self.checkpoints.retry_until(math.inf)
        else:
            self._finish(GangStopped(record.job, record.epoch, self.checkpoints.step, ran))

    def _last_step(self) -> int:
        """The last step of a completed job: as declared, else the last reported."""
        total = self.record.spec.total_steps
        return max(self._step, self.checkpoints.step) if total is None else total

    def _report_left(self, below: int | None = None) -> None:
        """Report that the GPUs given up in changes of size are free: in those below an epoch."""
        record, step = self.record, max(self.checkpoints.step, self._step)
        free = [epoch for epoch in record.giving_up if below is None or epoch < below]
        record.giving_up = [epoch for epoch in record.giving_up if epoch not in free]
        for epoch in free:
            record.left.append((epoch, step))
            self._report(WorkersLeft(record.job, epoch, step))
        if free:
            self._write()

    def _finish(self, final: Final) -> None:
        self.checkpoints.abandon()
        self.record.final, self.record.committed_step = final, self.checkpoints.step
        try:
            self._write()
        except OSError:
            self.record.final = None  # nor is it reported; the next call tries again
            raise
        self._report(final)
