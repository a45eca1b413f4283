"""Pollux (OSDI '21): the best power mean of goodput speed-ups, solved exactly."""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Figure, Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.knapsack import exact
from scheduler.policies.parts.portable import log, power
from scheduler.policies.parts.problem import Problem, problems, write
from scheduler.policies.ranges import LEAST, Amount, Positive, Power


@dataclass(frozen=True, slots=True)
class Pollux:
    """Maximises the power mean of the jobs' speed-ups over a fair share.

    speedup_i(x) = rate_i(x) / rate_i(fair share). A change of size multiplies it by
    max(T - r d, 0) / (T + d), with T the age, r the restarts and d the pause of a restart: the
    speed it would have had, had it always been restarted as often as until now. The power mean is
    a sum of independent terms but for an increasing function, so the best sizes are a knapsack;
    a job without GPUs counts as `nothing`, or as half as fast as at its slowest if that is less: in
    a large pool, one GPU may be less than a hundredth of a fair share.

    Differences from the paper: an exact program in place of the genetic algorithm; sizes first,
    then nodes, with the curve taken at the fewest nodes, so interference between jobs on several
    nodes is not avoided but rare; a job that holds nothing pays no factor, else it could not start
    at its submission. With p = 1 it is the sum of speed-ups, which is what its published successor
    in production maximises.

    Knows the goodput curve, which the estimator learns (docs/learning.md).
    Cost: O(n k) and a program over what the bound leaves open; see `knapsack`.
    """

    name: str = "pollux"
    power: Power = -1.0
    restart_s: Amount = 30.0  #: d.
    nothing: Positive = 0.01  #: speed-up that a job without GPUs counts as.
    #: No job gets more than twice the most GPUs it ever had: beyond, its curve is a guess.
    doubling: bool = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide all sizes."""
        decided: list[tuple[Problem, Ints]] = []
        why: dict[int, Because] = {}
        notes: dict[str, tuple[float, ...]] = {}
        jobs = snapshot.jobs
        for problem in problems(snapshot):
            rows = problem.rows
            most = largest_yet(snapshot, problem)
            level = self._choose(snapshot, problem, most)
            size = problem.sizes[level]
            decided.append((problem, level))
            use = Figure("utility", utility(problem, level))
            cause = Because("pollux.speedup", (), (use,))
            why.update((int(job), cause) for job in rows[(size > 0) | (problem.present > 0)])
            if self.doubling:
                for at in np.flatnonzero(size > most).tolist():
                    notes[jobs.ids[rows[at]]] = (float(size[at]),)
        return write(snapshot, decided, "pollux.speedup", why=why, notes=notes)

    def _choose(self, seen: Snapshot, problem: Problem, most: Ints) -> Ints:
        speedup = speedups(seen, problem, self.restart_s)
        worth = self._transform(np.maximum(speedup, self._without(problem)[:, None]))
        allowed = twice(problem, most) if self.doubling else problem.allowed
        none = np.zeros(len(problem.rows), dtype=np.int64)
        return exact(problem.sizes, np.where(allowed, worth, -np.inf), none, problem.gpus).level

    def _without(self, problem: Problem) -> Floats:
        """(r,) the speed-up that a job without GPUs counts as: less than with any."""
        rate = np.where(problem.allowed & (problem.rate > 0.0), problem.rate, np.inf)
        slowest = rate.min(axis=1, initial=np.inf) / _fair(problem)
        found: Floats = np.where(slowest > self.nothing, self.nothing, slowest / 2.0)
        return found

    def _transform(self, speedup: Floats) -> Floats:
        """Map speed-ups to terms whose sum grows with the power mean."""
        if self.power == 0:
            return log(speedup)
        found: Floats = np.sign(self.power) * power(speedup, self.power)
        return found


def speedups(seen: Snapshot, problem: Problem, restart_s: float) -> Floats:
    """(r, k) speed over that at a fair share, less what a change would cost."""
    jobs, rows = seen.jobs, problem.rows
    speedup = problem.rate / _fair(problem)[:, None]
    age = np.maximum(seen.now_s - jobs.submit_s[rows], 0.0)
    spent = age - jobs.restarts[rows] * restart_s
    factor = np.maximum(spent, 0.0) / np.maximum(age + restart_s, LEAST)
    changes = np.arange(len(problem.sizes))[None, :] != problem.present[:, None]
    found: Floats = np.where(
        changes & (problem.present > 0)[:, None], speedup * factor[:, None], speedup
    )
    return found


def _fair(problem: Problem) -> Floats:
    """(r,) speed at a fair share of the pool."""
    return rate_at(problem, problem.gpus / max(len(problem.rows), 1))


def largest_yet(seen: Snapshot, problem: Problem) -> Ints:
    """(r,) the most GPUs that each job was ever given, as noted, or has now."""
    noted = np.nan_to_num(seen.jobs.notes[problem.rows, 0])
    found: Ints = np.maximum(noted, problem.sizes[problem.present]).astype(np.int64)
    return found


def twice(problem: Problem, most: Ints) -> Bools:
    """(r, k) levels up to twice the most GPUs that a job ever had, its smallest in any case."""
    limit = np.maximum(2 * most, problem.sizes[problem.base])
    found: Bools = problem.allowed & (problem.sizes[None, :] <= limit[:, None])
    return found


def rate_at(problem: Problem, gpus: float) -> Floats:
    """(r,) speed with so many GPUs, which need be neither whole nor allowed; above 0.

    Linear between sizes, and below the smallest one: that size for a part of the time.
    """
    sizes, rows = problem.sizes, np.arange(len(problem.rows))
    column = np.arange(len(sizes))
    low = np.where(problem.allowed & (sizes <= gpus), column, 0).max(axis=1)
    above = np.where(problem.allowed & (sizes > gpus), column, len(sizes)).min(axis=1)
    high = np.where(above < len(sizes), above, low)
    part = (gpus - sizes[low]) / np.maximum(sizes[high] - sizes[low], 1)
    more = problem.rate[rows, high] - problem.rate[rows, low]
    found: Floats = np.maximum(problem.rate[rows, low] + part * more, 1e-12)
    return found


def utility(problem: Problem, level: Ints) -> float:
    """Return the sum of speed-ups over one GPU, per GPU of the pool: 1 is a perfect use."""
    gained = problem.rate[np.arange(len(level)), level] / rate_at(problem, 1.0)
    return float(gained.sum()) / max(problem.gpus, 1)
