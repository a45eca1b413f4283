"""What the executor needs of a cluster's own scheduler: to run gangs, and to tell how they end."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.core import Pace
from runtime.executors.folder import CHECKPOINTS
from runtime.executors.gang_record import StartedRun
from runtime.executors.progress import AnnouncedCheckpoint, ProgressFile
from schemas.programs import Program


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    is_success: bool
    error: str = ""
    retriable: bool = True


class Progress:
    """The progress that the workers of a run report, each in its own file."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Follow these files of a run folder."""
        self._files = [ProgressFile(folder / name, folder / CHECKPOINTS) for name in names]

    def read(self, now_s: float) -> list[AnnouncedCheckpoint]:
        """Read the new lines; give the checkpoints announced in them."""
        found: list[AnnouncedCheckpoint] = []
        for file in self._files:
            found += file.read(now_s)
            for _ in range(file.pieces_left):  # lines written meanwhile are read the next time
                found += file.read(now_s)
        return found

    @property
    def step(self) -> int | None:
        """The furthest step reported; None before the first."""
        return max((file.step for file in self._files if file.step is not None), default=None)

    @property
    def moved_s(self) -> float | None:
        """When the last new step of any worker was read; None before the first."""
        return max((file.moved_s for file in self._files if file.moved_s is not None), default=None)

    @property
    def step_interval_s(self) -> float | None:
        """Seconds a step of the first worker for which they are known."""
        intervals = (file.step_interval_s for file in self._files)
        return next((one for one in intervals if one is not None), None)

    def samples_per_s(self, samples_per_step: float) -> float | None:
        """The rate of the first worker that knows one."""
        rates = (file.samples_per_s(samples_per_step) for file in self._files)
        return next((rate for rate in rates if rate is not None), None)

    def pace(self, samples_per_step: float) -> Pace:
        """The pace of the first worker that reports one."""
        said = [file.pace(samples_per_step) for file in self._files]
        return next((one for one in said if one != Pace()), Pace())

    @property
    def metrics(self) -> dict[str, float] | None:
        """The newest figures of its own of the first worker that reports any; None: nobody does."""
        return next((dict(file.metrics) for file in self._files if file.metrics), None)


@dataclass(frozen=True, slots=True)
class Work:
    """What is to run."""

    job: str
    program: Program
    #: What was recorded of it before it was handed to the cluster.
    started: StartedRun
    #: The run folder, as the agent sees it.
    folder: Path
    #: Whose it is; None: nobody says.
    tenant: str | None = None

    @property
    def port(self) -> int:
        """Port of its rendezvous, where several share a host: below those that Linux gives out."""
        run = f"{self.job}/{self.started.epoch}"
        return 20_000 + zlib.crc32(run.encode()) % 10_000


class Attempt(ABC):
    """The run of one epoch. All calls come from one thread."""

    def __init__(self, work: Work, progress: Progress) -> None:
        self.work, self.progress = work, progress
        self.started, self.folder = work.started, work.folder
        #: Whether the workers have taken a first step, as far as can be told.
        self.trains = False
        #: How it ended; its GPUs are free then.
        self.ended: Outcome | None = None

    @property
    def run(self) -> tuple[str, int]:
        """The job and epoch that it is of."""
        return self.work.job, self.started.epoch

    @property
    def step(self) -> int:
        """How far it is known to be."""
        said = self.progress.step
        return self.started.step if said is None else max(self.started.step, said)

    @abstractmethod
    def save(self) -> None:
        """Ask the workers for a checkpoint; they go on."""

    @abstractmethod
    def advance(self, now_s: float, leave_by_s: float | None) -> None:
        """Take the next steps; with `leave_by_s`, see that it is gone by then.

        Raises:
            OSError: the shared folder does not answer; nothing is lost.
        """


class Cluster(Protocol):
    """A cluster's own scheduler. Calls may block, but for `begin` and `close`."""

    @property
    def away(self) -> str | None:
        """Why it does not answer; None: it does."""
        ...

    def begin(self, wake: Callable[[], None]) -> None:
        """Connect; the cluster calls `wake`, from any thread, when something changed."""
        ...

    def keep_lease(self, until_s: float | None, grace_s: float) -> None:
        """Have what runs end by itself then (seconds since the Unix epoch), with this grace.

        Raises:
            OSError: the shared folder cannot be written.
        """
        ...

    def look(self) -> None:
        """Fetch the cluster's present state; attempts use it until the next call."""
        ...

    def attempt(self, work: Work) -> Attempt:
        """Give the attempt of a recorded run; nothing is submitted yet."""
        ...

    def delete_orphans(self, expected: Collection[tuple[str, int]]) -> None:
        """Delete what runs under the agent's name and is none of these (job, epoch)."""
        ...

    def close(self) -> None:
        """Interrupt calls that block; may be called from any thread, repeatedly. Jobs go on."""
        ...
