"""Which nodes to empty, so that the jobs on them lose least.

Emptying a given number of nodes at least cost is a knapsack whose values depend on each other
(a gang that falls empties all its nodes). Three greedy rules are tried, and the cheapest answer is
mended; no rule alone is near enough to the best. `benchmarks/reclaim.py` measures
how near the mended answer comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from scheduler.policies.parts.evacuation import Evacuation

Rule = Literal["fraction", "count", "ratio"]
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True)
class Occupant:
    """A job with GPUs on nodes that may have to be emptied."""

    base: int  #: GPUs below which it must stop.
    held: Mapping[int, int]  #: node -> GPUs, everywhere.
    stop_cost: float = 1.0  #: of preempting it; any unit, the same for all.
    shrink_cost: float = 0.0  #: of taking GPUs above its base; far below any `stop_cost`.


@dataclass(frozen=True, slots=True)
class Victims:
    """Nodes to empty, and what that does to jobs. Jobs are indices into the occupants."""

    nodes: tuple[int, ...]  #: ascending.
    stopped: tuple[int, ...]  #: jobs that lose their base.
    shrunk: tuple[int, ...]  #: jobs that lose only GPUs above it.
    cost: float
    rule: str  #: which rule found it.


def assess(occupants: Sequence[Occupant], nodes: Sequence[int], rule: str = "given") -> Victims:
    """Say what emptying exactly these nodes does."""
    gone = frozenset(nodes)  # asked only for membership
    stopped, shrunk, cost = [], [], 0.0
    for job, occupant in enumerate(occupants):
        taken = sum(gpus for node, gpus in occupant.held.items() if node in gone)
        if not taken:
            continue
        if sum(occupant.held.values()) - taken < occupant.base:
            stopped.append(job)
            cost += occupant.stop_cost
        else:
            shrunk.append(job)
            cost += occupant.shrink_cost
    return Victims(tuple(sorted(nodes)), tuple(stopped), tuple(shrunk), cost, rule)


def choose(
    occupants: Sequence[Occupant], nodes: Sequence[int], need: int, rules: Sequence[str] = RULES
) -> Victims:
    """Choose `need` of `nodes` to empty: free ones, then extras, then the cheapest jobs.

    Args:
        occupants: Jobs with GPUs on any of the nodes.
        nodes: Nodes that may be emptied. Among equals the first ones given go first.
        need: How many; at most all of them are chosen.
        rules: Which of `RULES` to try: `fraction` charges a job in equal parts to its nodes
            (Aryl), `count` charges it whole to each, `ratio` divides that by the nodes it frees.
            One rule alone is followed to the letter; of several the best answer is mended.

    Raises:
        ValueError: An unknown rule.
    """
    if not rules:
        raise ValueError(f"rules is empty; choose among {', '.join(RULES)}")
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"rule {rule!r} is not known; choose among {', '.join(RULES)}")
    need = min(need, len(nodes))
    if need <= 0:
        return Victims((), (), (), 0.0, "none")
    busy = {node for occupant in occupants for node in occupant.held}  # asked only for membership
    free = [node for node in nodes if node not in busy]
    if len(free) >= need:
        return Victims(tuple(sorted(free[:need])), (), (), 0.0, "free")
    taken = [node for node in nodes if node in busy]
    rest = need - len(free)
    state = Evacuation(
        [occupant.held for occupant in occupants],
        [occupant.base for occupant in occupants],
        [occupant.stop_cost for occupant in occupants],
        [occupant.shrink_cost for occupant in occupants],
        taken,
    )
    best: tuple[float, int, list[int], str] | None = None
    for rule in rules:
        state.clear()
        state.fill(rest, rule)
        if best is None or (state.cost, state.stopped) < best[:2]:
            best = (state.cost, state.stopped, list(state.chosen), rule)
    assert best is not None
    chosen, rule = best[2], best[3]
    if len(rules) > 1:
        state.clear()
        for node in chosen:
            state.add(node)
        if state.mend():
            chosen, rule = list(state.chosen), "mended"
    return assess(occupants, [*free, *(taken[node] for node in chosen)], rule)
