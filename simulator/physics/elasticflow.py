"""Jobs of the ElasticFlow traces: throughput tables, deadlines, and pauses by a formula.

The ground truth is that of the simulator published with ElasticFlow (ASPLOS '23), rebuilt from a
description. A job is a number of iterations at a fixed global batch. Its speed is that of a table
at its number of GPUs, wherever they are: gangs there are powers of two on aligned nodes, so
placement costs nothing. A change of allocation pauses it, by `Overhead`.

What the published simulator charges depends on the policy (`CHARGES`): ElasticFlow pays, less
where the nodes stay the same; Tiresias pays when it resumes a job; EDF pays nothing; Gandiva pays
at each slice of time. So a policy of ours is comparable only under a charge that is named.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np

from simulator.csv_rows import WorkloadError
from simulator.physics.base import Cluster, Entry, Observed, Placement, Segment
from simulator.profiles import Profiles, RateTable, load_profiles
from simulator.trace_formats import read_jobs

#: Who pays the overhead, and when.
#: `cached`: every change; only the base where the set of nodes is the same.
#: `full`: every change, all of it.
#: `resume`: all of it, but not at the first start.
#: `slices`: as `full`, and again at every slice of time, as a loss of speed.
#: `none`: nobody.
Charge = Literal["cached", "full", "resume", "slices", "none"]

#: What the published simulator charges each policy.
CHARGES: Mapping[str, Charge] = MappingProxyType(
    {
        "elasticflow": "cached",
        "themis": "cached",
        "edf": "none",
        "tiresias": "resume",
        "gandiva": "slices",
    }
)
#: Profiled sizes are used up to this, and up to the batch.
_GPUS_MAX = 64


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a change costs, in seconds, by the published formula."""

    base_s: float = 2.0
    doubling_s: float = 2.0  #: for each doubling of the gang, and once more.
    restart_s: float = 27.0  #: of a process restart, which one in `restart_every` changes needs.
    restart_every: int = 60
    charge: Charge = "cached"
    #: With `slices`: how often a job is suspended and resumed. The description does not say; this
    #: is fitted to the published simulator's figure for Gandiva (docs/results/peers.md).
    slice_s: float = 240.0

    def full_s(self, gpus: int) -> float:
        """Return the cost of a start on other nodes; restarts are spread evenly over changes."""
        doublings = math.log2(gpus) + 1.0
        return self.base_s + self.doubling_s * doublings + self.restart_s / self.restart_every

    def pause_s(self, before: Placement, after: Placement, *, first: bool) -> float:
        """Return the cost of a change to `after`."""
        if self.charge == "none" or (self.charge == "resume" and first):
            return 0.0
        if self.charge == "cached" and {n for n, _ in before} == {n for n, _ in after}:
            return self.base_s + self.restart_s / self.restart_every
        return self.full_s(sum(gpus for _, gpus in after))

    def useful(self, gpus: int) -> float:
        """Return the part of the time in which a job with so many GPUs makes progress."""
        if self.charge != "slices":
            return 1.0
        return max(0.0, 1.0 - self.full_s(gpus) / self.slice_s)


def overhead_in(cluster: Cluster) -> Overhead:
    """Return the published cost in a cluster: higher in one of 256 GPUs or more."""
    if cluster.gpus >= 256:
        return Overhead(base_s=7.0, restart_s=47.0)
    return Overhead()


class TableJob:
    """A job whose speed is a table's. Work and progress are iterations."""

    stamp = None

    def __init__(self, table: RateTable, iterations: float, overhead: Overhead) -> None:
        limit = min(_GPUS_MAX, table.batch)
        #: GPUs -> iterations per second.
        self.rates = {
            point.gpus: point.samples_per_s / table.batch
            for point in table.rates
            if point.gpus <= limit
        }
        self.total = float(iterations)
        self._overhead = overhead
        self._started = False

    def segment(self, progress: float, gpus: tuple[int, ...]) -> Segment:
        """Go on at the table's speed to the end."""
        size = sum(gpus)
        return Segment(self.rates.get(size, 0.0) * self._overhead.useful(size), self.total)

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        """Tell the table as it is: sizes that were not profiled are not allowed."""
        return Observed(np.array([self.rates.get(n, 0.0) for n in sizes]), self.total - progress)

    def pause_s(self, before: Placement, after: Placement) -> float:
        """Charge a change."""
        first, self._started = not self._started, True
        return self._overhead.pause_s(before, after, first=first)


@dataclass(frozen=True, slots=True)
class ElasticFlowPhysics:
    """The physics of the ElasticFlow traces.

    Attributes:
        profiles: Folder of tables, `<model>.csv`: `A100` or `T4` of the published ones.
        charge: Who pays for changes; None: `cached`, for every policy alike.
        overhead: The formula's figures; None: the published ones for the cluster.
    """

    profiles: Path
    charge: Charge | None = None
    overhead: Overhead | None = None
    tick_s: ClassVar[float] = 0.0
    instant: ClassVar[bool] = True
    #: Every size of the published tables.
    sizes: tuple[int, ...] = field(default=(1, 2, 4, 8, 16, 32, 64))

    def charging(self, policy: str) -> "ElasticFlowPhysics":
        """Return it with what the published simulator charges a policy, `cached` if it has none."""
        return replace(self, charge=CHARGES.get(policy, "cached"))

    def entries(self, workload: Path, cluster: Cluster, *, adaptive: bool) -> list[Entry]:
        """Read a trace. Batches are never tuned: `adaptive` means nothing here.

        A job that asks for a size without a figure asks for the nearest that has one.

        Raises:
            WorkloadError: The file cannot be used, or a model at a batch has no figures.
        """
        tables = load_profiles(self.profiles)
        overhead = self.overhead or overhead_in(cluster)
        if self.charge is not None:
            overhead = replace(overhead, charge=self.charge)
        entries = []
        for row in read_jobs(workload):
            table = _table(tables, workload, row.model, row.batch)
            if row.steps is None:
                raise WorkloadError(f"{workload}: line {row.line} has no number of iterations.")
            job = TableJob(table, row.steps, overhead)
            entries.append(
                Entry(
                    id=row.job,
                    submit_s=row.submit_s,
                    model=job,
                    requested=min(job.rates, key=lambda n: (abs(n - row.gpus), n)),
                    deadline_s=math.inf if row.deadline_s is None else row.deadline_s,
                    tenant=row.tenant,
                    start_cost_s=overhead.full_s(1) if overhead.charge != "none" else 0.0,
                )
            )
        return entries


def _table(tables: Profiles, workload: Path, model: str, batch: float) -> RateTable:
    table = tables.find(model, batch)
    if table is None or not any(p.gpus <= min(_GPUS_MAX, table.batch) for p in table.rates):
        raise WorkloadError(
            f"{workload}: {tables.name} has no {model} at batch {batch:g}. "
            "Give the folder with the tables that the trace was made for."
        )
    return table
