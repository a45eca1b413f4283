"""Pollux (OSDI '21): the best power mean of goodput speed-ups, solved exactly."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.policies.interface import Bools, Figure, Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.contest import Contest, contests, write
from scheduler.policies.parts.hull import grow
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
    base: Literal["fair", "one"] = "fair"  #: what speed-up is relative to; the paper: fair share.
    restart_s: float = 30.0  #: d.
    nothing: Positive = 0.01  #: speed-up that a job without GPUs counts as.
    #: No job gets more than twice the most GPUs it ever had: beyond, its curve is a guess.
    doubling: bool = True
    #: Where the sum of speed-ups per GPU shall be: outside it another number of GPUs is better,
    #: and that number is a figure of every change. None: not looked for.
    band: tuple[float, float] | None = None  #: (0.35, 0.65) in production.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide all sizes, and say how many GPUs would be used well."""
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
            figures = [Figure("utility", utility(contest, level))]
            if self.band:
                figures.append(Figure("wanted_gpus", wanted_gpus(contest, self.band)))
            cause = Because("pollux.speedup", (), tuple(figures))
            why.update((int(job), cause) for job in rows[(size > 0) | (contest.present > 0)])
            if self.doubling:
                for at in np.flatnonzero(size > most).tolist():
                    notes[jobs.ids[rows[at]]] = (float(size[at]),)
        return write(snapshot, decided, "pollux.speedup", why=why, notes=notes)

    def _choose(self, seen: Snapshot, contest: Contest, most: Ints) -> Ints:
        speedup = speedups(seen, contest, self.restart_s, fair=self.base == "fair")
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


def speedups(seen: Snapshot, contest: Contest, restart_s: float, *, fair: bool) -> Floats:
    """(r, k) speed over that at a fair share (else at one GPU), less what a change would cost."""
    jobs, rows = seen.jobs, contest.rows
    share = contest.gpus / max(len(rows), 1) if fair else 1.0
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


def wanted_gpus(contest: Contest, band: tuple[float, float]) -> int:
    """Return how many GPUs these jobs would use well.

    The present number while the best utility it allows is in the band; else the one whose utility
    just reaches the middle of the band, found by bisection, because utility falls with every GPU
    that is added; never more than the jobs can use.
    """
    if not len(contest.rows):
        return 0
    one = rate_at(contest, 1.0)
    value = np.where(contest.allowed, contest.rate / one[:, None], -np.inf)
    none = np.zeros(len(contest.rows), dtype=np.int64)
    last = np.full(len(contest.rows), len(contest.sizes) - 1)

    def use(gpus: int) -> float:
        level = grow(contest.sizes, value, none, last, gpus)
        return float(value[np.arange(len(level)), level].sum()) / gpus

    if contest.gpus and band[0] <= use(contest.gpus) <= band[1]:
        return contest.gpus
    middle = (band[0] + band[1]) / 2
    low, high = 1, int(contest.sizes[last].sum())
    while low < high:
        at = (low + high) // 2
        if use(at) > middle:
            low = at + 1
        else:
            high = at
    return low
