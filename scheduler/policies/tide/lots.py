"""Sites at which jobs are about as fast are one lot, and a lot has one price.

With a price each they would take turns at being the cheapest: jobs would go to and fro between
them, at the price of a pause, and gain nothing. In a lot who runs stays where it is, and who comes
goes where most room is left. Who has too little room there may move to what nobody else wants.
Jobs also move there to make room for one that waits and cannot use it, as its GPUs have too little
memory, or it is too small for a gang.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints
from scheduler.policies.parts.hull import LEAST_SLOPE, Steps, merged
from scheduler.policies.tide.market import STAY, Market

#: In one plan so many jobs at most move to a site of their lot that has GPUs left.
MOVES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Lots:
    """What is sold at one price each. K lots, S sites."""

    of: Ints  #: (S,) the lot of each site.
    first: Ints  #: (K,) a site of each lot.
    own: list[Steps]  #: What all jobs would pay for each, the steepest first.
    left: Ints  #: (S,) GPUs that nobody is promised.
    value: Floats  #: (K, r, k) of `worth`, where each job bids.
    at: Ints  #: (K, r) the site at which it bids: where it runs or is bound, or the best.
    #: (S, r) where a job that comes to a lot of several sites may be; not if it is one of one.
    open_to: Bools

    @property
    def room(self) -> list[int]:
        """GPUs of each lot that nobody is promised."""
        gpus: list[int] = np.bincount(self.of, np.maximum(self.left, 0)).astype(np.int64).tolist()
        return gpus

    def sites(self, lot: Ints, sizes: Ints) -> Ints:
        """Find (r,) the site of each job in its lot.

        Args:
            lot: (r,)
            sizes: (k,) GPUs of each level.
        """
        each = np.arange(len(lot))
        site: Ints = self.at[lot, each]
        for one, gpus in enumerate(self.room):
            several = (self.of == one).nonzero()[0]
            if len(several) == 1:
                continue
            steps = self.own[one].of((lot[self.own[one].row] == one).nonzero()[0])
            steps = steps.of(slice(steps.fitting(gpus)))
            wants = np.bincount(steps.row, steps.cost, len(lot))
            comes = self.open_to[several].any(axis=0)
            stays = (lot == one) & ~comes
            room = self.left[several] - np.bincount(
                several.searchsorted(site[stays]), wants[stays], len(several)
            )
            rows, first = np.unique(steps.row, return_index=True)
            rows, first = rows[comes[rows]], first[comes[rows]]
            may = self.open_to[several[:, None], rows]
            # Who can be at few sites first, then large gangs: small ones find room beside them.
            # Of equal ones the steepest first step.
            for at in np.lexsort((first, -wants[rows], may.sum(axis=0))).tolist():
                best = int(np.where(may[:, at], room, -np.inf).argmax())
                site[rows[at]] = several[best]
                room[best] -= wants[rows[at]]
        return site


def lots_of(market: Market, value: Floats, bound: Ints, own: list[Steps], left: Ints) -> Lots:
    """Put together what all jobs would pay for each lot.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        bound: (r,) site that keeps room for a job, -1: none.
        own: What all would pay at each site.
        left: (S,) GPUs that nobody is promised.
    """
    count, r = len(market.sites), len(bound)
    of, first = np.empty(count, dtype=np.int64), np.array([sites[0] for sites in market.lots])
    for one, sites in enumerate(market.lots):
        of[sites] = one
    at = np.repeat(first[:, None], r, axis=1)
    open_to = np.zeros((count, r), dtype=np.bool_)
    if len(first) == count:
        return Lots(of, first, own, left, value, at, open_to)
    best, offered = np.empty_like(value[: len(first)]), list[Steps]()
    for one, sites in enumerate(market.lots):
        best[one] = value[sites[0]]
        if len(sites) == 1:
            offered.append(own[sites[0]])
            continue
        top = np.array([np.maximum.reduce(value[site, :, 1:], axis=1) for site in sites.tolist()])
        at[one] = sites[top.argmax(axis=0)]
        open_to[sites] = top >= STAY * np.maximum.reduce(top)
        for fixed in (market.home, bound):
            here = ((fixed >= 0) & (of[fixed] == one)).nonzero()[0]
            at[one, here] = fixed[here]
            open_to[sites[:, None], here] = False
        parts = []
        for site in sites.tolist():
            mine = at[one] == site
            best[one, mine] = value[site, mine]
            parts.append(own[site].of(mine[own[site].row].nonzero()[0]))
        offered.append(merged(parts))
    return Lots(of, first, offered, left, best, at, open_to)


def relieved(market: Market, value: Floats, bound: Ints, site: Ints, level: Ints) -> Ints:
    """Move jobs that would have more at another site of their lot to GPUs that are left there.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        bound: (r,) site that keeps room for a job, -1: none.
        site: (r,) where each is.
        level: (r,) what it has there.

    Returns:
        (r,) sites; what they have there is to be found anew.
    """
    several = [sites for sites in market.lots if len(sites) > 1]
    if not several:
        return site
    idle = market.gpus - np.bincount(site, market.sizes[level], len(market.gpus)).astype(np.int64)
    site, sizes, moves = site.copy(), market.sizes[1:], 0
    for sites in several:
        for one in sites.tolist():
            others = np.isin(site, sites) & (site == market.home) & (site != one) & (bound < 0)
            rows = others.nonzero()[0] if idle[one] > 0 else ()
            if not len(rows):
                continue
            now = value[site[rows], rows, level[rows]]
            now += (1 - STAY) * np.maximum(value[site[rows], rows, market.present[rows]], 0.0)
            slope = (value[one, rows, 1:] - now[:, None]) / sizes
            while moves < MOVES:
                job, size = divmod(
                    int(np.where(sizes <= idle[one], slope, -np.inf).argmax()), len(sizes)
                )
                if not slope[job, size] > LEAST_SLOPE or sizes[size] > idle[one]:
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
    idle = market.gpus - np.bincount(site, market.sizes[level], len(market.gpus)).astype(np.int64)
    idle[[*shut]] = 0
    waits = ((level == 0) & (bound < 0)).nonzero()[0]
    site, level, moves = site.copy(), level.copy(), 0
    for sites in market.lots if len(waits) else ():
        if len(sites) == 1 or not idle[sites].any():
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
