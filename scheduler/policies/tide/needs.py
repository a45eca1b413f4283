"""What would have to change for a job that loses GPUs or moves: from the bids that decided."""

import numpy as np

from scheduler.policies.interface import Floats, Ints, Need
from scheduler.policies.tide.market import STAY, Market
from scheduler.policies.tide.prices import Cleared


def to_keep(market: Market, found: Cleared, job: int) -> tuple[Need, ...]:
    """Say with how many GPUs its site would leave a job the size that it has."""
    home = int(market.home[job])
    steps, lacks, _ = found.bids.at(home, len(found.level))
    enough = ((steps.row == job) & (steps.end >= market.present[job])).nonzero()[0]
    return gpus_more(market, home, int(lacks[enough[0]]) if len(enough) else 0)


def to_stay(
    market: Market, value: Floats, found: Cleared, jobs: Ints
) -> dict[int, tuple[float, int]]:
    """Say of jobs that move what a GPU at home is worth to each, and how many that site lacks.

    With so many more it would be so cheap that the job would not leave it. 0 where that is never
    so: other sites are worth so much more to it that it would leave this one if it cost nothing.

    Args:
        market: Who could do what.
        value: (S, r, k) of `worth`.
        found: Who gets what.
        jobs: (m,) of those on the market.
    """
    if not len(jobs):
        return {}
    home, had, each = market.home[jobs], market.present[jobs], np.arange(len(jobs))
    sizes, away = market.sizes[1:], value[:, jobs, 1:]
    own = away[home, each]  # what it has, a limit may have to pay for
    best = (own / sizes).max(axis=1, initial=0.0)
    away[home, each] = -np.inf
    share = np.where(market.lot[:-1, None] == market.lot[home], 1 - STAY, market.stay[jobs])
    others = away.max(axis=2) - share * np.maximum(own[each, had - 1], 0.0)
    others = others.max(axis=0)
    # (m,) price at which each would stay
    gain = np.where(np.arange(len(sizes)) < had[:, None], own, -np.inf) - others[:, None]
    dearest = (gain / sizes).max(axis=1, initial=0.0)
    lacking = np.zeros(len(jobs), dtype=np.int64)
    for site in np.unique(home).tolist():
        some = ((home == site) & (dearest > 0.0)).nonzero()[0]
        steps, lacks, first = found.bids.at(site, len(found.level))
        last = (-steps.slope).searchsorted(-dearest[some]) - 1
        last = np.maximum(last, first[jobs[some]])
        lacking[some[last >= 0]] = lacks[last[last >= 0]]
    return dict(zip(jobs.tolist(), zip(best.tolist(), lacking.tolist(), strict=True), strict=True))


def gpus_more(market: Market, site: int, lacks: int) -> tuple[Need, ...]:
    """Say that a site would have to have so many GPUs more."""
    have = float(market.gpus[site])
    return (Need("gpus", have, have + lacks),) if lacks > 0 else ()
