"""One price a GPU: each job goes where it gains most, and buys what is worth it.

Sites that are about equally fast are one lot (`lots`). The steepest steps of the jobs' hulls take a
lot's GPUs; its price is what the first step that finds no room would have gained per GPU. With
prices, each job chooses its lot; with lots, prices are found: a few rounds of both, each price
moving less than the one before, so that jobs do not run to and fro between two lots.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints
from scheduler.policies.parts.hull import Steps, climb, climb_anew, grow
from scheduler.policies.tide.commitments import free_over_time
from scheduler.policies.tide.gangs import displaced_by, shared_out
from scheduler.policies.tide.lots import Lots, lots_of, relieved, room_made, settled
from scheduler.policies.tide.market import Market, by_part
from scheduler.policies.tide.promises import Kept, Promises

#: Rounds of the search for prices, at most.
ROUNDS = 6
#: Among sites of equal gain training's own, which nobody takes back, then the first: by less than
#: any gain that is one.
_TIE = 1e-9
#: More GPUs than there are.
FAR = np.iinfo(np.int64).max


@dataclass(slots=True, eq=False)
class Bids:
    """What all jobs would pay at all sites."""

    sizes: Ints  #: (k,) GPUs of each level.
    own: list[Steps]  #: The steps at each site, the steepest first.
    left: Ints  #: (S,) GPUs that nobody is promised.
    #: Of each tenant with a limit its jobs, and the GPUs that it leaves them.
    limits: tuple[tuple[Bools, int], ...] = ()
    #: By site, what `at` found.
    _found: dict[int, tuple[Steps, Ints, Ints]] = field(default_factory=dict, init=False)

    def at(self, one: int, r: int) -> tuple[Steps, Ints, Ints]:
        """Return the t steps at a site, and (t,) the GPUs that it lacks for each and all before.

        With them of each of r jobs its first step, -1: it has none.

        Of other tenants than a step's own no more is before it than their limits allow. There
        must be room as well for one gang behind it that may be taken first.
        """
        if one not in self._found:
            steps = self.own[one]
            lacks = steps.cost.cumsum() - self.left[one]
            for jobs, gpus in self.limits:
                mine = jobs[steps.row]
                over = np.cumsum(np.where(mine, steps.cost, 0)) - gpus
                lacks -= np.where(mine, 0, np.maximum(over, 0))
            lacks += displaced_by(self.sizes, steps)
            first = np.full(r, -1)
            # The first step of a job is written last.
            first[steps.row[::-1]] = np.arange(len(steps.row))[::-1]
            self._found[one] = steps, lacks, first
        return self._found[one]


@dataclass(slots=True, eq=False)
class Cleared:
    """Who got what, at which price."""

    site: Ints  #: (r,) where it bids; where it would, if it got nothing.
    level: Ints  #: (r,)
    price: Floats  #: (S,) per GPU; 0 where GPUs are left.
    missing: Ints  #: (r,) GPUs that its site lacks for a job that got nothing there.
    first: Bools  #: (r,) gangs that went before others with steeper steps (`shared_out`).
    bids: Bids


def clear(market: Market, value: Floats, promises: Promises, rank: Ints, within: Bools) -> Cleared:
    """Find sites, levels and prices: worth no less than if all who run keep what they have.

    Prices are found in steps of whole gangs, so what they give may be worth a little less than what
    there is. The next plan could then change it back, and so on for ever. In that case those who
    run stay as they are, and the rest is shared out beside them; but nobody of a higher class waits
    for that, and nobody within a guarantee for what others have beyond their smallest sizes.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        promises: Who has what in any case.
        rank: (r,) of `classes`.
        within: (r,) jobs within guarantees.
    """
    found = _clear(market, value, promises, rank)
    home, runs, present = market.here
    bound, floor = promises.bound.copy(), promises.floor.copy()
    free = bound[runs] < 0
    bound[runs[free]] = home[free]
    stays = bound[runs] == home
    floor[runs[stays]] = np.maximum(floor[runs[stays]], present[stays])
    site, each = np.maximum(bound, 0), np.arange(len(bound))
    kept = np.add.reduce(value[site, each, floor])
    if kept <= np.add.reduce(value[found.site, each, found.level]):
        return found
    if np.count_nonzero(np.bincount(site, market.sizes[floor], len(market.gpus)) > market.gpus):
        return found  # what is promised now does not fit beside what there is
    stayed = _clear(market, value, replace(promises, bound=bound, floor=floor), rank)
    out = (found.level > 0) & (stayed.level == 0)
    more = (stayed.level > 0) & (stayed.level > found.level)
    if np.count_nonzero(out & within) and np.count_nonzero(more & (found.level >= market.base)):
        return found
    least = rank[more].min(initial=rank.max(initial=0))
    return found if rank[out].max(initial=-1) > least else stayed


def _clear(market: Market, value: Floats, promises: Promises, rank: Ints) -> Cleared:
    """Share out what is worth the prices."""
    bids = bid(market, value, promises)
    bound, own, left = promises.bound, bids.own, bids.left
    lent = {kept.site: kept for kept in promises.kept if kept.schedule.lending}
    sites = range(len(own))
    start = _floors(market, promises)
    site, price = _choose(market, value, bound, bids)
    first = np.full(len(own), -1)

    def levels(site: Ints) -> Ints:
        """(r,) what each job gets where it is."""
        level: Ints = np.add.reduce(start)
        first[:] = -1
        for one in sites:
            if one in lent:
                level = _beside(lent[one], value[one], level, site == one, int(left[one]))
            elif left[one] > 0:
                some = own[one].of_rows(site == one)
                level, first[one] = shared_out(
                    market.sizes, value[one], level, some, int(left[one]), rank
                )
        return level

    level = levels(site)
    moved = relieved(market, value, bound, site, level)
    if np.count_nonzero(moved != site):
        site, level = moved, levels(moved)
    # Prices swing: who got nothing where it bid may be worth more elsewhere than some who did.
    waits = (level == 0) & (bound < 0)
    for _ in range(2 if len(own) > 1 and np.count_nonzero(waits) else 0):
        before = site.copy(), level
        for one in sites:
            here = site == one
            free = waits & ~here
            if one in lent or left[one] <= 0 or not np.count_nonzero(free):
                continue
            some = own[one].of_rows(free | here)
            got, first[one] = shared_out(
                market.sizes, value[one], start[one], some, int(left[one]), rank
            )
            site[free & (got > 0)] = one
            level = np.where(site == one, got, level)
            waits = (level == 0) & (bound < 0)
        if not np.count_nonzero((site != before[0]) | (level != before[1])):
            break
    site, level = room_made(market, value, bound, site, level, lent)
    site, lacks = lacking(bids, (level == 0) & (bound < 0), site)
    lacks = np.where(lacks < FAR, np.maximum(lacks, 1), 0)
    went_first = np.logical_or.reduce(first[:, None] == np.arange(len(level))) & (level > 0)
    return Cleared(site, level, price, lacks, went_first, bids)


def bid(market: Market, value: Floats, promises: Promises) -> Bids:
    """Find what jobs would pay, from what they have in any case.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        promises: Who has what in any case.
    """
    count, r = len(market.sites), len(market.rows)
    start = _floors(market, promises)
    left = market.gpus - np.add.reduce(market.sizes[start], axis=1)
    if len(by_part(value)) > 1:
        own = [climb(market.sizes, value[0], start[0])]
        for one in range(1, count):
            # Sites of a kind follow each other: most jobs are worth as much at both.
            same = np.logical_and.reduce(value[one] == value[one - 1], axis=1)
            same &= start[one] == start[one - 1]
            own.append(climb_anew(market.sizes, value[one], start[one], own[-1], same))
        return Bids(market.sizes, own, left)
    steps = climb(market.sizes, value.reshape(count * r, -1), start.ravel(), count)
    at, row = np.divmod(steps.row, r)
    ends = at.searchsorted(np.arange(count + 1)).tolist()
    steps = Steps(row, steps.end, steps.cost, steps.slope)
    return Bids(market.sizes, [steps.of(slice(*pair)) for pair in pairwise(ends)], left)


def _floors(market: Market, promises: Promises) -> Ints:
    """(S, r) levels that jobs have in any case."""
    found = np.zeros((len(market.sites), len(market.rows)), dtype=np.int64)
    kept = (promises.bound >= 0).nonzero()[0]
    found[promises.bound[kept], kept] = promises.floor[kept]
    return found


def lacking(bids: Bids, waits: Bools, site: Ints) -> tuple[Ints, Ints]:
    """Count what each job that waits lacks where it lacks least: (r,) that site, and the GPUs.

    That is what its first step and all that go before it take, beyond what there is: also of jobs
    that are elsewhere now, because more GPUs here may draw them. `FAR` where a job bids nowhere.

    Args:
        bids: Of all.
        waits: (r,) who got nothing.
        site: (r,) where the others are.
    """
    site, found = site.copy(), np.full(len(waits), FAR)
    rows = waits.nonzero()[0]
    best, least = site[rows], found[rows]
    for one in range(len(bids.own)) if len(rows) else ():
        _, short, first = bids.at(one, len(waits))
        lacks = np.append(short, FAR)[first[rows]]
        best[lacks < least] = one
        np.minimum(least, lacks, out=least)
    site[rows], found[rows] = best, least
    return site, found


def _choose(market: Market, value: Floats, bound: Ints, bids: Bids) -> tuple[Ints, Floats]:
    """Find (r,) sites and (S,) prices that go together.

    Args:
        market: Who competes.
        value: (S, r, k)
        bound: (r,)
        bids: What all would pay.
    """
    # Who runs may go to another lot, but not to another site of its lot: see `relieved`.
    fixed = np.where(bound < 0, market.home, bound)
    lots = lots_of(market, value, fixed, bids.own, bids.left)
    lot, price = _priced(market, value, bound, lots)
    return settled(market, value, fixed, bids.left, lots, lot), price[market.lot[:-1]]


def _priced(market: Market, value: Floats, bound: Ints, lots: Lots) -> tuple[Ints, Floats]:
    """Find (r,) the lot of each job, and (K,) the price of each lot, that go together."""
    count = len(lots.own)

    def missed(lot: Ints) -> Floats:
        """(K,) what the first step that finds no room in its lot would gain."""
        found = np.zeros(count)
        for one, steps in enumerate(lots.own):
            mine = (lot == one)[steps.row].nonzero()[0]
            first = int(steps.cost[mine].cumsum().searchsorted(lots.room[one], side="right"))
            if first < len(mine):
                found[one] = steps.slope[mine[first]]
        return found

    lot = kept = market.lot[np.maximum(bound, 0)]
    if count == 1:
        return lot, missed(lot)
    firm = [market.firm[sites[0]] for sites in market.lots]
    # A better price elsewhere must make up for what a move is taken to lose.
    tie = np.empty((count, len(bound)))
    tie[:] = _TIE * (np.arange(count) + np.where(firm, 0, count))[:, None]
    home, runs, _ = market.here
    tie[:, runs] += market.stay[runs] * np.maximum(value[market.here], 0.0)
    tie[market.lot[home], runs] = 0.0
    # Levels first: numpy takes the greatest of contiguous arrays ten times as fast.
    by_level, parts = lots.value[:, :, 1:].transpose(2, 0, 1), by_part(lots.value)
    by_level = np.ascontiguousarray(by_level) if len(parts) == 1 else by_level
    sizes, price = market.sizes[1:, None, None], np.zeros(count)
    net = np.empty((count, len(bound)))

    def gains() -> Floats:
        """(K, r) what each job gains most in each lot, at the prices."""
        for part in parts:
            spent = price[part[0], None] * sizes
            np.maximum.reduce(by_level[:, *part] - spent, out=net[part])
        return np.subtract(net, tie, out=net)

    for turn in range(1, ROUNDS + 1):
        before = lot
        lot = np.where(bound < 0, gains().argmax(axis=0), kept)
        if turn > 1 and not np.count_nonzero(lot != before):
            break
        price += (missed(lot) - price) / turn
    else:
        # Prices still swing: who runs moves only if it gains by that at those that it is told.
        best = gains()[:, runs]
        at, each = market.lot[home], np.arange(len(runs))
        stays = (bound[runs] < 0) & (best[at, each] >= best[lot[runs], each])
        lot[runs[stays]] = at[stays]
    return lot, price


def _beside(kept: Kept, value: Floats, level: Ints, mine: Bools, gpus: int) -> Ints:
    """Share out beside jobs that lend: they come back for what is theirs.

    Others that are planned to be in time may only grow, for as long as they run, by what is never
    needed, and must not end later for it. What is needed later goes to who may lose it again.
    """
    slack, schedule = kept.slack, kept.schedule
    own = (schedule.kept & ~np.isfinite(schedule.until_s)).nonzero()[0]
    stays, comes = kept.jobs[own], mine.copy()
    comes[kept.jobs[schedule.kept]] = False
    slower = slack.takes_s[own] > slack.takes_s[own, level[stays]][:, None]
    value = value.copy()
    value[stays] = np.where(slower, -np.inf, value[stays])
    top, most = len(slack.sizes) - 1, level.copy()
    most[stays] = top
    never = int(free_over_time(slack, schedule).free.min())
    grown = grow(slack.sizes, value, level, most, min(gpus, never))
    gpus -= int((slack.sizes[grown] - slack.sizes[level]).sum())
    return grow(slack.sizes, value, grown, np.where(comes, top, grown), gpus)
