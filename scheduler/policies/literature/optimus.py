"""Optimus (EuroSys '18): every GPU goes where it shortens a remaining run time most."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.policies.interface import Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.knapsack import exact
from scheduler.policies.parts.problem import Problem, problems, write


@dataclass(frozen=True, slots=True)
class Optimus:
    """Minimises the sum of remaining run times, one GPU at a time.

    Every job gets its smallest size, the small ones first; then each next step goes to the job
    whose remaining time W/R falls most per GPU, until nobody gains or nothing is free. The small
    gangs are placed first, from the node with the most free GPUs, as in the simulator published
    with Pollux. Knows the remaining work and the curve; no deadlines, no cost of a restart.

    Differences: the paper (as recalled) fits its own models of loss and speed, and replans every
    10 minutes; here both are columns, and the engine decides when to ask. The paper's greedy stops
    at the first size that gains nothing; `solver="exact"` looks beyond with a knapsack.

    Cost: O(n k log(n k)).
    """

    name: str = "optimus"
    solver: Literal["greedy", "exact"] = "greedy"  #: `greedy`, as published, or `exact`.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide all sizes."""
        decided: list[tuple[Problem, Ints]] = []
        size = np.zeros(len(snapshot.jobs.ids), dtype=np.int64)
        for problem in problems(snapshot):
            level = smallest_first(problem)
            left = problem.gpus - int(problem.sizes[level].sum())
            level = self._grow(problem, level, left)
            decided.append((problem, level))
            size[problem.rows] = problem.sizes[level]
        order = np.lexsort((np.arange(len(size)), size)).tolist()
        return write(snapshot, decided, "optimus.marginal_gain", style="most_free", order=order)

    def _grow(self, problem: Problem, level: Ints, left: int) -> Ints:
        runs = np.flatnonzero(level)
        if self.solver == "exact":
            value = np.where(problem.allowed, -problem.run_s(), -np.inf)[runs]
            level[runs] = exact(problem.sizes, value, level[runs], left).level
        else:
            value = np.where(problem.allowed, -problem.run_s(), -np.inf)[runs]
            level[runs] = climb(problem.sizes, value, level[runs], left)
        return level


def smallest_first(problem: Problem) -> Ints:
    """(r,) the smallest level for as many jobs as fit, the small ones first, then the earlier."""
    need = problem.sizes[problem.base]
    order = np.argsort(need, kind="stable")
    fits = np.cumsum(need[order]) <= problem.gpus
    level: Ints = np.zeros(len(need), dtype=np.int64)
    level[order[fits]] = problem.base[order[fits]]
    return level


def climb(sizes: Ints, value: Floats, level: Ints, gpus: int) -> Ints:
    """Take single steps, the best gain per GPU first; a job's steps end where one gains nothing.

    The same as a heap of next gains: a step becomes available with the one before it, so steps
    are in order of the least gain up to them.

    Args:
        sizes: (k,) GPUs of each level.
        value: (n, k) worth; -inf where not allowed.
        level: (n,) where each job starts; allowed.
        gpus: To share out.

    Returns:
        (n,) levels.
    """
    jobs, ends, costs, gains = [], [], [], []
    allowed = np.isfinite(value)
    at, slope = level.copy(), np.full(len(level), np.inf)
    rows = np.arange(len(level))
    for column in range(len(sizes)):
        able = rows[allowed[:, column] & (column > level) & (slope > 0)]
        if not len(able):
            continue
        cost = sizes[column] - sizes[at[able]]
        gain = (value[able, column] - value[able, at[able]]) / cost
        slope[able] = np.minimum(slope[able], gain)
        able, cost = able[slope[able] > 0], cost[slope[able] > 0]
        jobs.append(able)
        ends.append(np.full(len(able), column))
        costs.append(cost)
        gains.append(slope[able])
        at[able] = column
    found: Ints = level.copy()
    if not jobs:
        return found
    job, end, cost = np.concatenate(jobs), np.concatenate(ends), np.concatenate(costs)
    order = np.lexsort((end, job, -np.concatenate(gains)))
    job, end, cost = job[order], end[order], cost[order]
    whole = int(np.searchsorted(np.cumsum(cost), gpus, side="right"))
    np.maximum.at(found, job[:whole], end[:whole])
    left = gpus - int(cost[:whole].sum())
    stuck: set[int] = set()  # asked only for membership
    for i, to, more in zip(
        job[whole:].tolist(), end[whole:].tolist(), cost[whole:].tolist(), strict=True
    ):
        if not left:
            break
        if i in stuck:
            continue
        if more > left:
            stuck.add(i)
            continue
        found[i] = to
        left -= more
    return found
