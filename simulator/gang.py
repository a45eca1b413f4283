"""One job as it really is, the gang that it has, and what its tenant declares of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from schemas.events import JobSubmitted, RatePoint
from simulator.driver import START_S
from simulator.physics.base import Entry, Placement

#: Steps that the scheduler counts in a unit of progress, so that it sees parts of one.
STEPS = 65_536
_STEPS_MOST = 2**52
_NEVER = -math.inf
_LEAST_RATE, _MOST_RATE = 1e-9, 1e9
#: Rates that a submission may have.
_RATES_MOST = 64

Allocation = dict[str, list[int]]


class Ground(Protocol):
    """Where gangs run: nodes by number, and how far it is between their sites."""

    def placement(self, allocation: Mapping[str, Sequence[int]]) -> Placement:
        """Count the GPUs that are held on each node."""
        ...

    def site(self, placement: Placement) -> int:
        """Number the site that a gang is at."""
        ...

    def speed(self, site: int, affinity: Mapping[str, float]) -> float:
        """Return the speed at a site of a job that has its own speed in some pools."""
        ...

    def agent_of(self, node: int) -> str:
        """Name a node's agent."""
        ...

    def travel_s(self, mib: float, before: int, after: int) -> float:
        """Say how long a checkpoint takes from site to site."""
        ...


class Witness:
    """Is told what becomes of jobs; this one counts nothing. Moments are the engine's."""

    def changed(
        self,
        job: int,
        site: int,
        before: Placement,
        after: Placement,
        now_s: float,
        ready_s: float,
    ) -> None:
        """A job has another allocation, and makes no progress until `ready_s`."""

    def ended(self, job: int, at_s: float) -> None:
        """A job is done."""

    def killed(self, job: int, lost_s: float) -> None:
        """A job stopped without a checkpoint, and has to do so much again."""


@dataclass(slots=True)
class Gang:
    """A job, and the gang it has at present."""

    entry: Entry
    number: int
    steps: float  #: In a unit of progress.
    samples: float = field(default=1.0, kw_only=True)  #: In one, too, as its rate is told.
    epoch: int = -1
    allocation: Allocation = field(default_factory=dict)  #: What it runs on.
    gpus: tuple[int, ...] = ()  #: On each node, most first.
    pace: float = 1.0  #: Of where it runs.
    leaving: list[tuple[int, Allocation]] = field(default_factory=list)  #: By epoch, not free yet.
    before: Placement = ()  #: What a gang that migrates came from.
    site: int = -1  #: Where its checkpoint is; -1: it never ran.
    agent: str = ""  #: Source of what is said of it.
    done: float = 0.0  #: Progress at `from_s`, where the present segment begins.
    from_s: float = 0.0
    speed: float = 0.0
    until: float = 0.0  #: Progress at which the segment ends...
    mark_s: float = math.inf  #: ...and when that is.
    ready_s: float = _NEVER  #: When the pause of its newest change ends.
    saved: float = 0.0  #: Progress of the newest checkpoint, and when it was written.
    saved_s: float = _NEVER
    is_up: bool = False  #: Whether the scheduler was told that it runs.
    runs: bool = False  #: Whether it has a gang that neither stopped nor was killed.
    saves: bool = False  #: Whether it writes its last checkpoint.
    age: int = 0  #: Grows with every change: what was due before is void.
    is_over: bool = False
    said: tuple[int, int] = (0, 0)  #: Its step, and that of its checkpoint, as it was told.
    stamp: int | None = None

    def progress(self, now_s: float) -> float:
        """Give how far it is."""
        ran_s = now_s - self.from_s
        return self.done if ran_s <= 0.0 else min(self.done + self.speed * ran_s, self.until)

    def step(self, now_s: float) -> int:
        """Give the same in steps as the scheduler counts them."""
        return int(self.progress(now_s) * self.steps)


def steps_of(entry: Entry) -> float:
    """Give the steps in a unit of a job's progress."""
    return min(STEPS, _STEPS_MOST / max(entry.model.total, 1e-9))


def submission(entry: Entry, sizes: tuple[int, ...]) -> JobSubmitted:
    """Say what a tenant declares of a job that may have these sizes, ascending."""
    steps, observed = steps_of(entry), entry.model.observed(0.0, sizes)
    return JobSubmitted(
        job=entry.id,
        tenant=entry.tenant,
        model="simulated",
        gpus_min=sizes[0],
        gpus_max=sizes[-1],
        gpus=entry.requested,
        total_steps=None if entry.kin else max(1, int(entry.model.total * steps)),
        samples_per_step=1.0 / steps,
        rates=[
            RatePoint(gpus=size, samples_per_s=min(max(rate, _LEAST_RATE), _MOST_RATE))
            for size, rate in _declared(entry, sizes, observed.rates.tolist())
        ],
        deadline_s=None if math.isinf(entry.deadline_s) else START_S + entry.deadline_s,
        memory_mib=int(entry.memory_mib),
        checkpoint_mib=int(entry.checkpoint_mib),
        checkpoint_cost_s=entry.checkpoint_cost_s,
        start_cost_s=entry.start_cost_s,
        priority=entry.priority,
        edge_allowed=entry.edge_allowed,
    )


def can(rate: float) -> float:
    """Give a rate as it is, of one that a simulated tenant declares: of some sizes it is none."""
    return rate if rate > _LEAST_RATE else 0.0


def _declared(
    entry: Entry, sizes: tuple[int, ...], rates: Sequence[float]
) -> list[tuple[int, float]]:
    """Choose the sizes that a submission names, where it has no room for all.

    Those are the size asked for, then those that the job can run at. All are told before anybody
    decides, as what is known of its speed (`simulator.gangs`).
    """
    every = list(zip(sizes, rates, strict=True))
    every.sort(key=lambda one: (one[0] != entry.requested, one[1] <= 0.0, one[0]))
    return sorted(every[:_RATES_MOST])
