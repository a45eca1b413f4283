"""A started run: its processes together with the progress that its workers report."""

from collections.abc import Iterator
from dataclasses import replace

from runtime.core import GangProgress, Placement
from runtime.executors.environment import resizes_in_place
from runtime.executors.failures import Failure, failure
from runtime.executors.options import ProcessOptions
from runtime.executors.progress import ProgressFile
from runtime.executors.runs import Run
from runtime.executors.stall_detector import StallDetector
from runtime.executors.uploading import LocalCheckpoint


class LiveRun:
    """A run that was started."""

    def __init__(self, options: ProcessOptions, run: Run) -> None:
        self.run = run
        self.file = ProgressFile(run.progress, run.checkpoints)
        order = run.order
        self.stall = StallDetector(options, order.job, is_resumed=order.step > 0)
        self._options = options
        self._begun_s: float | None = None

    @property
    def epoch(self) -> int:
        """The epoch in force: that of its start, or of the last resize that the job confirmed."""
        request = self.run.resize_request
        if request is None:
            return self.run.order.epoch
        met = self.file.generation == request.epoch and not request.given_up
        return request.epoch if met else request.epoch_before

    @property
    def placement(self) -> Placement:
        """The GPUs of that epoch."""
        request = self.run.resize_request
        if request is None:
            return self.run.order.placement
        return request.placement if self.epoch == request.epoch else request.placement_before

    @property
    def resizes_in_place(self) -> bool:
        """Whether the job says that its workers can become more or fewer as they run."""
        program = self.run.order.spec.program
        return program is not None and resizes_in_place(program)

    @property
    def step(self) -> int:
        """The last step that it reported; never beyond the end."""
        return self._within(self.run.order.step if self.file.step is None else self.file.step)

    def _within(self, step: int) -> int:
        total = self.run.order.spec.total_steps
        return step if total is None else min(step, total)

    @property
    def reached_the_end(self) -> bool:
        """Whether it reported the job's last step and all workers ended with code 0."""
        record = self.run.exit_record() or {}
        ended = record.get("workers") or [{"code": None}]
        well = all(worker["code"] == 0 for worker in ended)
        return well and self.step == self.run.order.spec.total_steps

    @property
    def lease_ended(self) -> bool:
        """Whether its supervisor stopped it because the agent's lease was over."""
        return bool((self.run.exit_record() or {}).get("lease_ended"))

    def new_checkpoints(self, now_s: float) -> Iterator[LocalCheckpoint]:
        """Read a piece of the new progress; give the checkpoints that it announces.

        A run of an earlier boot gives none: after a crash the disk may lack some of them.
        """
        for said in self.file.read(now_s) if self.run.this_boot else ():
            announced = replace(said, step=self._within(said.step))
            yield LocalCheckpoint(self.run.folder, self.run.order.epoch, announced, now_s)

    def is_read_to_end(self) -> bool:
        """Whether all progress was read. Ask this once the workers are gone, before judging."""
        return not self.run.this_boot or self.file.is_over()

    def has_started(self, now_s: float) -> bool:
        """Whether it reported a step, or has lived long enough without reporting anything."""
        if not self.file.caught_up:
            return False  # these lines were already read by an earlier agent
        if self.file.step is not None:
            return True
        if self._begun_s is None and self.run.begun():
            self._begun_s = now_s
        return self._begun_s is not None and now_s - self._begun_s >= self._options.quiet_start_s

    def watch(self, now_s: float) -> None:
        """Notice workers that take no steps; kill them if the options say so."""
        begun_s, step, epoch = self._begun_s, self.step, self.epoch
        if self.stall.look(self.file, now_s, begun_s=begun_s, step=step, epoch=epoch):
            self.run.kill()

    def save(self) -> None:
        """Ask the workers to write a checkpoint and go on, if the job says that they can."""
        program = self.run.order.spec.program
        if program is not None and program.saves == "on_signal":
            self.run.save()

    def progress(self, epoch: int) -> GangProgress | None:
        """How far it is, under this epoch; None if it does not report."""
        spec = self.run.order.spec
        pace = self.file.pace(spec.samples_per_step)
        rate = self.file.samples_per_s(spec.samples_per_step)
        if self.file.step is None or rate is None:
            return None
        metrics = dict(self.file.metrics) or None
        return GangProgress(self.run.order.job, epoch, self.step, rate, pace, metrics)

    def failure(self) -> Failure | None:
        """Why it failed; None if all its workers ended well. Only once it is gone."""
        if self.stall.kill_reason is not None:
            return Failure(self.stall.kill_reason)
        if not self.run.this_boot:
            return Failure("the machine was restarted, and the workers with it")
        program = self.run.order.spec.program
        return failure(
            self.run.exit_record(), self.run.folder, program.argv[0] if program is not None else ""
        )


def last_step(live: LiveRun | None, saved: int) -> int:
    """Give the last step of a completed job: as declared, else the last reported."""
    assert live is not None  # it was seen to end
    total = live.run.order.spec.total_steps
    return max(saved, live.step) if total is None else total
