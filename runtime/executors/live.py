"""The workers of a run and what they say of themselves, looked at together."""

from collections.abc import Iterator
from dataclasses import replace

from runtime.core import GangProgress
from runtime.executors.ends import Failure, failure
from runtime.executors.options import ProcessOptions
from runtime.executors.progress import ProgressFile
from runtime.executors.runs import Run
from runtime.executors.saving import Offer

#: Usual intervals without a step until workers count as stuck.
_STUCK_INTERVALS = 20


class Live:
    """A run that has begun."""

    def __init__(self, options: ProcessOptions, run: Run) -> None:
        self.run = run
        self.file = ProgressFile(run.progress, run.checkpoints)
        #: Since when it lives without a step; None: it moves, or never said steps.
        self.stuck_since_s: float | None = None
        #: Why it was ended by the executor itself, if it was.
        self.doom: str | None = None
        self._options = options
        self._begun_s: float | None = None

    @property
    def step(self) -> int:
        """How far it is, as far as it says; never beyond the end."""
        step = self.run.order.step if self.file.step is None else self.file.step
        return min(step, self.run.order.spec.total_steps)

    @property
    def reached_the_end(self) -> bool:
        """Whether it said the last step and ended in good order."""
        record = self.run.exit_record() or {}
        ended = record.get("workers") or [{"code": None}]
        well = all(worker["code"] == 0 for worker in ended)
        return well and self.step == self.run.order.spec.total_steps

    def offers(self, now_s: float) -> Iterator[Offer]:
        """Read what is new; give the checkpoints that it announces.

        None of an earlier boot: after a crash of the machine, the disk may lack some of them.
        """
        while self.run.this_boot:
            for said in self.file.read(now_s):
                announced = replace(said, step=min(said.step, self.run.order.spec.total_steps))
                yield Offer(self.run.folder, self.run.order.epoch, announced, now_s)
            if not self.file.behind:
                return

    def has_started(self, now_s: float) -> bool:
        """Whether it said a step, or has lived long enough for one that says nothing."""
        if self.file.step is not None:
            return True
        if self._begun_s is None and self.run.begun():
            self._begun_s = now_s
        return self._begun_s is not None and now_s - self._begun_s >= self._options.quiet_start_s

    def becomes_stuck(self, now_s: float) -> bool:
        """Notice workers that live and do not move; True the moment that they count as stuck."""
        moved_s = self.file.moved_s
        if moved_s is None and self.run.order.step > 0:
            moved_s = self._begun_s  # a job that has said steps before is expected to again
        usual_s = _STUCK_INTERVALS * (self.file.step_interval_s or 0.0)
        if moved_s is None or now_s - moved_s < max(self._options.stuck_after_s, usual_s):
            self.stuck_since_s = None
            return False
        before, self.stuck_since_s = self.stuck_since_s, moved_s
        return before is None

    def progress(self, epoch: int) -> GangProgress | None:
        """How far it is, under this epoch; None of one that does not say."""
        spec = self.run.order.spec
        rate = self.file.samples_per_s(spec.samples_per_step)
        if self.file.step is None or rate is None:
            return None
        return GangProgress(self.run.order.job, epoch, self.step, rate)

    def failure(self) -> Failure | None:
        """Why it failed; None if all its workers ended well. Only once it is gone."""
        if self.doom is not None:
            return Failure(self.doom)
        if not self.run.this_boot:
            return Failure("the machine was restarted, and the workers with it")
        program = self.run.order.spec.program
        return failure(
            self.run.exit_record(), self.run.folder, program.argv[0] if program is not None else ""
        )
