"""How many of some jobs can be in time together, at most, whatever a policy does.

Two bounds. A job that would be late if nobody else were there cannot be in time. And jobs share
GPUs: whoever is in time has had at least `needed` GPU seconds between its arrival and its deadline,
and in no stretch of time is there more than the cluster's GPUs times its length. The second takes
jobs as divisible in every way: a part of a job counts as that part of a job in time, GPUs are
divided without end, a job may use the whole cluster at once, its third change and all later ones
are free, and the future is known. So it is above what any schedule reaches.

The parts that fit in are a polymatroid (their capacity is that of a flow from jobs to stretches of
time), and all jobs count the same. So the most is found greedily: jobs in the order of what they
need, least first, each with as much as still fits (Edmonds 1970, "Submodular functions, matroids,
and certain polyhedra"). That takes n squared steps for each of n jobs, in numpy.
"""

import math
from collections.abc import Sequence

import numpy as np

from scheduler.policies.interface import Floats
from simulator.physics.base import Cluster, Entry
from simulator.physics.elasticflow import Overhead, overhead_in

SIZES = (1, 2, 4, 8, 16, 32, 64)
GPUS_PER_NODE = 8


def needed(work: float, rates: Floats, left_s: float, overhead: Overhead) -> tuple[float, float]:
    """Return the least GPU seconds with which a job ends in time: all for free, and with pauses.

    Infinite where it cannot be in time even alone. Three ways: at one size; at two, one after the
    other, with the pause between them; at more, of whose changes two count, as cheap as any is.

    Args:
        work: What is to be done.
        rates: Work per second at each of `SIZES`, 0 where it may not have that size.
        left_s: From its arrival to its deadline.
        overhead: What a start and a change cost.
    """
    may = [(n, rate) for n, rate in zip(SIZES, rates.tolist(), strict=True) if rate > 0]
    same_s = overhead.pause_s(((0, 1),), ((0, 2),), first=False)
    paid = math.inf
    for gpus, rate in may:
        start_s = overhead.full_s(gpus)
        if start_s + work / rate <= left_s:
            paid = min(paid, gpus * (start_s + work / rate))
        for then, faster in may:
            # On the same nodes if a node can hold the one's share and the other's.
            near = max(gpus, then) <= GPUS_PER_NODE * min(gpus, then)
            pause_s = same_s if near else overhead.full_s(then)
            both_s = left_s - start_s - pause_s
            if rate != faster and min(rate, faster) * both_s <= work <= max(rate, faster) * both_s:
                first_s = (faster * both_s - work) / (faster - rate)
                held = gpus * (start_s + first_s) + then * (pause_s + both_s - first_s)
                paid = min(paid, held)
        more = _least(work, rates, left_s - start_s - 2 * same_s)
        paid = min(paid, gpus * start_s + 2 * same_s + more)
    return _least(work, rates, left_s), paid


def _least(work: float, rates: Floats, left_s: float) -> float:
    """Return the least GPU seconds for some work if a job may change its size for free.

    One size does, or two one after the other: the lower hull of GPUs over speed says which.
    """
    if left_s <= 0 or work > rates.max() * left_s:
        return math.inf
    speed, sizes = work / left_s, np.array(SIZES)
    able = rates > 0
    points = [(0.0, 0), *zip(rates[able].tolist(), sizes[able].tolist(), strict=True)]
    found = math.inf
    for slow, few in points:
        for fast, many in points:
            if slow <= speed <= fast and slow < fast:
                found = min(found, few + (many - few) * (speed - slow) / (fast - slow))
    return found * left_s


def together(submit_s: Floats, deadline_s: Floats, need: Floats, gpus: int) -> float:
    """Return how many jobs can be in time together, at most.

    Args:
        submit_s: (n,) when each comes.
        deadline_s: (n,) when each must have ended.
        need: (n,) GPU seconds that each needs, infinite where it cannot be in time.
        gpus: How many there are.
    """
    able = np.isfinite(need)
    starts, ends = np.unique(submit_s[able]), np.unique(deadline_s[able])
    #: (starts, ends) GPU seconds of the stretch that nobody has yet.
    left = gpus * (ends[None, :] - starts[:, None])
    count = 0.0
    for job in np.flatnonzero(able)[np.argsort(need[able], kind="stable")].tolist():
        first, last = starts.searchsorted(submit_s[job]), ends.searchsorted(deadline_s[job])
        around = left[: first + 1, last:]
        taken = min(float(need[job]), max(0.0, float(around.min())))
        around -= taken
        count += taken / float(need[job])
    return count


def bounds(jobs: Sequence[Entry], cluster: Cluster) -> tuple[float, float, float]:
    """Return the part of the jobs with deadlines that can be in time, at most.

    Each alone if changes were free, each alone with its pauses, all together.
    """
    overhead, timed = overhead_in(cluster), [job for job in jobs if job.deadline_s < math.inf]
    large = np.array(SIZES) > cluster.gpus
    free, paid = [], []
    for job in timed:
        observed = job.model.observed(0.0, SIZES)
        rates = np.where(large, 0.0, observed.rates)
        least = needed(observed.remaining, rates, job.deadline_s - job.submit_s, overhead)
        free.append(least[0])
        paid.append(least[1])
    count = together(
        np.array([job.submit_s for job in timed]),
        np.array([job.deadline_s for job in timed]),
        np.array(paid),
        cluster.gpus,
    )
    # A part of a job is none; what sums of floating point add is less than a millionth.
    whole = math.floor(count + 1e-6) / len(timed)
    return float(np.isfinite(free).mean()), float(np.isfinite(paid).mean()), whole
