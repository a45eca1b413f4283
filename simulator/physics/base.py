"""What a physics is: the ground truth of jobs, plugged into `simulator.gangs`.

A job's progress is a number that grows from 0 to `total` in *segments* of even speed. An ideal
agent asks for a segment when a job gets GPUs and whenever a segment ends. It asks what the policy
can see only when something changed. So a physics is never called for a job that just goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol

from scheduler.policies.interface import Floats

#: (node index, GPUs), by node.
Placement = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of even speed."""

    speed: float  #: Progress per second; 0 if this cannot run.
    until: float  #: Progress at its end; the job's total on the last segment.


@dataclass(frozen=True, slots=True)
class Observed:
    """What a policy can see of a job, until the segment ends. k sizes.

    The unit of work is the physics' choice: progress, iterations, samples. It may differ from
    that of `Segment`; `per_progress` converts.
    """

    rates: Floats  #: (k,) work per second at each size on the fewest nodes; 0: not allowed.
    remaining: float  #: Work left when asked.
    per_progress: float = 1.0  #: Work in a unit of progress.


class JobModel(Protocol):
    """One job's ground truth, and what is known of it."""

    @property
    def total(self) -> float:
        """Progress at which the job is done."""
        ...

    @property
    def stamp(self) -> int | None:
        """A number that changes when `observed` changes within a segment; None: it never does."""
        ...

    def segment(self, progress: float, gpus: tuple[int, ...]) -> Segment:
        """Say how it goes on from `progress` with so many GPUs on each node, most first."""
        ...

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        """Say what the policy may know at `progress`. `rates` are kept by value."""
        ...

    def pause_s(self, before: Placement, after: Placement) -> float:
        """Say for how long it holds `after` without progress, coming from `before` (() if none)."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A job of a workload as a run takes it. Moments in seconds on the workload's own axis."""

    id: str
    submit_s: float
    model: JobModel
    requested: int  #: GPUs its tenant asked for.
    deadline_s: float = float("inf")
    tenant: str = "default"
    priority: int = 0
    start_cost_s: float = 0.0  #: As told to the policy.
    checkpoint_cost_s: float = 0.0  #: As told; a node that goes back is held for so long.
    checkpoint_mib: float = 0.0  #: Carried along when it changes pool.
    memory_mib: float = 0.0  #: Needed on each GPU.
    edge_allowed: bool = False
    #: Its speed in a pool, by the pool's id, where that is not the pool's own.
    affinity: Mapping[str, float] = field(default_factory=dict)
    #: Of a job that declares no total: what jobs have in common whose lengths are alike.
    kin: str = ""


def from_first_day(entries: Sequence[Entry]) -> list[Entry]:
    """Let a workload begin on the day of its first job, at the same time of day.

    A run begins at 0. Where moments are since 1970, all that is counted from there would be of
    decades without a job.
    """
    before_s = min((one.submit_s for one in entries), default=0.0) // 86_400.0 * 86_400.0
    if not before_s:
        return list(entries)
    return [
        replace(one, submit_s=one.submit_s - before_s, deadline_s=one.deadline_s - before_s)
        for one in entries
    ]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that jobs run in: like nodes of one training pool."""

    nodes: int = 16
    gpus_per_node: int = 4
    memory_mib: float = float("inf")  #: Of each GPU.
    transfer_mib_per_s: float = float("inf")  #: Of checkpoints, to and from it.
    agents: int = 1  #: Among so many the nodes are divided; a gang runs within one.

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node


class Physics(Protocol):
    """A published simulator's job model, or a simple one."""

    #: Segments end on whole multiples of this after their beginning; 0: at any moment.
    tick_s: ClassVar[float]
    #: Whether agents take no time, as in a published simulator (`simulator.gangs`).
    instant: ClassVar[bool]

    def entries(self, workload: Path, cluster: Cluster, *, adaptive: bool) -> list[Entry]:
        """Read a workload into jobs nobody has run yet.

        Args:
            workload: A file.
            cluster: Where they will run.
            adaptive: Whether the policy leaves the batch size to the job, which then tunes it;
                otherwise jobs keep the batch of their row. Physics without batches ignore it.

        Raises:
            WorkloadError: The file cannot be used.
        """
        ...
