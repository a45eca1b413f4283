"""One gang on a cluster: carries out its orders, follows its run, and reports what happens."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cloud_agent.clusters.attempt import Attempt, Cluster, Work
from cloud_agent.clusters.folder import RECORDS
from cloud_agent.clusters.gang_record import write
from cloud_agent.options import ClusterOptions
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
from runtime.executors.fetching import Fetch, job_folder
from runtime.executors.gang_record import Final, GangRecord, StartedRun
from runtime.executors.stall_detector import StallDetector
from runtime.executors.uploading import CheckpointUploader, LocalCheckpoint, Uploaded
from schemas.programs import Program


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """What all gangs of an agent share: options, the cluster, and where reports go."""

    options: ClusterOptions
    cluster: Cluster
    report: Callable[[Report], None]

    @property
    def records(self) -> Path:
        """Folder of the gangs' records."""
        return self.options.root / RECORDS


class Gang:
    """The workers of one job, whatever their epoch. All calls come from one thread."""

    def __init__(self, context: ClusterContext, record: GangRecord) -> None:
        """Take over a recorded gang, also from an agent that has ended."""
        self.record = record
        self._context = context
        self._uploader = CheckpointUploader(context.options, record.job, record.committed_step)
        self._attempt: Attempt | None = None
        self._stall = StallDetector(context.options, record.job)
        self._trains_since_s: float | None = None
        self._fetch: Fetch | None = None
        self._has_started = False
        self._stop_by_s: float | None = None
        self._scale_by_s: float | None = None
        self._save_by_s: float | None = None
        #: By when the last checkpoint must be uploaded, after a stop and after any end.
        self._stop_upload_by_s = self._upload_by_s = math.inf
        #: Of an ended run: whether its free GPUs were reported, and whether the job is complete.
        self._is_released = self._is_complete = False
        self._committed: Uploaded | None = None
        if record.started is not None and record.final is None:
            self._begin(record.started)

    @property
    def run(self) -> tuple[str, int] | None:
        """The job and epoch that the cluster may run for it; None: nothing."""
        if self._attempt is None or self._attempt.ended is not None:
            return None
        return self._attempt.run

    @property
    def stuck_since_s(self) -> float | None:
        """Since when its workers have taken no step; None: they do, or never reported any."""
        return None if self.run is None or self._is_unwanted else self._stall.since_s

    # --- orders ---

    def start_again(self, order: StartWorkers, now_s: float) -> None:
        """Start again under a newer epoch; the work of the earlier run no longer counts."""
        record = self.record
        if order.epoch <= record.epoch:
            return
        record.epoch, record.placement, record.spec = order.epoch, order.placement, order.spec
        record.anew_step, record.giving_up, record.left = order.step, [], []
        self._stop_by_s, self._scale_by_s, self._has_started = None, now_s, False
        self._stop_upload_by_s, self._is_complete = math.inf, False
        self._uploader.abandon()
        write(record, self._context.records)

    def scale(self, order: ScaleWorkers) -> None:
        """Have it run on other GPUs, under the order's epoch."""
        record = self.record
        if record.final is not None:
            self._end_under(order.epoch)
            return
        if order.epoch <= record.epoch or self._stop_by_s is not None:
            return
        if without(record.placement, order.placement):
            record.giving_up.append(record.epoch)
        record.epoch, record.placement = order.epoch, order.placement
        self._has_started = False
        write(record, self._context.records)
        if self._is_complete:  # its result waits to be stored: no workers are to be started
            self._report_left(self._last_step())
            self._context.report(GangStarted(record.job, record.epoch, self._last_step()))

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        """Have it write a checkpoint if it does so on a signal, else wait for its next one."""
        self.record.epoch = max(self.record.epoch, order.epoch)
        if self._attempt is None or self._save_by_s is not None:
            return
        self._save_by_s = now_s + self._context.options.save_s
        if self._program.saves == "on_signal":
            self._attempt.save()

    def stop(self, order: StopWorkers, now_s: float) -> None:
        """Stop it; a repeated order can only bring the deadline forward."""
        # The epoch is higher if the agent ended before it could pass on a change of size.
        if self.record.final is not None:
            self._end_under(order.epoch)
            return
        self.record.epoch = max(self.record.epoch, order.epoch)
        by_s = now_s + (order.grace_s if order.checkpoint else 0.0)
        self._stop_by_s = by_s if self._stop_by_s is None else min(self._stop_by_s, by_s)
        upload_s = self._context.options.final_upload_timeout_s if order.checkpoint else 0.0
        self._stop_upload_by_s = min(self._stop_upload_by_s, by_s + upload_s)
        self._upload_by_s = min(self._upload_by_s, self._stop_upload_by_s)

    # --- time ---

    def progress(self) -> GangProgress | None:
        """Give how far it is, once it trains and its rate is known."""
        if self._attempt is None or not self._has_started or self._is_unwanted:
            return None
        said = self._attempt.progress
        rate = said.samples_per_s(self.record.spec.samples_per_step)
        if said.step is None or rate is None:
            return None
        pace = said.pace(self.record.spec.samples_per_step)
        return GangProgress(self.record.job, self.record.epoch, said.step, rate, pace, said.metrics)

    def repeat(self) -> None:
        """Report again, after a restart, what the agent may not have stored."""
        record = self.record
        for epoch, step in record.left:
            self._context.report(WorkersLeft(record.job, epoch, step))
        if record.saved is not None:
            record.saved = replace(record.saved, epoch=record.epoch)
            self._context.report(record.saved)
        if record.final is not None:
            self._context.report(record.final)

    def stored(self, report: CheckpointDone) -> None:
        """Note that the agent has stored this report; older checkpoints may be deleted.

        Raises:
            OSError: the shared folder does not answer.
        """
        if self.record.saved == report:
            self.record.saved = None
            write(self.record, self._context.records)
        if self._committed is not None and self._committed.uri == report.uri:
            self._uploader.reported(self._committed)

    def advance(self, now_s: float) -> None:
        """Take the next steps, by what the cluster and the run's files show.

        Raises:
            OSError: the shared folder does not answer; nothing is lost.
        """
        if self.record.final is not None:
            return
        self._look(now_s)
        current = self._attempt
        if current is None:
            self._prepare(now_s)
        elif current.ended is None:
            current.advance(now_s, self._leave_by_s(now_s))
            self._look(now_s)  # the last lines may have come just before the end
            self._note_start(current)
            if current.trains and self._trains_since_s is None:
                self._trains_since_s = now_s
            self._stall.look(
                current.progress,
                now_s,
                begun_s=self._trains_since_s,
                step=current.step,
                epoch=current.started.epoch,
            )
        if current is not None and current.ended is not None:
            if not self._is_released:
                self._on_workers_gone(current, now_s)
            self._conclude(current, now_s)

    @property
    def _program(self) -> Program:
        program = self.record.spec.program
        assert program is not None
        return program

    @property
    def _is_unwanted(self) -> bool:
        """Whether the present run must end."""
        started = self.record.started
        is_old = started is not None and started.epoch != self.record.epoch
        return is_old or self._stop_by_s is not None

    def _leave_by_s(self, now_s: float) -> float | None:
        """By when the present run must be gone; None: it goes on."""
        if self._stop_by_s is not None:
            return self._stop_by_s
        if not self._is_unwanted:
            return self._stall.end_by_s
        if self._scale_by_s is None:
            grace_s = self._context.options.grace_s if self.record.anew_step is None else 0.0
            self._scale_by_s = now_s + grace_s
        return self._scale_by_s

    def _prepare(self, now_s: float) -> None:
        """Fetch the checkpoint to go on from, then record the run that will be submitted."""
        record, options = self.record, self._context.options
        if record.anew_step is not None:
            self._forget_past(record.anew_step)
        self._report_left(self._uploader.step)
        step = self._uploader.step
        if self._stop_by_s is not None:
            self._drop_fetch()
            if not self._uploader.busy or now_s >= self._stop_upload_by_s:
                self._finish(GangStopped(record.job, record.epoch, step))
            return
        newest, resume = self._uploader.newest, None
        if newest is not None and newest.step >= step and newest.announced.is_there:
            # The nodes share this folder. The upload is under way.
            step, resume = newest.step, newest.announced.path
        elif step > 0:
            if self._fetch is None:
                self._fetch = Fetch(options.store, options.root, record.job, step)
            if not self._fetch.future.done():
                return
            fetch, self._fetch = self._fetch, None
            if (why := fetch.failure) is not None:
                self._finish(GangFailed(record.job, record.epoch, why.error))
                return
            resume = fetch.future.result()
        record.started = StartedRun(record.epoch, record.placement, step, resume)
        write(record, self._context.records)
        self._begin(record.started)

    def _forget_past(self, step: int) -> None:
        """Ignore all earlier work except the checkpoint of this step."""
        self._uploader = CheckpointUploader(self._context.options, self.record.job, step)
        self.record.anew_step, self.record.committed_step, self.record.saved = None, step, None
        self._drop_fetch()

    def _drop_fetch(self) -> None:
        if self._fetch is not None:
            self._fetch.cancel.set()
            self._fetch = None

    def _begin(self, started: StartedRun) -> None:
        self._scale_by_s, self._is_released, self._is_complete = None, False, False
        self._upload_by_s, self._trains_since_s = math.inf, None
        self._stall = StallDetector(
            self._context.options, self.record.job, is_resumed=started.step > 0
        )
        job, tenant = self.record.job, self.record.spec.tenant
        folder = job_folder(self._context.options.root, job) / str(started.epoch)
        work = Work(job, self._program, started, folder, tenant)
        self._attempt = self._context.cluster.attempt(work)

    def _note_start(self, current: Attempt) -> None:
        ended = current.ended  # it may have ended before its first step was seen
        trained = current.progress.step is not None or (ended is not None and ended.is_success)
        trains = current.trains if ended is None else trained
        if trains and not self._has_started and not self._is_unwanted:
            self._has_started = True
            self._context.report(GangStarted(self.record.job, self.record.epoch, current.step))

    def _on_workers_gone(self, ended: Attempt, now_s: float) -> None:
        """No worker is left: report the free GPUs, and give the last upload its time."""
        record, outcome = self.record, ended.ended
        # Workers that were asked to leave exit with 0, too; then only their steps tell.
        was_asked = self._is_unwanted or self._stall.kill_reason is not None
        total = record.spec.total_steps
        is_whole = not was_asked or (total is not None and ended.step >= total)
        is_good = outcome is not None and outcome.is_success
        self._is_complete = is_good and is_whole and record.anew_step is None
        # A completed job's last checkpoint is its result: its upload has no deadline.
        upload_s = math.inf if self._is_complete else self._context.options.final_upload_timeout_s
        self._upload_by_s = min(now_s + upload_s, self._stop_upload_by_s)
        self._uploader.retry_until(self._upload_by_s)
        self._is_released = True
        self._report_left(max(self._uploader.step, ended.step))

    def _last_step(self) -> int:
        """The last step of a completed job: as declared, else the last reported."""
        said = self._uploader.step if self._attempt is None else self._attempt.step
        total = self.record.spec.total_steps
        return max(said, self._uploader.step) if total is None else total

    def _report_left(self, step: int) -> None:
        """Report that the GPUs given up in changes of size are free."""
        record = self.record
        if not record.giving_up:
            return
        record.left += [(epoch, step) for epoch in record.giving_up]
        for epoch in record.giving_up:
            self._context.report(WorkersLeft(record.job, epoch, step))
        record.giving_up = []
        write(record, self._context.records)

    def _conclude(self, ended: Attempt, now_s: float) -> None:
        """Report how it ended, once the last upload is done or its time is over; or start again."""
        record, outcome = self.record, ended.ended
        assert outcome is not None
        if self._is_unwanted and self._stop_by_s is None and not self._is_complete:
            record.started, self._attempt = None, None
            write(record, self._context.records)
        elif self._uploader.busy and now_s < self._upload_by_s:
            return
        elif self._is_complete and self._uploader.newest_is_durable:
            self._finish(GangCompleted(record.job, record.epoch, self._last_step()))
        elif self._is_complete and self._stop_by_s is None:
            self._uploader.retry_until(math.inf)
        elif self._stop_by_s is not None:
            self._finish(GangStopped(record.job, record.epoch, self._uploader.step))
        elif self._stall.kill_reason is not None:
            self._finish(GangFailed(record.job, record.epoch, self._stall.kill_reason))
        else:
            self._finish(GangFailed(record.job, record.epoch, outcome.error, outcome.retriable))

    def _finish(self, final: Final) -> None:
        self._uploader.abandon()
        self.record.final, self.record.committed_step = final, self._uploader.step
        try:
            write(self.record, self._context.records)
        except OSError:
            self.record.final = None  # nor is it reported; the next call tries again
            raise
        self._context.report(final)

    def _end_under(self, epoch: int) -> None:
        """Report its end under the epoch of an order that came after it."""
        record = self.record
        if record.move_end(epoch) and record.final is not None:
            # Before it is recorded: an order that comes again would change nothing then.
            self._context.report(record.final)
            write(record, self._context.records)

    # --- checkpoints ---

    def _look(self, now_s: float) -> None:
        """Read the workers' progress, and upload the checkpoints that they announce."""
        record, current = self.record, self._attempt
        if record.anew_step is not None:
            return
        if current is not None:
            for announced in current.progress.read(now_s):
                folder, epoch = current.folder, current.started.epoch
                self._uploader.add(LocalCheckpoint(folder, epoch, announced, now_s))
        result = self._uploader.advance(now_s)
        if isinstance(result, Uploaded):
            self._save_by_s, self._committed = None, result
            record.committed_step = self._uploader.step
            record.saved = result.report(record.job, record.epoch)
            write(record, self._context.records)
            self._context.report(record.saved)
        elif result is not None:
            self._save_by_s = None
            self._context.report(CheckpointLost(record.job, record.epoch, result.error))
        if self._save_by_s is not None and now_s > self._save_by_s:
            self._save_by_s = None
            text = f"no checkpoint was announced within {self._context.options.save_s:g} s"
            self._context.report(CheckpointLost(record.job, record.epoch, text))
