"""Which nodes to empty, so that the jobs on them lose least.

Emptying a given number of nodes at least cost is a knapsack whose values depend on each other
(a gang that falls empties all its nodes). Three greedy rules are tried, and the cheapest answer
wins; each rule alone is not near enough to the best (policies.md 9.3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

RULES = ("fraction", "count", "ratio")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that holds GPUs on nodes that may have to be emptied."""

    base: int  #: GPUs below which it must stop.
    held: Mapping[int, int]  #: node -> GPUs, everywhere.
    stop_cost: float = 1.0  #: of preempting it; any unit, the same for all.
    shrink_cost: float = 0.0  #: of taking GPUs above its base; far below any `stop_cost`.


@dataclass(frozen=True, slots=True)
class Victims:
    """Nodes to empty, and what that does to jobs. Jobs are indices into the tenants."""

    nodes: tuple[int, ...]  #: ascending.
    stopped: tuple[int, ...]  #: jobs that lose their base.
    shrunk: tuple[int, ...]  #: jobs that lose only GPUs above it.
    cost: float
    rule: str  #: which rule found it.


def assess(tenants: Sequence[Tenant], nodes: Sequence[int], rule: str = "given") -> Victims:
    """Say what emptying exactly these nodes does."""
    gone = frozenset(nodes)  # asked only for membership
    stopped, shrunk, cost = [], [], 0.0
    for job, tenant in enumerate(tenants):
        left = sum(gpus for node, gpus in tenant.held.items() if node not in gone)
        if left < tenant.base:
            stopped.append(job)
            cost += tenant.stop_cost
        elif any(node in gone for node in tenant.held):
            shrunk.append(job)
            cost += tenant.shrink_cost
    return Victims(tuple(sorted(nodes)), tuple(stopped), tuple(shrunk), cost, rule)


def choose(
    tenants: Sequence[Tenant], nodes: Sequence[int], need: int, rules: Sequence[str] = RULES
) -> Victims:
    """Choose `need` of `nodes` to empty: free ones, then extras, then the cheapest jobs.

    Args:
        tenants: Jobs with GPUs on any of the nodes.
        nodes: Nodes that may be emptied. Among equals the first ones given go first.
        need: How many; at most all of them are chosen.
        rules: Which of `RULES` to try: `fraction` charges a job in equal parts to its nodes
            (Aryl), `count` charges it whole to each, `ratio` divides that by the nodes it frees.

    Raises:
        ValueError: An unknown rule.
    """
    need = min(need, len(nodes))
    if need <= 0:
        return Victims((), (), (), 0.0, "none")
    on_node: dict[int, list[int]] = {node: [] for node in nodes}
    for job, tenant in enumerate(tenants):
        for node in tenant.held:
            if node in on_node:
                on_node[node].append(job)
    free = [node for node in nodes if not on_node[node]]
    if len(free) >= need:
        return Victims(tuple(sorted(free[:need])), (), (), 0.0, "free")
    best: Victims | None = None
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"rule {rule!r} is not known; choose among {', '.join(RULES)}")
        found = _greedy(tenants, on_node, need, rule)
        if best is None or (found.cost, len(found.stopped)) < (best.cost, len(best.stopped)):
            best = found
    if best is None:
        raise ValueError(f"rules is empty; choose among {', '.join(RULES)}")
    return _swap(tenants, on_node, best)


def _greedy(
    tenants: Sequence[Tenant], on_node: Mapping[int, list[int]], need: int, rule: str
) -> Victims:
    """Take one node at a time by a rule."""
    order = {node: index for index, node in enumerate(on_node)}
    left = [dict(tenant.held) for tenant in tenants]
    chosen: list[int] = []
    while len(chosen) < need:
        key = _key(tenants, left, on_node, chosen, need, rule)
        node = min((n for n in on_node if n not in chosen), key=lambda n: (*key(n), order[n]))
        chosen.append(node)
        for job in on_node[node]:
            tenant = tenants[job]
            if left[job].pop(node, 0) and sum(left[job].values()) < tenant.base:
                left[job] = {}
    return assess(tenants, chosen, rule)


def _key(
    tenants: Sequence[Tenant],
    left: Sequence[Mapping[int, int]],
    on_node: Mapping[int, list[int]],
    chosen: Sequence[int],
    need: int,
    rule: str,
) -> Callable[[int], tuple[float, float, int]]:
    """Return what a rule sorts nodes by: cost first, then fewest GPUs in use."""
    wanted = need - len(chosen)

    def key(node: int) -> tuple[float, float, int]:
        cost, used = 0.0, 0
        falls: list[int] = []
        for job in on_node[node]:
            gpus = left[job].get(node, 0)
            if not gpus:
                continue
            used += gpus
            tenant = tenants[job]
            if sum(left[job].values()) - gpus >= tenant.base:
                cost += tenant.shrink_cost
                continue
            falls.append(job)
            share = 1.0 / len(left[job]) if rule == "fraction" else 1.0
            cost += tenant.stop_cost * share
        if rule == "ratio" and falls:
            # Nodes that only the fallen jobs keep busy become free with this one.
            touched = sorted({n for job in falls for n in left[job] if n in on_node})
            freed = sum(
                n not in chosen and all(not left[j].get(n) or j in falls for j in on_node[n])
                for n in touched
            )
            cost /= max(1, min(freed, wanted))
        return cost, float(used), len(on_node[node])

    return key


def _swap(tenants: Sequence[Tenant], on_node: Mapping[int, list[int]], found: Victims) -> Victims:
    """Exchange a chosen node for another while that is cheaper; at most a few rounds."""
    for _ in range(3):
        better = found
        outside = [node for node in on_node if node not in found.nodes]
        if len(found.nodes) * len(outside) * len(tenants) > 20_000:
            break  # large reclaims: the rules alone, in time
        for node in found.nodes:
            rest = [n for n in found.nodes if n != node]
            for other in outside:
                tried = assess(tenants, [*rest, other], found.rule)
                if tried.cost < better.cost - 1e-9:
                    better = tried
        if better is found:
            break
        found = better
    return found
