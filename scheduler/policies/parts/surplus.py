"""ElasticFlow's surplus: what minimum shares leave idle, by marginal return.

A job without a GPU comes first. Then the next size goes, one job at a time, to the job whose return
is the largest.
"""

import heapq
import math
from collections.abc import Sequence

from scheduler.policies.interface import Ints
from scheduler.policies.parts.share import Demand


def share_out(
    gpus_now: Ints, free: int, demands: Sequence[Demand], price: Sequence[float] | None = None
) -> Ints:
    """Hand out what is free now; returns the (n,) GPUs that each job shall hold.

    What one more size returns, per GPU more, is GPU-seconds that it saves later, per GPU-second
    that it takes now: the price of a step times the steps more. (The rule as stated; the released
    code sorts the other way round.) That is the saving of a moment's surplus: the
    plan is made again before a long one would change the price. Without prices it is seconds saved
    if the size is kept to the end (EdgeFlow's wording). Costs O(log n) for each size handed out.

    Args:
        gpus_now: (n,) minimum shares.
        free: GPUs that nobody needs now.
        demands: (n,)
        price: (n,) GPU-seconds saved by a step of work that is done now.
    """
    gpus = gpus_now.copy()
    heap: list[tuple[bool, float, int, int]] = []

    def offer(job: int) -> None:
        sizes, rate = demands[job].curve.sizes, demands[job].curve.rate
        have = int(gpus[job])
        level = int(sizes.searchsorted(have, side="right"))
        if level == len(sizes):
            return
        more = int(sizes[level]) - have
        now, then = (float(rate[level - 1]) if level else 0.0), float(rate[level])
        if price is None:
            worth = demands[job].work * (1.0 / now - 1.0 / then) / more if now else math.inf
        else:
            worth = price[job] * (then - now) / more
        heapq.heappush(heap, (have > 0, -worth, job, level))

    for job in range(len(demands)):
        offer(job)
    while heap and free > 0:
        _, _, job, level = heapq.heappop(heap)
        size = int(demands[job].curve.sizes[level])
        if size - int(gpus[job]) <= free:
            free -= size - int(gpus[job])
            gpus[job] = size
            offer(job)
    return gpus


def best_effort_price(demand: Demand) -> float:
    """Return the price of a step of a job without a deadline: its cost at the smallest size."""
    return float(demand.curve.sizes[0]) / float(demand.curve.rate[0])
