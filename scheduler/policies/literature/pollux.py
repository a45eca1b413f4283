"""Pollux (OSDI '21): the best power mean of goodput speed-ups, solved exactly."""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Figure, Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.contest import Contest, contests, write
from scheduler.policies.parts.knapsack import exact
from scheduler.policies.ranges import Positive, Power


@dataclass(frozen=True, slots=True)
class Pollux:
    """Maximises the power mean of the jobs' speed-ups over a fair share (policies.md 8).

    speedup_i(x) = rate_i(x) / rate_i(fair share). A change of size multiplies it by
    max(T - r d, 0) / (T + d), with T the age, r the restarts and d the pause of a restart: the
    speed it would have had, had it always been restarted as often as until now. The power mean is
    a sum of independent terms but for an increasing function, so the best sizes are a knapsack;
    a job without GPUs counts as `nothing`.

    Differences from the paper: an exact program in place of the genetic algorithm; sizes first,
    then nodes, with the curve taken at the fewest nodes, so interference between jobs on several
    nodes is not avoided but rare; a job that holds nothing pays no factor, else it could not start
    at its submission. With p = 1 it is the sum of speed-ups, which is what its published successor
    in production maximises.

    Knows the goodput curve, which the engine or the simulator learns (`scheduler.goodput`).
    Cost: O(n k) and a program over what the bound leaves open; see `knapsack`.
    """

    name: str = "pollux"
    power: Power = -1.0
    restart_s: float = 30.0  #: d.
    nothing: Positive = 0.01  #: speed-up that a job without GPUs counts as.
    #: No job gets more than twice the most GPUs it ever had: beyond, its curve is a guess.
    doubling: bool = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide all sizes."""
        decided: list[tuple[Contest, Ints]] = []
        why: dict[int, Because] = {}
        notes: dict[str, tuple[float, ...]] = {}
        jobs = snapshot.jobs
        for contest in contests(snapshot):
            rows = contest.rows
            most = largest_yet(snapshot, contest)
            level = self._choose(snapshot, contest, most)
            size = contest.sizes[level]
            decided.append((contest, level))
            use = Figure("utility", utility(contest, level))
            cause = Because("pollux.speedup", (), (use,))
            why.update((int(job), cause) for job in rows[(size > 0) | (contest.present > 0)])
            if self.doubling:
                for at in np.flatnonzero(size > most).tolist():
                    notes[jobs.ids[rows[at]]] = (float(size[at]),)
        return write(snapshot, decided, "pollux.speedup", why=why, notes=notes)

    def _choose(self, seen: Snapshot, contest: Contest, most: Ints) -> Ints:
        speedup = speedups(seen, contest, self.restart_s)
        worth = self._transform(np.maximum(speedup, self.nothing))
        allowed = twice(contest, most) if self.doubling else contest.allowed
        none = np.zeros(len(contest.rows), dtype=np.int64)
        return exact(contest.sizes, np.where(allowed, worth, -np.inf), none, contest.gpus).level

    def _transform(self, speedup: Floats) -> Floats:
        """Map speed-ups to terms whose sum grows with the power mean."""
        if self.power == 0:
            return np.log(speedup)
        found: Floats = np.sign(self.power) * speedup**self.power
        return found


def speedups(seen: Snapshot, contest: Contest, restart_s: float) -> Floats:
    """(r, k) speed over that at a fair share, less what a change would cost."""
    jobs, rows = seen.jobs, contest.rows
    share = contest.gpus / max(len(rows), 1)
    speedup = contest.rate / rate_at(contest, share)[:, None]
    age = np.maximum(seen.now_s - jobs.submit_s[rows], 0.0)
    spent = age - jobs.restarts[rows] * restart_s
    factor = np.maximum(spent, 0.0) / (age + restart_s)
    changes = np.arange(len(contest.sizes))[None, :] != contest.present[:, None]
    found: Floats = np.where(
        changes & (contest.present > 0)[:, None], speedup * factor[:, None], speedup
    )
    return found


def largest_yet(seen: Snapshot, contest: Contest) -> Ints:
    """(r,) the most GPUs that each job was ever given, as noted, or has now."""
    noted = np.nan_to_num(seen.jobs.notes[contest.rows, 0])
    found: Ints = np.maximum(noted, contest.sizes[contest.present]).astype(np.int64)
    return found


def twice(contest: Contest, most: Ints) -> Bools:
    """(r, k) levels up to twice the most GPUs that a job ever had, its smallest in any case."""
    limit = np.maximum(2 * most, contest.sizes[contest.base])
    found: Bools = contest.allowed & (contest.sizes[None, :] <= limit[:, None])
    return found


def rate_at(contest: Contest, gpus: float) -> Floats:
    """(r,) speed with so many GPUs, which need be neither whole nor allowed; above 0.

    Linear between sizes, and below the smallest one: that size for a part of the time.
    """
    sizes, rows = contest.sizes, np.arange(len(contest.rows))
    column = np.arange(len(sizes))
    low = np.where(contest.allowed & (sizes <= gpus), column, 0).max(axis=1)
    above = np.where(contest.allowed & (sizes > gpus), column, len(sizes)).min(axis=1)
    high = np.where(above < len(sizes), above, low)
    part = (gpus - sizes[low]) / np.maximum(sizes[high] - sizes[low], 1)
    more = contest.rate[rows, high] - contest.rate[rows, low]
    found: Floats = np.maximum(contest.rate[rows, low] + part * more, 1e-12)
    return found


def utility(contest: Contest, level: Ints) -> float:
    """Return the sum of speed-ups over one GPU, per GPU of the pool: 1 is a perfect use."""
    gained = contest.rate[np.arange(len(level)), level] / rate_at(contest, 1.0)
    return float(gained.sum()) / max(contest.gpus, 1)
