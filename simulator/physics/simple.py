"""Jobs as Amdahl's law or their throughput tables say; a pause for every change.

For any trace that `simulator.workload` reads, and for made-up ones: the workload called
`generated` is made from a seed (`simulator.generated`) to fill the cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from scheduler.policies.interface import Floats
from simulator.generated import MadeJob, Mix, make_jobs
from simulator.models import speedup
from simulator.physics.base import Cluster, Entry, Observed, Placement, Segment
from simulator.profiles import load_profiles
from simulator.workload import JobArrival, read_workload

#: The workload that is made up instead of read.
GENERATED = "generated"


class SimpleJob:
    """A job whose speed depends on its size alone. Progress and work are in the table's unit."""

    stamp = None

    def __init__(self, rates: Mapping[int, float], work: float, pauses: "Pauses") -> None:
        """Make a job.

        Args:
            rates: GPUs -> work per second; other sizes cannot run.
            work: In all.
            pauses: What starting and changing costs.
        """
        self._rates = rates
        self._pauses = pauses
        self.total = work

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes it can run at, ascending."""
        return tuple(sorted(self._rates))

    def segment(self, progress: float, gpus: tuple[int, ...]) -> Segment:
        return Segment(self._rates.get(sum(gpus), 0.0), self.total)

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        rates: Floats = np.array([self._rates.get(size, 0.0) for size in sizes])
        return Observed(rates, self.total - progress)

    def pause_s(self, before: Placement, after: Placement) -> float:
        return self._pauses.start_s + (self._pauses.checkpoint_s if before else 0.0)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds without progress."""

    start_s: float = 30.0  #: To start on new GPUs, as in the Pollux artifact.
    checkpoint_s: float = 10.0  #: To save before a running job changes its allocation.


@dataclass(frozen=True, slots=True)
class SimplePhysics:
    """Tables or Amdahl's law, and flat pauses."""

    profiles: Path | None = None
    seed: int = 1  #: Of the workload `generated`.
    mix: Mix = field(default_factory=Mix)  #: Of it too, but for the GPUs: those of the cluster.
    pauses: Pauses = field(default_factory=Pauses)
    tick_s: ClassVar[float] = 0.0
    instant: ClassVar[bool] = False

    def entries(self, workload: Path, cluster: Cluster, *, adaptive: bool) -> list[Entry]:
        """Read any known trace, or make jobs up; batches are never tuned."""
        if str(workload) == GENERATED:
            mix = replace(self.mix, gpus=cluster.gpus)
            return [self._made(job) for job in make_jobs(self.seed, mix)]
        tables = None if self.profiles is None else load_profiles(self.profiles)
        return [self._read(job) for job in read_workload(workload, profiles=tables).jobs]

    def notes(self, workload: Path) -> tuple[str, ...]:
        """Say what is otherwise than the file has it."""
        if str(workload) == GENERATED:
            return ()
        tables = None if self.profiles is None else load_profiles(self.profiles)
        return read_workload(workload, profiles=tables).notes

    def _made(self, job: MadeJob) -> Entry:
        rates = {size: speedup(size, job.serial) for size in job.sizes}
        return Entry(
            id=job.id,
            submit_s=job.submit_s,
            model=SimpleJob(rates, job.work_s, self.pauses),
            requested=job.asked,
            deadline_s=job.deadline_s,
            tenant=job.tenant,
            priority=job.priority,
            start_cost_s=self.pauses.start_s,
            checkpoint_cost_s=self.pauses.checkpoint_s,
            checkpoint_mib=job.checkpoint_mib,
            memory_mib=job.memory_mib,
            edge_allowed=True,
        )

    def _read(self, job: JobArrival) -> Entry:
        submission, asked, after_s = job.submission, job.gpus_asked, job.deadline_after_s
        assert submission.total_steps is not None  # traces say how long their jobs were
        rates = {
            point.gpus: point.samples_per_s / submission.samples_per_step
            for point in submission.rates
            if submission.gpus_min <= point.gpus <= submission.gpus_max
        }
        return Entry(
            id=submission.job,
            submit_s=job.at_s,
            model=SimpleJob(rates, float(submission.total_steps), self.pauses),
            requested=min(rates, key=lambda size: (abs(size - asked), size)),
            deadline_s=float("inf") if after_s is None else job.at_s + after_s,
            tenant=submission.tenant,
            priority=submission.priority,
            start_cost_s=self.pauses.start_s,
            checkpoint_cost_s=self.pauses.checkpoint_s,
            checkpoint_mib=float(submission.checkpoint_mib),
            memory_mib=float(submission.memory_mib),
            edge_allowed=True,
        )
