"""One run of a gang's workers, as the gang's lifecycle sees it, wherever they run."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime.core import Pace
from runtime.executors.folder import CHECKPOINTS
from runtime.executors.gang_record import StartedRun
from runtime.executors.progress import AnnouncedCheckpoint, ProgressFile


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    is_success: bool
    error: str = ""
    retriable: bool = True
    #: Whether a worker was started.
    ran: bool = True


@dataclass(frozen=True, slots=True)
class Leave:
    """What the workers of a run are asked."""

    #: By when they must be gone; infinite: not decided yet.
    by_s: float
    #: For good, for a change of size, or since they take no steps.
    why: Literal["stop", "scale", "stuck"]
    #: Whether they save first; else they are ended at once.
    saves: bool = True

    def tightened(self, by_s: float, *, saves: bool) -> "Leave":
        """Give it after one more order, which can only bring the moment forward."""
        return Leave(min(self.by_s, by_s), self.why, self.saves and saves)


class Progress:
    """The progress that the workers of a run report, each in its own file."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Follow these files of a run folder."""
        self.files = [ProgressFile(folder / name, folder / CHECKPOINTS) for name in names]

    def read(self, now_s: float) -> list[AnnouncedCheckpoint]:
        """Read the new lines; give the checkpoints announced in them."""
        found: list[AnnouncedCheckpoint] = []
        for file in self.files:
            found += file.read(now_s)
            for _ in range(file.pieces_left):  # lines written meanwhile are read the next time
                found += file.read(now_s)
        return found

    @property
    def caught_up(self) -> bool:
        """Whether all is read that was there at the first reading."""
        return all(file.caught_up for file in self.files)

    @property
    def step(self) -> int | None:
        """The furthest step reported; None before the first."""
        return max((file.step for file in self.files if file.step is not None), default=None)

    @property
    def moved_s(self) -> float | None:
        """When the last new step of any worker was read; None before the first."""
        return max((file.moved_s for file in self.files if file.moved_s is not None), default=None)

    @property
    def step_interval_s(self) -> float | None:
        """Seconds a step of the first worker for which they are known."""
        intervals = (file.step_interval_s for file in self.files)
        return next((one for one in intervals if one is not None), None)

    def samples_per_s(self, samples_per_step: float) -> float | None:
        """The rate of the first worker that knows one."""
        rates = (file.samples_per_s(samples_per_step) for file in self.files)
        return next((rate for rate in rates if rate is not None), None)

    def pace(self, samples_per_step: float) -> Pace:
        """The pace of the first worker that reports one."""
        said = [file.pace(samples_per_step) for file in self.files]
        return next((one for one in said if one != Pace()), Pace())

    @property
    def metrics(self) -> dict[str, float] | None:
        """The newest figures of its own of the first worker that reports any; None: nobody does."""
        return next((dict(file.metrics) for file in self.files if file.metrics), None)


class Attempt(ABC):
    """The run of one epoch. All calls come from one thread."""

    def __init__(self, started: StartedRun, folder: Path, names: Sequence[str]) -> None:
        """Follow a run whose workers report their progress in these files of its folder."""
        self.started, self.folder = started, folder
        self.progress = Progress(folder, names)
        #: Whether all workers were seen to run.
        self.runs = False
        #: Whether they have taken a first step, as far as can be told.
        self.trains = False
        #: How it ended; its GPUs are free then.
        self.ended: Outcome | None = None
        #: Whether the workers were stopped without an order: the agent's lease was over.
        self.lease_ended = False

    @property
    def epoch(self) -> int:
        """The epoch in force: that of its start, unless it was resized since."""
        return self.started.epoch

    @property
    def step(self) -> int:
        """How far it is known to be."""
        said = self.progress.step
        return self.started.step if said is None else max(self.started.step, said)

    def announced(self, now_s: float) -> Sequence[AnnouncedCheckpoint]:
        """Read the new progress; give the checkpoints announced in it that can be trusted."""
        return self.progress.read(now_s)

    @abstractmethod
    def save(self) -> None:
        """Ask the workers for a checkpoint; they go on."""
