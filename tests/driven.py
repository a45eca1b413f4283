"""An executor that a test drives, whatever is behind it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from cloud_agent.clusters.executor import ClusterExecutor
from runtime.core import (
    CheckpointWorkers,
    Placement,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.executor import Executor
from schemas.programs import Program
from tests.patience import wait_until
from tests.workers import spec


class Closed(Executor, Protocol):
    """One that can be put away; its gangs live on."""

    def close(self) -> None: ...


_Executor = TypeVar("_Executor", bound=Closed)
_Report = TypeVar("_Report")


class Driven(ABC, Generic[_Executor]):
    """Orders and reports of one executor, which can be put away and made anew."""

    def __init__(self, folder: Path) -> None:
        """Make the executor; `folder` is where it keeps its runs."""
        self.folder = folder
        self.executor = self.make()
        #: All that was reported.
        self.said: list[Report] = []

    @abstractmethod
    def make(self) -> _Executor:
        """Make an executor, as an agent does that begins."""

    def start(
        self,
        program: Program | None,
        placement: Placement,
        job: str = "j",
        epoch: int = 1,
        step: int = 0,
        total_steps: int = 1_000_000,
    ) -> None:
        """Order a start."""
        order = StartWorkers(job, epoch, placement, spec(program, total_steps), step, 0.0)
        self.executor.start(order, time.time())

    def scale(self, placement: Placement, epoch: int, job: str = "j") -> None:
        """Order another size."""
        self.executor.scale(ScaleWorkers(job, epoch, placement), time.time())

    def save(self, epoch: int = 1, job: str = "j") -> None:
        """Order a checkpoint."""
        self.executor.checkpoint(CheckpointWorkers(job, epoch), time.time())

    def stop(
        self, epoch: int = 1, *, job: str = "j", saves: bool = True, grace_s: float = 60.0
    ) -> None:
        """Order the end."""
        self.executor.stop(StopWorkers(job, epoch, saves, grace_s), time.time())

    def until(self, condition: Callable[[], object], what: str = "it never came to that") -> None:
        """Drive until something holds."""

        def driven() -> object:
            self.said += self.executor.advance(time.time())
            return condition()

        try:
            wait_until(driven, what)
        except AssertionError:
            away = getattr(self.executor, "away", None)
            raise AssertionError(f"{what}; said: {self.said}; {away}") from None

    def hears(self, kind: type[_Report], count: int = 1) -> _Report:
        """Drive until there are so many reports of a kind; give the last of them."""
        self.until(lambda: len(self.all(kind)) >= count, f"no {kind.__name__}")
        return self.all(kind)[-1]

    def all(self, kind: type[_Report]) -> list[_Report]:
        """Give the reports of a kind."""
        return [report for report in self.said if isinstance(report, kind)]

    def again(self) -> None:
        """Put a new executor in the place of this one, as after a restart of the agent."""
        self.executor.close()
        self.executor = self.make()

    def run(self, epoch: int = 1, job: str = "j") -> Path:
        """Name a run folder."""
        return self.folder / "runs" / job / str(epoch)

    def step(self, job: str = "j") -> int:
        """How far a gang is; 0 if it does not say."""
        return {p.job: p.step for p in self.executor.progress(time.time())}.get(job, 0)


class ClusterBench(Driven[ClusterExecutor]):
    """An executor on a cluster with two nodes of two GPUs each, watched from outside of it."""

    @property
    @abstractmethod
    def agent(self) -> str:
        """The agent's name."""

    @abstractmethod
    def jobs(self) -> list[str]:
        """Give what the cluster holds for it, by the cluster's own ids."""

    @abstractmethod
    def logs(self, epoch: int = 1, job: str = "j") -> str:
        """Give what all workers of a run have printed."""

    @property
    @abstractmethod
    def agent_code(self) -> str:
        """Lines of Python that make such a bench, named `bench`, in another process."""
