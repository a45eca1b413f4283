"""ElasticFlow's surplus: what minimum shares leave idle, by marginal return.

A job without a GPU comes first. Then the next size goes, one job at a time, to the job whose return
is the largest. The paper and the released code differ in what a return is; both are offered.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Literal

from scheduler.policies.interface import Ints
from scheduler.policies.parts.minimum import Demand

#: What one more size returns, per GPU more:
#: `gpu_time`: GPU-seconds that it saves later, per GPU-second that it takes now (the stated rule).
#: `released`: its opposite; the released code sorts the other way round (policies.md 11.1).
#: `completion`: seconds saved if the size is kept to the end (EdgeFlow's wording).
Return = Literal["gpu_time", "released", "completion"]


def share_out(
    gpus_now: Ints, free: int, demands: Sequence[Demand], price: Sequence[float], rule: Return
) -> Ints:
    """Hand out what is free now; returns the (n,) GPUs that each job shall hold.

    The saving of `gpu_time` is that of a moment's surplus, `Least.price` times the work it does:
    the plan is made again before a long surplus would change the price. It costs O(log n) for each
    size handed out.

    Args:
        gpus_now: (n,) minimum shares.
        free: GPUs that nobody needs now.
        demands: (n,)
        price: (n,) GPU-seconds saved by a step of work that is done now.
        rule: What counts as return.
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
        if rule == "completion":
            worth = demands[job].work * (1.0 / now - 1.0 / then) / more if now else math.inf
        else:
            worth = price[job] * (then - now) / more
        heapq.heappush(heap, (have > 0, worth if rule == "released" else -worth, job, level))

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
