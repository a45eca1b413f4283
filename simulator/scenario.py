"""A demo's whole world: pools of nodes, the tides of those who lend, and the training jobs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from schemas.events import PoolKind
from simulator.generate import Demand, generate
from simulator.tides import Tide, edge_tide, pool_tide, tide_of_services
from simulator.workload import Workload

GPUS_PER_NODE = 8
#: How contended the training pool of `scenario_for` is: work asked for over what it has alone.
LOAD = 1.4
NODES_MAX = 64
_EDGE_PER_TRAINING_NODE = 2
_DEFAULT_NODES = 4


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Like nodes under one owner; the fields are those of `schemas.events.NodeBorn`."""

    name: str
    kind: PoolKind
    gpu_type: str
    gpu_memory_mib: int
    speed_factor: float
    transfer_mib_per_s: float
    nodes: tuple[tuple[str, int], ...]  #: (name, GPUs), by name.

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(count for _, count in self.nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """Everything a simulation starts from; times are seconds after its start."""

    name: str
    seed: int
    hours: float
    pools: tuple[PoolSpec, ...]
    workload: Workload
    #: By lender: an inference pool's name, or an edge server's.
    tides: Mapping[str, Tide]
    notes: tuple[str, ...] = ()

    def pool(self, kind: PoolKind) -> PoolSpec:
        """Give the pool of a kind."""
        return next(pool for pool in self.pools if pool.kind == kind)


def asked_gpu_s(workload: Workload, hours: float) -> float:
    """GPU-seconds that jobs ask for before the end, if each ran at once at the size asked for."""
    end_s = hours * 3600.0
    return sum(min(job.gpu_s, job.gpus_asked * max(0.0, end_s - job.at_s)) for job in workload.jobs)


def first_hour(hours: float) -> int:
    """Give the hour of the day in which so many hours of the default scenario begin.

    A day goes from noon to noon: what people submit in the afternoon waits when the evening's
    traffic ends, and the morning's begins while lent GPUs are in use. What is shorter begins at
    midnight, when owners need little.
    """
    return 12 if hours >= 24.0 else 0


def default_scenario(seed: int, hours: float = 24.0) -> Scenario:
    """A day that needs loans: 4 training nodes, 6 inference nodes, 8 edge servers.

    The jobs ask for 1.4 times what the 32 training GPUs have, and for less than the whole fleet
    has while the tide is out.
    """
    first = first_hour(hours)
    demand = Demand(hours, _DEFAULT_NODES * GPUS_PER_NODE, LOAD, first)
    return _scenario(generate(seed, demand), _DEFAULT_NODES, seed, hours, first)


def scenario_for(workload: Workload, seed: int = 0, hours: float = 24.0) -> Scenario:
    """Fit a fleet to a workload (see `Workload.fit`) such that it is busy but not hopeless.

    The training pool gets 1/1.4 of the GPU time that the jobs ask for within the hours, in whole
    nodes: at least 2, enough for the smallest size of every job, and at most 64. The inference
    pool has 3 nodes for 2 training nodes, and there are 2 edge servers for each.
    """
    wanted = asked_gpu_s(workload, hours) / (LOAD * hours * 3600.0 * GPUS_PER_NODE)
    # Rounding down much would leave a small fleet hopeless.
    nodes = math.ceil(wanted - 0.25)
    largest = max((job.submission.gpus_min for job in workload.jobs), default=1)
    nodes = min(NODES_MAX, max(2, nodes, -(-largest // GPUS_PER_NODE)))
    return _scenario(workload, nodes, seed, hours)


def _scenario(workload: Workload, nodes: int, seed: int, hours: float, first: int = 0) -> Scenario:
    # One stream for each lender: adding a server leaves the tides of the others as they were.
    training = PoolSpec(
        "training", "training", "a100-80g", 81_920, 1.0, 2_000.0, _nodes("train", nodes)
    )
    lending = max(1, nodes * 3 // 2)
    inference = PoolSpec(
        "inference", "inference", "a100-40g", 40_960, 0.8, 1_000.0, _nodes("serve", lending)
    )
    servers = tuple(
        (f"edge-{n + 1:03d}", 1 + n % 2) for n in range(_EDGE_PER_TRAINING_NODE * nodes)
    )
    edge = PoolSpec("edge", "edge", "t4", 16_384, 0.4, 60.0, servers)
    tides: dict[str, Tide] = {}
    if workload.services:
        tides[inference.name] = tide_of_services(workload.services, inference.gpus, hours)
    else:
        rng = np.random.Generator(np.random.PCG64([seed, 1]))
        tides[inference.name] = pool_tide(rng, inference.gpus, hours, first)
    for index, (name, gpus) in enumerate(servers):
        rng = np.random.Generator(np.random.PCG64([seed, 2 + index]))
        tides[name] = edge_tide(rng, gpus, hours, first)
    note = (
        f"Fleet: {training.gpus} training GPUs, {inference.gpus} inference GPUs (speed "
        f"{inference.speed_factor:g}), {edge.gpus} edge GPUs on {len(servers)} servers (speed "
        f"{edge.speed_factor:g})."
    )
    return Scenario(
        name=workload.name,
        seed=seed,
        hours=hours,
        pools=(training, inference, edge),
        workload=workload,
        tides=MappingProxyType(tides),
        notes=(*workload.notes, note),
    )


def _nodes(prefix: str, count: int) -> tuple[tuple[str, int], ...]:
    return tuple((f"{prefix}-{n + 1:03d}", GPUS_PER_NODE) for n in range(count))
