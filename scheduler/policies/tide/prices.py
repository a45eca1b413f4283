"""One price a GPU at each site: each job goes where it gains most, and buys what is worth it.

The steepest steps of the jobs' hulls take a site's GPUs; its price is what the first step that
finds no room would have gained per GPU. With prices, each job chooses its site; with sites, prices
are found: a few rounds of both, each price moving less than the one before, so that jobs do not
run to and fro between two sites.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints
from scheduler.policies.parts.hull import Steps, climb, grow, take
from scheduler.policies.tide.commitments import free_over_time
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.promises import Kept, Promises
from scheduler.policies.tide.worth import STAY

#: Rounds of the search for prices, at most.
ROUNDS = 6
#: Among sites of equal gain the first: by less than any gain that is one.
_TIE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Cleared:
    """Who got what, at which price."""

    site: Ints  #: (r,) where it bids; where it would, if it got nothing.
    level: Ints  #: (r,)
    price: Floats  #: (S,) per GPU; 0 where GPUs are left.
    missing: Ints  #: (r,) GPUs that its site lacks for a job that got nothing there.


def clear(market: Market, value: Floats, promises: Promises) -> Cleared:
    """Find sites, levels and prices.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        promises: Who has what in any case.
    """
    bound, floor = promises.bound, promises.floor
    lent = {kept.site: kept for kept in promises.kept if kept.courses.lending}
    count, r = len(market.sites), len(market.rows)
    sites = np.arange(count)
    level = np.where(bound >= 0, floor, 0)
    left = market.gpus - np.bincount(
        np.maximum(bound, 0), np.where(bound >= 0, market.sizes[level], 0), count
    ).astype(np.int64)
    start = np.where(bound == sites[:, None], level, 0)
    flat = value.reshape(count * r, -1)
    steps = climb(market.sizes, flat, start.ravel())
    of_site = [steps.of(steps.row // r == at) for at in sites.tolist()] if count > 1 else [steps]
    own = [Steps(one.row % r, one.end, one.cost, one.slope) for one in of_site]
    price = np.zeros(count)
    site = np.where(bound >= 0, bound, 0)
    if count > 1:
        before: Ints | None = None
        home = (market.home >= 0).nonzero()[0]
        hold = np.zeros((count, r))
        hold[:, home] = (1 - STAY) * np.maximum(value[market.here], 0.0)
        hold[market.home[home], home] = 0.0
        for turn in range(1, ROUNDS + 1):
            net = (value - price[:, None, None] * market.sizes).max(axis=2) - hold
            site = np.where(bound >= 0, bound, (net - _TIE * sites[:, None]).argmax(axis=0))
            if before is not None and (site == before).all():
                break
            before = site
            for at, one in enumerate(own):
                price[at] += (_price(one, site == at, int(left[at])) - price[at]) / turn
    else:
        price[0] = _price(own[0], np.ones(r, dtype=np.bool_), int(left[0]))
    missing = np.zeros(r, dtype=np.int64)
    for at, one in enumerate(own):
        mine = site == at
        bids = one if count == 1 else one.of(mine[one.row])
        _count_missing(bids, int(left[at]), missing)
        if at in lent:
            level = _beside(lent[at], value[at], level, mine, int(left[at]))
            continue
        level = np.where(mine, take(market.sizes, value[at], level, bids, int(left[at])), level)
    if count > 1:
        for at in sites.tolist():
            if at not in lent:
                _rest(at, market, value[at], own[at], bound, site, level)
    return Cleared(site, level, price, missing)


def _price(steps: Steps, mine: Bools, gpus: int) -> float:
    """Return the gain per GPU of the first step that finds no room; 0 if all do."""
    which = mine[steps.row]
    slope = steps.slope[which]
    first = int(np.cumsum(steps.cost[which]).searchsorted(max(gpus, 0), side="right"))
    return float(slope[first]) if first < len(slope) else 0.0


def _count_missing(steps: Steps, gpus: int, missing: Ints) -> None:
    """Count what a site would need besides, for each job's first step and all that go before it."""
    want = np.cumsum(steps.cost) - gpus
    row, first = np.unique(steps.row, return_index=True)
    missing[row] = np.maximum(want[first], 0)


def _beside(kept: Kept, value: Floats, level: Ints, mine: Bools, gpus: int) -> Ints:
    """Share out beside jobs that lend: they come back for what is theirs.

    Others that are planned to be in time may only grow, for as long as they run, by what is never
    needed, and must not end later for it. What is needed later goes to who may lose it again.
    """
    lax, courses = kept.lax, kept.courses
    stays = courses.kept & ~np.isfinite(courses.until_s)
    slower = lax.takes_s > lax.takes_s[np.arange(len(level)), level][:, None]
    value = np.where(stays[:, None] & slower, -np.inf, value)
    top = len(lax.sizes) - 1
    never = int(free_over_time(lax, courses).free.min())
    grown = grow(lax.sizes, value, level, np.where(stays, top, level), min(gpus, never))
    gpus -= int((lax.sizes[grown] - lax.sizes[level]).sum())
    return grow(lax.sizes, value, grown, np.where(mine & ~courses.kept, top, grown), gpus)


def _rest(
    at: int, market: Market, value: Floats, own: Steps, bound: Ints, site: Ints, level: Ints
) -> None:
    """Give a site's leftovers to who got nothing where it bid; changes `site` and `level`."""
    left = int(market.gpus[at]) - int(market.sizes[level[site == at]].sum())
    free = (level == 0) & (bound < 0) & (site != at)
    if left > 0 and free.any():
        got = take(market.sizes, value, level, own.of(free[own.row]), left)
        site[got > level] = at
        level[:] = got
