"""A started run: its processes together with the progress that its workers report."""

from collections.abc import Sequence

from runtime.core import Placement
from runtime.executors.attempt import Attempt, Leave, Outcome
from runtime.executors.environment import resizes_in_place
from runtime.executors.failures import Failure, failure
from runtime.executors.folder import PROGRESS
from runtime.executors.gang_record import StartedRun
from runtime.executors.progress import AnnouncedCheckpoint
from runtime.executors.runs import Run

#: Workers that should have been gone for this long are killed without their supervisor.
_OVERDUE_S = 10.0


class LiveRun(Attempt):
    """A run that was started on this machine."""

    def __init__(self, run: Run) -> None:
        self.run, order = run, run.order
        started = StartedRun(order.epoch, order.placement, order.step, order.resume)
        super().__init__(started, run.folder, [PROGRESS])
        (self.file,) = self.progress.files
        self._asked: Leave | None = None

    @property
    def epoch(self) -> int:
        """The epoch in force: that of its start, or of the last resize that the job confirmed.

        Of an earlier boot nothing is read: there, a resize that was not given up counts as done.
        """
        request = self.run.resize_request
        if request is None:
            return self.run.order.epoch
        is_met = self.file.generation == request.epoch or not self.run.this_boot
        return request.epoch if is_met and not request.given_up else request.epoch_before

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
        """The last step that it reported, also where it did not go on from its checkpoint."""
        return self.started.step if self.file.step is None else self.file.step

    def announced(self, now_s: float) -> Sequence[AnnouncedCheckpoint]:
        """Read a piece of the new progress; give the checkpoints that it announces.

        A run of an earlier boot gives none: after a crash the disk may lack some of them.
        """
        return self.file.read(now_s) if self.run.this_boot else ()

    def is_read_to_end(self) -> bool:
        """Whether all progress was read. Ask this once the workers are gone, before judging."""
        return not self.run.this_boot or self.file.is_over()

    def save(self) -> None:
        self.run.save()

    def advance(self, now_s: float, leave: Leave | None) -> None:
        """Note its begin and its end; ask its workers to leave, and kill who does not."""
        gone = self.run.gone()
        self.runs = self.runs or (not gone and self.run.begun())
        if leave is not None:
            self._ask(leave, now_s, gone=gone)
        if gone and self.is_read_to_end():  # its last lines may announce a checkpoint
            self.ended = self._outcome(was_asked=leave is not None)

    def _ask(self, leave: Leave, now_s: float, *, gone: bool) -> None:
        if leave.why == "stuck" or now_s >= leave.by_s + _OVERDUE_S:
            if not gone:
                self.run.kill()
        elif leave != self._asked:
            # Written down also if they are gone: it tells the next agent what came after this run.
            grace_s = max(0.0, leave.by_s - now_s)
            self.run.stop(grace_s, kill=not leave.saves, why=leave.why)
        self._asked = leave

    def _outcome(self, *, was_asked: bool) -> Outcome:
        """Say how it ended. Who was asked to leave is complete only at the job's last step."""
        record, why = self.run.exit_record() or {}, self._failure()
        self.lease_ended = bool(record.get("lease_ended"))
        is_success = why is None
        if was_asked or self.lease_ended or self.run.stop_reason() is not None:
            ended = record.get("workers") or [{"code": None}]
            total = self.run.order.spec.total_steps
            all_well = all(worker["code"] == 0 for worker in ended)
            is_success = all_well and total is not None and self.step >= total
        error, retriable = ("", True) if why is None else (why.error, why.retriable)
        # Its supervisor may find that it cannot start them.
        return Outcome(is_success, error, retriable, ran=not record.get("refused"))

    def _failure(self) -> Failure | None:
        if not self.run.this_boot:
            return Failure("the machine was restarted, and the workers with it")
        program = self.run.order.spec.program
        argv0 = program.argv[0] if program is not None else ""
        return failure(self.run.exit_record(), self.run.folder, argv0)
