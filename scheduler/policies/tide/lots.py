"""Sites of one kind at which jobs are about equally fast are one lot, and a lot has one price.

With a price each they would take turns at being the cheapest: jobs would go to and fro between
them, pause each time, and gain nothing. In a lot a job that runs stays where it is, and one that
comes goes where most GPUs are left. One that could grow at another site may move there if nobody
else wants those GPUs; and so may those that make room for one that waits and cannot use them, as
they have too little memory, or are too few for a gang.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Floats, Ints
from scheduler.policies.parts.hull import LEAST_SLOPE, Steps, merged
from scheduler.policies.tide.market import STAY, Market

#: So many jobs at most move to another site of their lot each time that GPUs are shared out.
MOVES = 8


@dataclass(slots=True, eq=False)
class Lots:
    """What all jobs would pay for the GPUs of each lot; K lots, S sites.

    In each lot a job bids for one site: where it must stay, or else the best for it.
    """

    own: list[Steps]  #: The steps of all jobs in each lot, the steepest first.
    room: list[int]  #: GPUs of each lot that nobody is promised.
    at: Ints  #: (K, r) the site that each job bids for.
    value: Floats  #: (K, r, k) of `worth`, at that site.


def lots_of(market: Market, value: Floats, fixed: Ints, own: list[Steps], left: Ints) -> Lots:
    """Put together what all jobs would pay for each lot.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        fixed: (r,) the only site of its lot where a job may be, -1: it may be at any.
        own: The steps of all jobs at each site, the steepest first.
        left: (S,) GPUs that nobody is promised.
    """
    several, room = _of_several(market), np.maximum(left, 0)
    first = np.array([sites[0] for sites in market.lots])
    at = first[:, None].repeat(len(fixed), axis=1)
    if not several:  # each lot is the site of its number
        return Lots(own, room.tolist(), at, value)
    stays = market.lot[fixed]
    value_at, steps = value[first], [own[site] for site in first.tolist()]
    for one, sites in several:
        most = [np.maximum.reduce(value[site, :, 1:], axis=1) for site in sites.tolist()]
        at[one] = np.where(stays == one, fixed, sites[np.argmax(most, axis=0)])
        rows = (at[one] != sites[0]).nonzero()[0]
        value_at[one, rows] = value[at[one, rows], rows]
        steps[one] = merged([own[site].of_rows(at[one] == site) for site in sites.tolist()])
    return Lots(steps, [int(room[sites].sum()) for sites in market.lots], at, value_at)


def settled(market: Market, value: Floats, fixed: Ints, left: Ints, lots: Lots, lot: Ints) -> Ints:
    """Find (r,) the site of each job in its lot: one that comes goes where most GPUs are left.

    Those who come choose one after the other, each among the sites that are about as good for it as
    the best: who has few of those first, then large gangs, as small ones find room beside them; of
    equal ones who gains most by its first GPUs.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        fixed: (r,) the only site of its lot where a job may be, -1: it may be at any.
        left: (S,) GPUs that nobody is promised.
        lots: What all would pay for each.
        lot: (r,) the lot of each job.
    """
    site: Ints = lots.at[lot, np.arange(len(lot))]
    for one, sites in _of_several(market):
        steps = lots.own[one].of_rows(lot == one)
        steps = steps.of(slice(steps.fitting(lots.room[one])))
        wants = np.bincount(steps.row, steps.cost, len(lot))
        stays = market.lot[fixed] == one
        room = (left - np.bincount(fixed[stays], wants[stays], len(left)))[sites]
        rows, first = np.unique(steps.row, return_index=True)
        comes, first = rows[~stays[rows]], first[~stays[rows]]
        most = np.maximum.reduce(value[sites[:, None], comes, 1:], axis=2)
        good = most >= STAY * np.maximum.reduce(most)
        for at in np.lexsort((first, -wants[comes], good.sum(axis=0))).tolist():
            there = int(np.where(good[:, at], room, -np.inf).argmax())
            site[comes[at]] = sites[there]
            room[there] -= wants[comes[at]]
    return site


def _of_several(market: Market) -> list[tuple[int, Ints]]:
    """List the lots of several sites by number, and these sites."""
    return [(one, sites) for one, sites in enumerate(market.lots) if len(sites) > 1]


def relieved(market: Market, value: Floats, bound: Ints, site: Ints, level: Ints) -> Ints:
    """Move jobs that run to other sites of their lots where GPUs are left and they would have more.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        bound: (r,) site that keeps room for a job, -1: none.
        site: (r,) where each is.
        level: (r,) what it has there.

    Returns:
        (r,) sites; what they have there is to be found anew.
    """
    several = _of_several(market)
    if not several:
        return site
    site, sizes, moves = site.copy(), market.sizes[1:], 0
    idle = market.gpus - np.bincount(site, market.sizes[level], len(market.gpus))
    for at, sites in several:
        there = (market.lot[site] == at) & (bound < 0)
        for one in sites.tolist():
            may = there & (site == market.home) & (site != one)
            rows = may.nonzero()[0]
            if idle[one] <= 0 or not len(rows):
                continue
            now = value[site[rows], rows, level[rows]]
            now += (1 - STAY) * np.maximum(value[site[rows], rows, market.present[rows]], 0.0)
            slope = (value[one, rows, 1:] - now[:, None]) / sizes
            while moves < MOVES:
                fits = np.where(sizes <= idle[one], slope, -np.inf)
                job, size = divmod(int(fits.argmax()), len(sizes))
                if not fits[job, size] > LEAST_SLOPE:
                    break
                row = int(rows[job])
                idle[site[row]] += market.sizes[level[row]]
                idle[one] -= sizes[size]
                slope[job], site[row] = -np.inf, one
                moves += 1
    return site


def room_made(
    market: Market, value: Floats, bound: Ints, site: Ints, level: Ints, shut: Collection[int]
) -> tuple[Ints, Ints]:
    """Start jobs that wait while their lot has GPUs left, but none that they can use.

    Others move to those GPUs from a site that can run such a job, if that costs less than it gains.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        bound: (r,) site that keeps room for a job, -1: none.
        site: (r,) where each is.
        level: (r,) what it has there.
        shut: Sites at which some GPUs are only lent by jobs that come back for them.

    Returns:
        (r,) sites and levels.
    """
    several = _of_several(market)
    if not several:
        return site, level
    idle = market.gpus - np.bincount(site, market.sizes[level], len(market.gpus)).astype(np.int64)
    idle[[*shut]] = 0
    waits = ((level == 0) & (bound < 0)).nonzero()[0]
    site, level, moves = site.copy(), level.copy(), 0
    for _, sites in several if len(waits) else ():
        if not idle[sites].any():
            continue
        own = value[sites[:, None], waits, market.base[waits]]
        own[np.isin(sites, [*shut])] = -np.inf
        least = market.sizes[market.base[waits]]
        slope = np.where(least <= idle[sites].sum(), own.max(axis=0) / least, -np.inf)
        for at in (-slope).argsort(kind="stable")[:MOVES].tolist():
            job, gpus = int(waits[at]), int(least[at])
            if not slope[at] > LEAST_SLOPE or level[job]:
                continue
            for to in (-own[:, at]).argsort(kind="stable").tolist():
                if not own[to, at] > 0.0:
                    break
                one = int(sites[to])
                goes = _making_room(market, value, bound, site, level, idle, sites, one, gpus)
                if goes is None or moves + len(goes) > MOVES:
                    continue
                if sum(cost for _, _, cost in goes) >= own[to, at]:
                    continue
                for row, other, _ in goes:
                    size = int(market.sizes[level[row]])
                    idle[one] += size
                    idle[other] -= size
                    site[row] = other
                site[job], level[job] = one, market.base[job]
                idle[one] -= gpus
                moves += len(goes)
                break
    return site, level


def _making_room(
    market: Market,
    value: Floats,
    bound: Ints,
    site: Ints,
    level: Ints,
    idle: Ints,
    sites: Ints,
    one: int,
    gpus: int,
) -> list[tuple[int, int, float]] | None:
    """Find who could go from a site of a lot to which other one, and what that costs; None: nobody.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        bound: (r,)
        site: (r,) where each is.
        level: (r,) what it has there.
        idle: (S,) GPUs that nobody has.
        sites: Of the lot.
        one: Where room is wanted.
        gpus: That there must be.
    """
    rows = ((site == one) & (level > 0) & (bound < 0)).nonzero()[0]
    room, size, short = idle[sites], market.sizes[level[rows]], gpus - int(idle[one])
    if np.sort(size)[-MOVES:].sum() < short:
        return None
    cost = value[one, rows, level[rows]] - value[sites[:, None], rows, level[rows]]
    cost += np.where(market.home[rows] == one, (1 - STAY) * value[one, rows, level[rows]], 0.0)
    room[sites == one] = 0
    goes = list[tuple[int, int, float]]()
    for at in (cost.min(axis=0, initial=np.inf) / size).argsort(kind="stable").tolist():
        if short <= 0:
            break
        best = int(np.where(room >= size[at], cost[:, at], np.inf).argmin())
        if room[best] >= size[at] and cost[best, at] < np.inf:
            goes.append((int(rows[at]), int(sites[best]), float(cost[best, at])))
            room[best] -= size[at]
            short -= int(size[at])
    return goes if short <= 0 else None
