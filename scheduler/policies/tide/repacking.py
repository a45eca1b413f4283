"""What it is worth that a gang lies on one node, and what it costs to move others for it."""

import numpy as np

from scheduler.policies.interface import Floats
from scheduler.policies.parts.repack import Repack
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.prices import Cleared
from scheduler.policies.tide.promises import Promises
from scheduler.policies.tide.worth import RIPPLE

#: What a gang is taken to lose on two nodes instead of one. Of the gangs of four of Pollux's
#: profiles (nodes of 4 T4) one loses 19 %, one 14 %, two 3 to 6 %, and one gains 5 %.
APART = 0.1


def repack_of(
    market: Market,
    weight: Floats,
    promises: Promises,
    found: Cleared,
    horizon_s: float,
    jobs: int,
) -> Repack:
    """Weigh a gang that loses `APART` for as long as it runs against the pauses of others.

    Nobody moves who has a promise, or for whom room is kept; nor does anybody where such a job
    comes now: it counts on GPUs that are free at once.

    Args:
        market: Who could do what.
        weight: (r,) of `worth.weights`.
        promises: Who has what in any case.
        found: Who gets what.
        horizon_s: For longer than this, nothing is counted.
        jobs: How many there are in all.
    """
    each = np.arange(len(market.rows))
    at = market.part_of(found.site, each), each, found.level
    on, kept = found.level > 0, promises.bound >= 0
    per_s = np.where(on, weight * market.work_s / market.work * market.rate[at], 0.0)
    comes = kept & on & ((found.site != market.home) | (found.level != market.present))
    calm = np.ones(len(market.sites), dtype=np.bool_)
    calm[found.site[comes]] = False
    move, apart = np.full(jobs, np.inf), np.zeros(jobs)
    pause_s = RIPPLE * market.start_s[each, found.level]
    move[market.rows] = np.where(on & ~kept, per_s * pause_s, np.inf)
    within_s = np.minimum(market.takes_s[at], horizon_s)
    apart[market.rows] = np.where(on & calm[found.site], APART * per_s * within_s, 0.0)
    return Repack(move, apart)
