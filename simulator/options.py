"""How a run is driven, and the sizes that are worth offering."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from simulator.physics.base import Cluster
from simulator.pools import Failure, SimulatedPool

Agents = Literal["ideal", "core"]


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is driven."""

    cluster: Cluster = field(default_factory=Cluster)
    round_s: float = 60.0  #: inf: no rounds, events alone.
    on_events: bool = False
    #: Least time between decisions: what happens sooner waits for then (ElasticFlow's slots).
    merge_s: float = 0.0
    #: Sizes that any job may take; None: `ladder` of the cluster and what jobs asked for.
    sizes: tuple[int, ...] | None = None
    tick_s: float = 0.0  #: Segments last whole multiples of this (`Physics.tick_s`).
    horizon_s: float = math.inf  #: When to stop, finished or not.
    stall_s: float = 86_400.0  #: Stop when for so long nothing runs and nothing arrives.
    pools: tuple[SimulatedPool, ...] = ()  #: Beside the cluster, which is the first training pool.
    failures: tuple[Failure, ...] = ()
    #: A job that is killed loses what it did since its allocation changed, or since the last whole
    #: multiple of this after it got going. Checkpoints in between cost nothing.
    checkpoint_every_s: float = math.inf
    #: Whether agents take no time (`simulator.gangs`), as in simulators published with papers.
    instant: bool = False
    #: `core`: real agent cores (`simulator.hosted`), for jobs of the `simple` physics.
    agents: Agents = "ideal"


def ladder(cluster: Cluster, requested: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the sizes worth offering: fine steps within a node, then halves and whole nodes.

    For 16 nodes of 4: 1 2 3 4 6 8 12 16 20 24 … 64. At most 16 nodes, in steps that grow; sizes
    that jobs ask for are always among them.
    """
    node = cluster.gpus_per_node
    sizes = {1 << power for power in range(12) if 1 << power <= node}
    sizes |= {3 << power for power in range(11) if 3 << power < node}
    sizes |= {node, node * 3 // 2} | {node * count for count in range(2, 17)}
    fits = {size for size in (*sizes, *requested) if 1 <= size <= cluster.gpus}
    return tuple(sorted(fits))
