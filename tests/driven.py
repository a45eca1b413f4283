"""An executor that a test drives, whatever is behind it."""

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from cloud_agent.clusters.executor import ClusterExecutor
from cloud_agent.options import ClusterOptions
from runtime.core import (
    CheckpointWorkers,
    GangFailed,
    Placement,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.executor import Executor
from schemas.commands import GangSpec
from schemas.events import RatePoint
from schemas.programs import Program
from tests.patience import PATIENCE_S


def spec(program: Program | None, total_steps: int | None = 1_000_000) -> GangSpec:
    """Give what an agent is told about a job."""
    return GangSpec(
        model="m",
        total_steps=total_steps,
        samples_per_step=8,
        rates=[RatePoint(gpus=1, samples_per_s=100.0)],
        checkpoint_mib=1,
        checkpoint_cost_s=1.0,
        start_cost_s=1.0,
        program=program,
    )


class Closed(Executor, Protocol):
    """One that can be put away; its gangs live on."""

    def close(self) -> None: ...


_Executor = TypeVar("_Executor", bound=Closed)
_Report = TypeVar("_Report")


class Driven(ABC, Generic[_Executor]):
    """Reports of one executor, which can be put away and made anew, and orders to it."""

    #: How often it is looked at, and for how long before a test gives up.
    every_s, patience_s = 0.02, PATIENCE_S

    def __init__(self, folder: Path) -> None:
        """Make the executor; `folder` is where it keeps its runs."""
        self.folder = folder
        self.executor = self.make()
        #: All that was reported.
        self.said: list[Report] = []

    @abstractmethod
    def make(self) -> _Executor:
        """Make an executor, as an agent does that begins."""

    def save(self, epoch: int = 1, job: str = "j") -> None:
        """Order a checkpoint."""
        self.executor.checkpoint(CheckpointWorkers(job, epoch), time.time())

    def stop(
        self, epoch: int = 1, *, job: str = "j", saves: bool = True, grace_s: float = 60.0
    ) -> None:
        """Order the end."""
        self.executor.stop(StopWorkers(job, epoch, saves, grace_s), time.time())

    def look(self) -> None:
        """Let the executor look once."""
        self.said += self.executor.advance(time.time())

    def until(self, condition: Callable[[], object], what: str = "it never came to that") -> None:
        """Drive until something holds."""
        deadline_s = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < deadline_s, (
                f"{what}; said: {self.said}; {getattr(self.executor, 'away', '')}"
            )
            time.sleep(self.every_s)
            self.look()

    def hears(self, kind: type[_Report], count: int = 1) -> _Report:
        """Drive until there are so many reports of a kind; give the last of them."""
        self.until(lambda: len(self.all(kind)) >= count, f"no {kind.__name__}")
        return self.all(kind)[-1]

    def all(self, kind: type[_Report]) -> list[_Report]:
        """Give the reports of a kind."""
        return [report for report in self.said if isinstance(report, kind)]

    def fails(self, says: str = "", *, retriable: bool = True) -> GangFailed:
        """Drive until a gang fails, in these words; whether another try is of use."""
        failed = self.hears(GangFailed)
        assert says in failed.error
        assert failed.retriable == retriable, failed
        return failed

    def again(self) -> tuple[str, ...]:
        """Put a new executor in the place of this one, as after a restart; give what runs."""
        self.executor.close()
        self.executor = self.make()
        return self.executor.running()

    def run(self, epoch: int = 1, job: str = "j") -> Path:
        """Name a run folder."""
        return self.folder / "runs" / job / str(epoch)

    def step(self, job: str = "j") -> int:
        """How far a gang is; 0 if it does not say."""
        return {p.job: p.step for p in self.executor.progress(time.time())}.get(job, 0)


class Watch(ABC):
    """Looks all the time, outside of any executor, whether GPUs are given twice."""

    def __init__(self) -> None:
        """Begin to look."""
        #: What was wrong.
        self.wrong: set[str] = set()
        #: How often it could look.
        self.looks = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @abstractmethod
    def look(self) -> set[str]:
        """Give what is wrong now."""

    def end(self) -> None:
        """Look no more."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with suppress(AssertionError, OSError):  # the test has stopped the cluster
                self.wrong |= self.look()
                self.looks += 1
            if self._ending.wait(0.2):
                return


class _Cluster(Protocol):
    folder: Path

    def compose(self, *arguments: str) -> str: ...

    def signal(self, daemon: str, number: signal.Signals) -> None: ...


class ClusterBench(Driven[ClusterExecutor]):
    """An executor on a cluster with two nodes of two GPUs each, watched from outside of it."""

    def __init__(self, cluster: _Cluster, root: Path, options: ClusterOptions) -> None:
        """Make the executor; what it takes and leaves here is in `root`."""
        self._cluster, self.root, self.options = cluster, root, options
        super().__init__(options.root)

    #: Who answers for the cluster.
    daemon: str

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let the cluster answer nobody for a while."""
        self._cluster.signal(self.daemon, signal.SIGSTOP)
        try:
            yield
        finally:
            self._cluster.signal(self.daemon, signal.SIGCONT)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let nobody be there to answer for a while."""
        self._cluster.signal(self.daemon, signal.SIGKILL)
        try:
            yield
        finally:
            self._cluster.compose("up")

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self.options.agent

    @property
    def agent_code(self) -> str:
        """Lines of Python that make such a bench, named `bench`, in another process."""
        bench, cluster = type(self), type(self._cluster)
        return (
            f"from {bench.__module__} import {bench.__name__}, {cluster.__name__}\n"
            f"cluster = {cluster.__name__}(Path({str(self._cluster.folder)!r}))\n"
            f"bench = {bench.__name__}(cluster, Path({str(self.root)!r}))"
        )

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

    @abstractmethod
    def jobs(self) -> list[str]:
        """Give what the cluster holds for it, by the cluster's own ids."""

    @abstractmethod
    def logs(self, epoch: int = 1, job: str = "j") -> str:
        """Give what all workers of a run have printed."""
