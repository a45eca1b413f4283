"""What a gang has to report, in order; and what it has said of GPUs that it gave up."""

from runtime.core import CheckpointDone, CheckpointLost, GangStarted, Report, WorkersLeft
from runtime.executors.saving import Committed


class Words:
    """The reports of one gang."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._said: list[Report] = []
        self._given_up: list[int] = []
        #: Epochs of which it was said that the GPUs they gave up are free.
        self.left: tuple[int, ...] = ()

    def take(self) -> list[Report]:
        """Give what was said since the last call."""
        said, self._said = self._said, []
        return said

    def say(self, report: Report) -> None:
        """Say what has no words of its own here."""
        self._said.append(report)

    def gives_up(self, epoch: int) -> None:
        """Take note that the change to another size takes GPUs from this epoch's allocation."""
        self._given_up.append(epoch)

    def say_left(self, step: int, below: int) -> None:
        """Say of the epochs below this one that the GPUs they gave up are free."""
        done = [epoch for epoch in self._given_up if epoch < below]
        self._given_up = [epoch for epoch in self._given_up if epoch >= below]
        self.left = (*self.left, *done)
        self._said += [WorkersLeft(self._job, epoch, step) for epoch in done]

    def say_left_again(self, left: tuple[int, ...], step: int) -> None:
        """Say it of these epochs: the agent before may have died before it was written down."""
        self.left = left
        self._said += [WorkersLeft(self._job, epoch, step) for epoch in left]

    def forget_left(self) -> None:
        """Begin anew: what earlier epochs gave up is no concern of this one."""
        self._given_up, self.left = [], ()

    def say_started(self, epoch: int, step: int) -> None:
        """Say that the gang trains under this epoch."""
        self._said.append(GangStarted(self._job, epoch, step))

    def say_saved(self, epoch: int, done: Committed) -> None:
        """Say that a checkpoint is durable."""
        step, mib = done.offer.step, done.size_mib
        self._said.append(CheckpointDone(self._job, epoch, step, done.uri, mib, done.cost_s))

    def say_lost(self, epoch: int, error: str) -> None:
        """Say that a checkpoint is not."""
        self._said.append(CheckpointLost(self._job, epoch, error))
