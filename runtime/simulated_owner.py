"""A simulated owner of lendable nodes, and the meter of simulated GPUs.

The owner consolidates: it serves with the nodes that are not lent, and falls short when its
demand passes what they give. Its demand is a function of time that the simulation provides.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic.dataclasses import dataclass as checked

from runtime.core import NodeDrained, NodeHandedBack, NodeSpec
from runtime.executor import Machine
from runtime.simulated import Physics, SimulatedExecutor
from schemas.events import InferenceLoad, NodeMeasured
from schemas.options import CHECKED, Count, Delay, Rate

#: GPUs needed at a moment (seconds since the Unix epoch); may be a fraction.
Demand = Callable[[float], float]
#: What a GPU takes.
_IDLE_W, _FULL_W = 60.0, 400.0


@checked(frozen=True, slots=True, config=CHECKED)
class Service:
    """What one serving GPU does, to make the owner's figures agree with each other."""

    drain_s: Delay = 20.0
    warm_up_s: Delay = 30.0
    requests_per_gpu: Count = 16
    requests_per_gpu_s: Rate = 2.0
    latency_s: Delay = 0.8


@dataclass(slots=True)
class _Node:
    gpus: int
    phase: Literal["serving", "draining", "lent", "warming"] = "serving"
    due_s: float = math.inf


class SimulatedOwner:
    """An owner whose replicas are numbers."""

    def __init__(
        self,
        pool: str,
        gpus: Mapping[str, int],
        demand: Demand,
        begin_s: float,
        *,
        per_node: bool = False,
        service: Service | None = None,
    ) -> None:
        """Serve with all nodes from `begin_s` on.

        Args:
            pool: The pool that loads are reported for.
            gpus: GPUs by node.
            demand: GPUs needed at a moment.
            begin_s: From when on shortfall counts.
            per_node: Report the load of the one node, not of the pool.
            service: What a serving GPU does.

        Raises:
            ValueError: `per_node` with another number of nodes than one.
        """
        if per_node and len(gpus) != 1:
            raise ValueError("per_node: the owner of one node reports so; give exactly one node")
        self._pool = pool
        self._nodes = {node: _Node(count) for node, count in sorted(gpus.items())}
        self._demand = demand
        self._per_node = next(iter(self._nodes)) if per_node else None
        self._service = service or Service()
        self._reports: list[NodeDrained | NodeHandedBack] = []
        #: GPUs that serve now.
        self.gpus_serving = sum(gpus.values())
        self._counted_s = begin_s
        self._needed = max(0.0, demand(begin_s))
        self.shortfall_gpu_s = 0.0

    def drain(self, node: str, now_s: float) -> None:
        held = self._nodes[node]
        if held.phase in ("serving", "warming"):
            self._change(held, "draining", now_s, now_s + self._service.drain_s)

    def hand_back(self, node: str, now_s: float) -> None:
        held = self._nodes[node]
        if held.phase in ("draining", "lent"):
            self._change(held, "warming", now_s, now_s + self._service.warm_up_s)
        self._reports.append(NodeHandedBack(node))

    def advance(self, now_s: float) -> list[NodeDrained | NodeHandedBack]:
        while (due := min(self._nodes.items(), key=_due))[1].due_s <= now_s:
            name, node = due
            if node.phase == "draining":
                self._change(node, "lent", node.due_s, math.inf)
                self._reports.append(NodeDrained(name))
            else:
                self._change(node, "serving", node.due_s, math.inf)
        reports, self._reports = self._reports, []
        return reports

    def next_due_s(self) -> float | None:
        if self._reports:
            return 0.0
        due_s = min(node.due_s for node in self._nodes.values())
        return None if due_s == math.inf else due_s

    def loads(self, now_s: float) -> list[InferenceLoad]:
        self._count(now_s)
        service, needed, serving = self._service, self._needed, self.gpus_serving
        served = min(needed, float(serving))
        use = served / serving if serving else 0.0
        # Waiting grows as in a single queue, and is cut where clients would give up.
        latency_s = service.latency_s / max(0.05, 1 - 0.95 * use) if served else None
        return [
            InferenceLoad(
                pool=self._pool,
                node=self._per_node,
                requests_running=round(served * service.requests_per_gpu),
                requests_waiting=math.ceil((needed - served) * service.requests_per_gpu),
                request_rate_per_s=needed * service.requests_per_gpu_s,
                latency_p99_s=latency_s,
                kv_cache_use=min(1.0, 0.1 + 0.85 * use) if serving else None,
                gpus_needed=math.ceil(needed - 1e-9),
                gpus_serving=serving,
                shortfall_gpu_s=self.shortfall_gpu_s,
            )
        ]

    def utilisation(self, node: str) -> float | None:
        """Share of the node's GPUs that serving uses; None if it does not serve there."""
        if self._nodes[node].phase != "serving":
            return None
        return min(1.0, self._needed / self.gpus_serving)

    def _change(
        self,
        node: _Node,
        phase: Literal["serving", "draining", "lent", "warming"],
        at_s: float,
        due_s: float,
    ) -> None:
        self._count(at_s)
        self.gpus_serving += node.gpus * ((phase == "serving") - (node.phase == "serving"))
        node.phase, node.due_s = phase, due_s

    def _count(self, now_s: float) -> None:
        """Add the shortfall since the last count, by the trapezoid rule at constant capacity."""
        if now_s <= self._counted_s:
            return
        needed = max(0.0, self._demand(now_s))
        before, after = self._needed - self.gpus_serving, needed - self.gpus_serving
        if before > 0 and after > 0:
            share = (before + after) / 2
        else:  # it crosses the capacity at most once, on a straight line
            above = max(before, after, 0.0)
            share = above * above / (2 * abs(after - before)) if above > 0 else 0.0
        self.shortfall_gpu_s += share * (now_s - self._counted_s)
        self._needed, self._counted_s = needed, now_s


def _due(item: tuple[str, _Node]) -> tuple[float, str]:
    return item[1].due_s, item[0]


class SimulatedMeter:
    """Readings that follow from what runs: training 0.9, serving needed / serving, idle 0."""

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        executor: SimulatedExecutor,
        owner: SimulatedOwner | None = None,
    ) -> None:
        self._nodes = tuple(nodes)
        self._executor = executor
        self._owner = owner

    def measure(self, now_s: float, window_s: float) -> list[NodeMeasured]:
        training = self._executor.trains(now_s)
        return [self._node(spec, window_s, training) for spec in self._nodes]

    def _node(
        self, spec: NodeSpec, window_s: float, training: Mapping[tuple[str, int], bool]
    ) -> NodeMeasured:
        serving = self._owner.utilisation(spec.node) if self._owner is not None else None
        use: list[float | None] = []
        memory: list[int | None] = []
        for gpu in range(spec.gpu_count):
            trains = training.get((spec.node, gpu))
            if trains is not None:
                use.append(0.9 if trains else 0.05)
                memory.append(int(0.8 * spec.gpu_memory_mib))
            else:
                use.append(serving or 0.0)
                memory.append(0 if serving is None else int(0.9 * spec.gpu_memory_mib))
        return NodeMeasured(
            node=spec.node,
            window_s=window_s,
            gpu_utilisation=use,
            gpu_memory_used_mib=memory,
            gpu_temperature_c=[30.0 + 45.0 * (share or 0.0) for share in use],
            gpu_power_w=[_IDLE_W + (_FULL_W - _IDLE_W) * (share or 0.0) for share in use],
        )


def simulated_machine(
    nodes: Sequence[NodeSpec],
    begin_s: float,
    *,
    demand: Demand | None = None,
    physics: Physics | None = None,
    service: Service | None = None,
) -> Machine:
    """Give simulated workers, GPUs and, if there is a demand, an owner of all the nodes.

    An owner consolidates on the nodes that are not lent. It reports the load of the pool, or, of an
    edge server, that of the one node.
    """
    executor = SimulatedExecutor({spec.node: spec.speed_factor for spec in nodes}, physics)
    owner = None
    if demand is not None:
        gpus = {spec.node: spec.gpu_count for spec in nodes}
        per_node = nodes[0].pool_kind == "edge"
        owner = SimulatedOwner(
            nodes[0].pool, gpus, demand, begin_s, per_node=per_node, service=service
        )
    return Machine(executor, SimulatedMeter(nodes, executor, owner), owner)


def simulated(
    demand: Demand | None = None, physics: Physics | None = None, service: Service | None = None
) -> Callable[[Sequence[NodeSpec], float], Machine]:
    """Give what makes simulated machines; with a demand, their nodes have an owner."""
    return partial(simulated_machine, demand=demand, physics=physics, service=service)
