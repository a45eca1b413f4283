"""What would have to change for a job that loses GPUs or moves: from the bids that decided."""

import numpy as np

from scheduler.policies.interface import Floats, Need
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.prices import STAY, Cleared


def to_keep(market: Market, found: Cleared, job: int) -> tuple[Need, ...]:
    """Say with how many GPUs its site would leave a job the size that it has."""
    home = int(market.home[job])
    steps, lacks = found.bids.at(home)
    enough = ((steps.row == job) & (steps.end >= market.present[job])).nonzero()[0]
    return gpus_more(market, home, int(lacks[enough[0]]) if len(enough) else 0)


def to_stay(market: Market, value: Floats, found: Cleared, job: int) -> tuple[Need, ...]:
    """Say with how many GPUs its site would be so cheap that a job would not leave it; () if none.

    Then other sites are worth so much more to it that it would leave this one if it cost nothing.
    """
    home = int(market.home[job])
    own = value[home, job, : market.present[job] + 1]  # what it has, a limit may have to pay for
    others = np.delete(value[:, job, 1:], home, axis=0).max(initial=-np.inf)
    gain = own[1:] - (others - (1 - STAY) * max(float(own[-1]), 0.0))
    dearest = float(
        (gain / market.sizes[1 : len(own)]).max(initial=0.0)
    )  # price at which it would stay
    if dearest <= 0.0:
        return ()
    steps, lacks = found.bids.at(home)
    last = int(np.count_nonzero(steps.slope > dearest)) - 1
    mine = (steps.row == job).nonzero()[0]
    last = max(last, int(mine[0]) if len(mine) else -1)
    return gpus_more(market, home, int(lacks[last]) if last >= 0 else 0)


def gpus_more(market: Market, site: int, lacks: int) -> tuple[Need, ...]:
    """Say that a site would have to have so many GPUs more."""
    have = float(market.gpus[site])
    return (Need("gpus", have, have + lacks),) if lacks > 0 else ()
