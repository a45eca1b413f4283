"""The face of a cluster: runs that it is handed, and how they end."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloud_agent.clusters.held import Started
from runtime.core import Pace
from runtime.executors.folder import CHECKPOINTS
from runtime.executors.progress import Announced, ProgressFile
from schemas.programs import Program


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    is_success: bool
    error: str = ""
    retriable: bool = True


class Progress:
    """What the workers of a run say, each in a file of its own."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Follow these files of a run folder."""
        self._files = [ProgressFile(folder / name, folder / CHECKPOINTS) for name in names]

    def read(self, now_s: float) -> list[Announced]:
        """Take what is new; give the checkpoints announced in it."""
        found: list[Announced] = []
        for file in self._files:
            found += file.read(now_s)
            for _ in range(file.pieces_left):  # what is written meanwhile is for the next time
                found += file.read(now_s)
        return found

    @property
    def step(self) -> int | None:
        """The furthest step said; None before the first."""
        return max((file.step for file in self._files if file.step is not None), default=None)

    @property
    def moved_s(self) -> float | None:
        """When the last new step of any worker was read; None before the first."""
        return max((file.moved_s for file in self._files if file.moved_s is not None), default=None)

    @property
    def step_interval_s(self) -> float | None:
        """Seconds from step to step of the first worker of whom they are known."""
        intervals = (file.step_interval_s for file in self._files)
        return next((one for one in intervals if one is not None), None)

    def samples_per_s(self, samples_per_step: float) -> float | None:
        """The rate of the first worker that knows one."""
        rates = (file.samples_per_s(samples_per_step) for file in self._files)
        return next((rate for rate in rates if rate is not None), None)

    def pace(self, samples_per_step: float) -> Pace:
        """What the first worker that says anything of its steps says."""
        said = [file.pace(samples_per_step) for file in self._files]
        return next((one for one in said if one != Pace()), Pace())


class Attempt(Protocol):
    """The run of one epoch. All calls come from one thread."""

    #: What was written down about it before the cluster heard of it.
    started: Started
    #: Its run folder.
    folder: Path
    progress: Progress
    #: Whether the workers have taken a first step, as far as can be told.
    trains: bool
    #: How it ended; its GPUs are free then.
    ended: Outcome | None

    @property
    def step(self) -> int:
        """How far it is known to be."""
        ...

    def save(self) -> None:
        """Ask the workers for a checkpoint; they go on."""
        ...

    def turn(self, now_s: float, leave_by_s: float | None) -> None:
        """Do what is next; with `leave_by_s`, see that it is gone by then.

        Raises:
            OSError: the shared folder does not answer; nothing is lost.
        """
        ...


class Cluster(Protocol):
    """A cluster's own scheduler. Calls may block, but for `begin` and `close`."""

    @property
    def away(self) -> str | None:
        """Why it does not answer; None: it does."""
        ...

    def begin(self, wake: Callable[[], None]) -> None:
        """Get ready; `wake` asks for a look, and may be called from any thread."""
        ...

    def keep_lease(self, until_s: float | None, grace_s: float) -> None:
        """Have what runs end by itself then (seconds since the Unix epoch), with this grace.

        Raises:
            OSError: the shared folder cannot be written.
        """
        ...

    def look(self) -> None:
        """See how things stand; attempts go by it until the next look."""
        ...

    def attempt(
        self, folder: Path, job: str, tenant: str | None, program: Program, started: Started
    ) -> Attempt:
        """Prepare the run of what was written down as started."""
        ...

    def end_strays(self, held: Collection[tuple[str, int]]) -> None:
        """End what runs under the agent's name and is none of these (job, epoch)."""
        ...

    def close(self) -> None:
        """End calls that block, from any thread, again and again; what runs there goes on."""
        ...
