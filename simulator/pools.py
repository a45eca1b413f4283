"""The rest of a cluster beside its training pool: pools with owners, what those need, failures.

Nodes of a pool are called `<pool>-<number>`. All here is plain data; `simulator.fleet` lives it.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Floats, Ints, Kind
from simulator.tides import Tide


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What an owner needs in GPUs: even within each slot; the last slot goes on for ever.

    Attributes:
        gpus: (n,) GPUs needed; fractions are allowed.
        slot_s: Length of a slot.
        from_s: When the first slot begins. Before the run (below 0), so that a forecast has
            something to go by when it begins.
    """

    gpus: Floats
    slot_s: float = 60.0
    from_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no load."""
        if not len(self.gpus) or not np.isfinite(self.gpus).all() or self.gpus.min() < 0:
            raise ValueError("gpus: give at least one slot, each finite and not negative")
        if self.slot_s <= 0:
            raise ValueError(f"slot_s: {self.slot_s} must be above 0")

    @classmethod
    def of_tide(cls, tide: Tide, from_s: float = 0.0) -> "Load":
        """Give the whole GPUs that a tide needs."""
        return cls(tide.needed.astype(np.float64), tide.slot_s, from_s)

    def scaled(self, factor: float) -> "Load":
        """Give `factor` times the load."""
        return Load(self.gpus * factor, self.slot_s, self.from_s)

    def repeated(self, until_s: float) -> "Load":
        """Give the load again and again until a moment."""
        slots = max(1, int(np.ceil((until_s - self.from_s) / self.slot_s)))
        return Load(np.resize(self.gpus, slots), self.slot_s, self.from_s)

    def at(self, now_s: float) -> float:
        """Return GPUs needed at a moment."""
        return float(self.gpus[self._slot(now_s)])

    def integrals(
        self, from_s: float, to_s: float, have: float, most: float
    ) -> tuple[float, float]:
        """Return the GPU seconds needed in a time, and those of them that `have` GPUs miss.

        What is needed above `most` counts for neither: nobody could have had it.
        """
        first, last = self._slot(from_s), self._slot(to_s)
        if first == last:
            need = min(float(self.gpus[first]), most)
            return need * (to_s - from_s), max(need - have, 0.0) * (to_s - from_s)
        edges = self.from_s + self.slot_s * np.arange(first + 1, last + 1)
        width = np.diff(np.concatenate(([from_s], edges, [to_s])))
        needs = np.minimum(self.gpus[first : last + 1], most)
        return float(needs @ width), float(np.maximum(needs - have, 0.0) @ width)

    def _slot(self, now_s: float) -> int:
        return min(max(int((now_s - self.from_s) // self.slot_s), 0), len(self.gpus) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPool:
    """Like nodes of one pool, beside the training pool.

    Attributes:
        id: Its name; not `train`.
        kind: TRAINING for GPUs of another type; INFERENCE lends whole servers; EDGE has servers
            that each hold one gang.
        nodes: How many.
        gpus_per_node: GPUs on each.
        speed: Of its GPUs, where those of the training pool have 1.
        memory_mib: Of each GPU.
        transfer_mib_per_s: Of checkpoints, to and from it.
        loads: What owners need. INFERENCE: exactly one, of the pool. EDGE: one for each node, or
            none: their owners never need them.
        drain_s: Between being asked for and being lent; the owner no longer serves.
        warm_up_s: Between going back and serving again.
        agents: Of a TRAINING pool: among so many agents its nodes are divided. A gang runs within
            one, and its checkpoint travels when it goes to another.
    """

    id: str
    kind: Kind
    nodes: int
    gpus_per_node: int = 8
    speed: float = 1.0
    memory_mib: float = float("inf")
    transfer_mib_per_s: float = float("inf")
    loads: tuple[Load, ...] = ()
    drain_s: float = 20.0
    warm_up_s: float = 30.0
    agents: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no pool."""
        wanted = {
            Kind.TRAINING: (0,),
            Kind.INFERENCE: (1,),
            Kind.EDGE: (0, self.nodes),
        }[self.kind]
        if len(self.loads) not in wanted:
            raise ValueError(f"loads: {self.id} has {len(self.loads)}; give {wanted[-1]}")
        if self.nodes < 1 or self.gpus_per_node < 1 or self.speed <= 0:
            raise ValueError(f"{self.id}: nodes, gpus_per_node, speed must be above 0")
        if not 1 <= self.agents <= (self.nodes if self.kind == Kind.TRAINING else 1):
            raise ValueError(f"{self.id}: agents must be from 1 to nodes, 1 if not of training")

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node


@dataclass(slots=True)
class Owner:
    """One lender: an inference pool, or one edge server. Moments are the run's."""

    id: str
    kind: Kind
    nodes: Ints  #: By id.
    load: Load
    gpus: int  #: It owns.
    held: int = 0  #: GPUs that it serves with.
    needed_gpu_s: float = 0.0
    short_gpu_s: float = 0.0
    since_s: float = 0.0

    def book(self, now_s: float) -> None:
        """Count what it needed and missed until now."""
        if now_s > self.since_s:
            have, most = float(self.held), float(self.gpus)
            needed, short = self.load.integrals(self.since_s, now_s, have, most)
            self.needed_gpu_s += needed
            self.short_gpu_s += short
            self.since_s = now_s

    def serve(self, gpus: int, now_s: float) -> None:
        """Let it serve with so many GPUs more, or less."""
        self.book(now_s)
        self.held += gpus


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that is gone for a while; jobs on it go back to their last checkpoint."""

    at_s: float
    node: str
    down_s: float


def node_ids(prefix: str, count: int) -> tuple[str, ...]:
    """Name so many nodes, in the order of their names."""
    digits = max(3, len(str(count - 1)))
    return tuple(f"{prefix}-{number:0{digits}}" for number in range(count))
