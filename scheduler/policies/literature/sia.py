"""Goodput over configurations of type and size, chosen together: `sia`.

Types are the training pools. scipy is imported when first needed: the base install has none.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, write
from scheduler.policies.parts.knapsack import exact
from scheduler.policies.parts.portable import power
from scheduler.policies.ranges import LEAST, Amount, Power, Share


def best_configs(value: Floats, sizes: Ints, capacity: Ints, gap: float = 0.0) -> Ints:
    """(n,) the best configuration of each job, as pool * k + level; -1 for none.

    Maximises the sum of values with at most one configuration a job and no pool over its capacity:
    exactly by the knapsack where there is one pool, else by HiGHS' branch and bound.

    Args:
        value: (n, m, k) worth of each size in each pool; not positive where it is not to be taken.
        sizes: (k,) GPUs, ascending.
        capacity: (m,) GPUs.
        gap: Relative distance from the optimum at which branch and bound may stop.

    Raises:
        RuntimeError: The solver failed; a bug, for taking nothing is always feasible.
    """
    n, _, k = value.shape
    fits = (value > 0) & (sizes <= capacity[:, None])
    used = np.flatnonzero(fits.any(axis=(0, 2)))
    chosen = np.full(n, -1)
    if len(used) <= 1:
        pool = int(used[0]) if len(used) else 0
        if len(used):
            worth = np.where(fits[:, pool], value[:, pool], -np.inf)
            worth = np.concatenate((np.zeros((n, 1)), worth), axis=1)
            start = np.zeros(n, dtype=np.int64)
            choice = exact(np.append(0, sizes), worth, start, int(capacity[pool]))
            chosen = np.where(choice.level > 0, pool * k + choice.level - 1, -1)
        return chosen
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    job, pool_of, level = fits.nonzero()
    x = np.arange(len(job))
    rows, row = np.unique(job, return_inverse=True)
    entry = (
        np.concatenate((np.ones(len(job)), sizes[level])),
        (np.concatenate((row, len(rows) + pool_of)), np.concatenate((x, x))),
    )
    matrix = coo_array(entry, shape=(len(rows) + len(capacity), len(job))).tocsc()
    most = np.concatenate((np.ones(len(rows)), capacity.astype(np.float64)))
    found = milp(
        -value[fits],
        integrality=np.ones(len(job), dtype=np.int64),
        bounds=Bounds(0, 1),
        # The stubs know no sparse matrix.
        constraints=LinearConstraint(matrix, -np.inf, most),  # type: ignore[arg-type]
        options={"mip_rel_gap": gap},
    )
    if found.x is None:
        raise RuntimeError(f"the program of {len(job)} configurations failed: {found.message}")
    taken = np.flatnonzero(found.x > 0.5)
    chosen[job[taken]] = pool_of[taken] * k + level[taken]
    return chosen


@dataclass(frozen=True, slots=True)
class Sia:
    """Goodput of all jobs over sizes and GPU types by an integer program (Sia).

    Goodputs are divided by the job's smallest. To change what a running job has multiplies them by
    max(age - restarts S, 0) / (age + S). With A = goodput ** p, at most 200, the plan minimises the
    sum of A, plus `idle` for each job left out and `change` for each configuration taken or left.
    Sizes are powers of two within a node, then whole nodes, at most twice the largest the job had
    so far (the smallest at first), which is remembered in its note.

    Defaults are those of the artifact (siasosp23/artifacts: `simulator_config.py`, `sia.py`), p
    -0.5, S 30 s, doubling, but for `idle`, which it has at 1.1 to have every job run. That does
    so only while GPUs are free: a start is worth `idle` - 1 = 0.1, a job's step from one GPU to
    two up to 1 - 2 ** p = 0.29, so in a full cluster jobs grow while others wait for their first
    GPU. No growth is worth more than 1, for A is from 0 to 1 where nothing is penalised, so 2 is
    the least at which no job waits for another one's growth; above, little changes. On one type
    the artifact calls Sia equal to Pollux. On eight of Pollux's workloads the mean completion time
    was 0.8 % below that published for Pollux with 2, and 11 % above it with 1.1.

    What we do differently: impossible configurations are left out instead of having a small
    goodput; moves between types are penalised like moves within one, else jobs go to and fro; A is
    not rounded, which would make ties; a job that allows no size of that set may have its smallest;
    who keeps size and type keeps its nodes. It decides whenever it is asked; Sia's rounds are 60 s.
    """

    name: str = "sia"
    power: Power = -0.5  #: p.
    idle: Amount = 2.0  #: lambda; 1.1 in the artifact. Above 1 + `change`.
    change: Amount = 0.01  #: lambda_a.
    restart_s: Amount = 30.0  #: S.
    growth: Amount = 2.0
    gap: Share = 1e-4  #: relative, of the integer program; the knapsack is exact.

    def __post_init__(self) -> None:
        if self.idle <= 1.0 + self.change:  # what a job with one configuration costs that takes it
            raise ValueError(
                f"idle: is {self.idle:g}, and a job that has one speed would not start; say more "
                f"than 1 + change, which is {1.0 + self.change:g}"
            )

    def plan(self, snapshot: Snapshot) -> Plan:
        """Choose a configuration for every job."""
        found, jobs = gangs(snapshot), snapshot.jobs
        n, m, k = len(jobs.ids), len(found.room), len(jobs.sizes)
        able, current, peak = self._configs(found)
        goodput = np.where(able, found.speed[:, :, None] * jobs.rate[:, None, :], np.inf)
        least = goodput.min(axis=(1, 2), initial=np.inf)
        goodput = np.where(able, goodput, 0.0) / least[:, None, None]
        age_s = np.maximum(snapshot.now_s - jobs.submit_s, 0.0)
        spent_s = np.maximum(age_s - jobs.restarts * self.restart_s, 0.0)
        ratio = spent_s / np.maximum(age_s + self.restart_s, LEAST)
        changes = found.runs[:, None, None] & ~current
        goodput = np.where(changes, goodput * ratio[:, None, None], goodput)
        safe = np.where(able & (goodput > 0), goodput, 1.0)
        cost = np.where(able & (goodput > 0), np.minimum(power(safe, self.power), 200.0), 200.0)
        value = self.idle - cost + np.where(current, self.change, -self.change)
        back = np.bincount(found.pool[found.runs], found.size[found.runs], m)
        capacity = (found.room + back).astype(np.int64)
        chosen = best_configs(np.where(able, value, 0.0), jobs.sizes, capacity, self.gap)
        given = np.where(chosen >= 0, chosen // k, -1)
        size = np.where(chosen >= 0, jobs.sizes[chosen % k], 0)
        best = np.where(chosen >= 0, goodput.reshape(n, m * k)[np.arange(n), chosen], 0.0)
        grown = np.flatnonzero(size > peak).tolist()
        notes = {jobs.ids[job]: (float(size[job]),) for job in grown}
        figures = {"goodput_ratio": best}
        return write(found, Verdict(given, "sia.goodput", size, figures=figures, notes=notes))

    def _configs(self, found: Gangs) -> tuple[Bools, Bools, Ints]:
        """(n, m, k) what may be taken, what is held; and (n,) the largest size so far."""
        seen, jobs, sizes = found.seen, found.seen.jobs, found.seen.jobs.sizes
        node = np.zeros(len(found.room), dtype=np.int64)
        np.maximum.at(node, seen.nodes.pool, seen.nodes.gpus)
        node = np.maximum(node, 1)[:, None]
        whole = (sizes > node) & (sizes % node == 0)
        standard = whole | (sizes == node) | ((sizes < node) & ((sizes & (sizes - 1)) == 0))
        may = (found.runs | found.starts)[:, None, None] & (found.speed > 0)[:, :, None]
        allowed = may & (jobs.rate > 0)[:, None, :]
        able = allowed & standard
        first = np.where(jobs.rate > 0, sizes, np.iinfo(np.int64).max).min(axis=1)
        odd = ~able.any(axis=(1, 2))[:, None, None]
        able |= allowed & odd & (sizes == first[:, None])[:, None, :]
        least = np.where(able, sizes, np.iinfo(np.int64).max).min(axis=(1, 2), initial=2**62)
        noted = np.nan_to_num(jobs.notes[:, 0], nan=0.0)
        peak = np.maximum(noted.astype(np.int64), np.where(found.runs, jobs.size, 0))
        most = np.maximum(self.growth * peak, least)
        able &= (sizes <= most[:, None])[:, None, :]
        here = found.pool[:, None] == np.arange(len(found.room))
        current = here[:, :, None] & (sizes == jobs.size[:, None])[:, None, :]
        able |= current
        return able, current, peak
