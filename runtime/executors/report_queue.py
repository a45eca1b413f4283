"""The reports that a gang has for the agent's core, in order."""

from runtime.core import CheckpointLost, GangStarted, Report, WorkersLeft
from runtime.executors.uploading import Uploaded


class ReportQueue:
    """Queues the reports of one gang, and knows which given-up GPUs it has reported as free."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._reports: list[Report] = []
        self._releasing: list[int] = []
        #: Epochs for which `WorkersLeft` was reported: the GPUs that they gave up are free.
        self.left: tuple[int, ...] = ()

    def drain(self) -> list[Report]:
        """Give the reports that were added since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def add(self, *reports: Report) -> None:
        """Add reports, in order."""
        self._reports += reports

    def expect_release(self, epoch: int) -> None:
        """Note that the change to another size takes GPUs from this epoch's allocation."""
        self._releasing.append(epoch)

    def add_left(self, step: int, below: int) -> None:
        """Report for the epochs below this one that the GPUs they gave up are free."""
        done = [epoch for epoch in self._releasing if epoch < below]
        self._releasing = [epoch for epoch in self._releasing if epoch >= below]
        self.left = (*self.left, *done)
        self._reports += [WorkersLeft(self._job, epoch, step) for epoch in done]

    def repeat_left(self, left: tuple[int, ...], step: int) -> None:
        """Report it again for these epochs: the agent may have died before it stored the report."""
        self.left = left
        self._reports += [WorkersLeft(self._job, epoch, step) for epoch in left]

    def forget_left(self) -> None:
        """Drop what earlier epochs gave up: a new start is no change of their size."""
        self._releasing, self.left = [], ()

    def add_started(self, epoch: int, step: int) -> None:
        """Report that the gang trains under this epoch."""
        self._reports.append(GangStarted(self._job, epoch, step))

    def add_checkpoint(self, epoch: int, done: Uploaded) -> None:
        """Report that a checkpoint is durable."""
        self._reports.append(done.report(self._job, epoch))

    def add_lost_checkpoint(self, epoch: int, error: str) -> None:
        """Report that a checkpoint could not be made durable."""
        self._reports.append(CheckpointLost(self._job, epoch, error))
