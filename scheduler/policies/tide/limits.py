"""Prices under limits: what a tenant may hold goes to those of its jobs whose steps are steepest.

Prices are found without limits first. If a tenant would have more than its limit, it chooses which
sizes its jobs bid for at all, so that they never exceed it together; then prices are found again.
What its jobs did not get, because others paid more, its other jobs may bid for in turn.
"""

from dataclasses import dataclass, replace

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints
from scheduler.policies.parts.hull import LEAST_SLOPE, Steps, climb
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.prices import FAR, Cleared, bid, clear, lacking
from scheduler.policies.tide.promises import Promises
from scheduler.policies.tide.quotas import Quotas

#: So often prices are found anew for what a tenant's jobs did not get, at most.
TURNS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Limited:
    """Who got what under limits."""

    found: Cleared
    refused: Bools  #: (r,) its tenant's limit keeps it from more than it has.
    #: (r,) the least limit with which a job would have a size, or keep it; 0: nothing is refused.
    limit: Ints
    #: (r,) has room kept by a promise, and may not have it before others of its tenant have left.
    waits: Bools


def clear_within(
    market: Market, value: Floats, promises: Promises, quotas: Quotas, within: Bools, rank: Ints
) -> Limited:
    """Find sites, levels and prices of `clear`, so that no tenant has more than its limit.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        promises: Who has what in any case; it is within limits.
        quotas: What tenants may have.
        within: (r,) jobs within guarantees.
        rank: (r,) of `classes`.
    """
    rows, r = quotas.limited.nonzero()[0], len(market.rows)
    short, limit = np.zeros(r, dtype=np.bool_), np.zeros(r, dtype=np.int64)
    waits = np.zeros(r, dtype=np.bool_)
    found = clear(market, value, promises, rank, within)
    if not len(rows):
        return Limited(found, short, limit, waits)
    bound = promises.bound[rows]
    floor = np.where(bound >= 0, promises.floor[rows], 0)
    best = value[:, rows].max(axis=0)
    best[bound >= 0] = value[bound[bound >= 0], rows[bound >= 0]]
    first = climb(market.sizes, best, floor)
    now = np.maximum(quotas.held[rows], market.sizes[floor])
    gpus = quotas.now(np.maximum(market.sizes[found.level], quotas.held))
    if (gpus > quotas.most).any():
        found, short = _capped(market, value, promises, quotas, within, rank, rows, floor, best)
        waits = _waits(market.sizes[found.level], promises, quotas)
    held = np.bincount(quotas.of[rows], market.sizes[floor], len(quotas.most)).astype(np.int64)
    room: list[int] = (quotas.most - held).tolist()
    bids = replace(
        bid(market, value, promises),
        limits=tuple(
            (quotas.of == one, max(room[one], 0)) for one in np.unique(quotas.of[rows]).tolist()
        ),
    )
    site, lacks = lacking(bids, (found.level == 0) & (promises.bound < 0), found.site)
    lacks = np.where(lacks < FAR, np.maximum(lacks, ~short), 0)
    wants = np.where(found.level[rows] > 0, market.present[rows], 1)
    apart = quotas.apart + quotas.leaving
    limit[rows] = _limits(market.sizes, first, wants, now, quotas.of[rows], apart.tolist())
    limit[limit <= (quotas.apart + quotas.most)[quotas.of]] = 0
    held = np.bincount(quotas.of[rows], now, len(quotas.most)).astype(np.int64)
    limit[waits] = (apart + held)[quotas.of[waits]]
    return Limited(
        Cleared(site, found.level, found.price, lacks, found.first, bids), short, limit, waits
    )


def _capped(
    market: Market,
    value: Floats,
    promises: Promises,
    quotas: Quotas,
    within: Bools,
    rank: Ints,
    rows: Ints,
    floor: Ints,
    best: Floats,
) -> tuple[Cleared, Bools]:
    """Find sites, levels and prices where a tenant would have more than its limit.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        promises: Who has what in any case.
        quotas: What tenants may have.
        within: (r,) jobs within guarantees.
        rank: (r,) of `classes`.
        rows: (l,) jobs of tenants with a limit.
        floor: (l,) levels that are promised to them.
        best: (l, k) worth at the best site.

    Returns:
        What was found, and (r,) whom a limit keeps from more.
    """
    r, levels = len(market.rows), np.arange(len(market.sizes))
    short = np.zeros(r, dtype=np.bool_)
    start = _start(market, floor, rows, quotas)
    spent = np.bincount(quotas.of[rows], market.sizes[start], len(quotas.most)).astype(np.int64)
    spare: list[int] = (quotas.most - spent).tolist()
    cap, sealed = np.full(r, levels[-1]), np.full(r, levels[-1])
    first = climb(market.sizes, best, floor)
    steps = climb(market.sizes, best, start)
    cap[rows], refused = _caps(market.sizes, best, start, steps, quotas.of[rows], spare)
    found = clear(market, np.where(levels <= cap[:, None], value, -np.inf), promises, rank, within)
    for _ in range(TURNS if refused.any() else 0):
        # What others paid more for is the turn of who was refused; a right is not given up.
        # Whose tenant's limit refuses nobody makes room for nobody: it bids again.
        outbid = np.isin(quotas.of, quotas.of[rows[refused]]) & (found.level < cap) & ~within
        sealed = np.where(outbid, found.level, sealed)
        open_to = np.where(levels <= sealed[rows, None], best, -np.inf)
        steps = climb(market.sizes, open_to, start)
        before = cap.copy()
        cap[rows], refused = _caps(market.sizes, open_to, start, steps, quotas.of[rows], spare)
        if (cap <= before).all():
            cap = before
            break
        found = clear(
            market, np.where(levels <= cap[:, None], value, -np.inf), promises, rank, within
        )
    short[rows] = refused
    short &= found.level == cap
    now = np.maximum(quotas.held[rows], market.sizes[floor])
    free, comes = quotas.most - quotas.leaving, np.zeros(len(rows), dtype=np.bool_)
    for turn in range(TURNS):
        kept, late = _in_turn(
            market.sizes, found.level[rows], cap[rows], now, first, quotas.of[rows], free
        )
        if not late.any():
            break
        comes |= late
        short[rows] |= late
        # Who has to wait leaves room for jobs of other tenants, until nobody has to.
        theirs = np.isin(quotas.of[rows], quotas.of[rows][late]) | (turn == TURNS - 1)
        cap[rows] = np.where(theirs, kept, cap[rows])
        found = clear(
            market, np.where(levels <= cap[:, None], value, -np.inf), promises, rank, within
        )
    # What a job has may go on, unless another one of its tenant waits until it has left.
    keeps = np.where(np.isin(quotas.of, quotas.of[rows][comes]), 0, quotas.held)
    return _fill(market, value, promises, quotas, found, keeps), short


def _start(market: Market, floor: Ints, rows: Ints, quotas: Quotas) -> Ints:
    """(l,) levels that a limit does not take from jobs: what is promised, and what is fresh."""
    fresh = np.where(quotas.fresh[rows], np.maximum(floor, market.present[rows]), floor)
    of = quotas.of[rows]
    gpus = np.bincount(of, market.sizes[fresh], len(quotas.most))
    found: Ints = np.where((gpus <= quotas.most)[of], fresh, floor)
    return found


def _caps(
    sizes: Ints, best: Floats, start: Ints, steps: Steps, of: Ints, room: list[int]
) -> tuple[Ints, Bools]:
    """Share limits out among the jobs of each tenant by marginal worth.

    Args:
        sizes: (k,)
        best: (l, k) worth at the best site.
        start: (l,) level each job has anyway.
        steps: From there.
        of: (l,) whose job it is.
        room: Of each tenant, what its limit leaves beside those levels.

    Returns:
        (l,) the level that each may have, and whether that is less than it would bid for.
    """
    whose, left = of.tolist(), room.copy()
    cap, refused = start.copy(), np.zeros(len(of), dtype=np.bool_)
    late: list[int] = []
    for row, end, cost in zip(
        steps.row.tolist(), steps.end.tolist(), steps.cost.tolist(), strict=True
    ):
        if refused[row]:
            continue
        if cost > left[whose[row]]:
            refused[row] = True
            late.append(row)
        else:
            left[whose[row]] -= cost
            cap[row] = end
    # Whose step does not fit takes the best size in between, if any fits.
    for row in late:
        extra, gain = sizes - sizes[cap[row]], best[row] - best[row, cap[row]]
        fits = ((extra > 0) & (extra <= left[whose[row]]) & (gain > LEAST_SLOPE)).nonzero()[0]
        if len(fits):
            cap[row] = fits[gain[fits].argmax()]
            left[whose[row]] -= int(extra[cap[row]])
    return cap, refused


def _in_turn(
    sizes: Ints, level: Ints, cap: Ints, now: Ints, steps: Steps, of: Ints, most: Ints
) -> tuple[Ints, Bools]:
    """Give a tenant's jobs what its other jobs hold under its limit only once those have left.

    Args:
        sizes: (k,)
        level: (l,) what each job would have.
        cap: (l,) what it may have.
        now: (l,) GPUs that it holds, or was promised.
        steps: Of the jobs, from what was promised on.
        of: (l,) whose job it is.
        most: Of each tenant, what its jobs may hold now.

    Returns:
        (l,) the levels that they may have now, and who has to wait for others to leave.
    """
    kept, wants = np.minimum(cap, sizes.searchsorted(now)), sizes[level]
    held = np.bincount(of, np.maximum(now, sizes[kept]), len(most)).astype(np.int64)
    left, whose, waits = (most - held).tolist(), of.tolist(), np.zeros(len(of), dtype=np.bool_)
    ends = np.minimum(sizes[steps.end], wants[steps.row])
    more = ends - np.maximum(sizes[steps.end] - steps.cost, now[steps.row])
    for at in (more > 0).nonzero()[0].tolist():
        row, gpus = int(steps.row[at]), int(more[at])
        if waits[row] or gpus > left[whose[row]]:
            waits[row] = True
        else:
            left[whose[row]] -= gpus
            kept[row] = sizes.searchsorted(ends[at])
    return kept, waits


def _waits(gpus: Ints, promises: Promises, quotas: Quotas) -> Bools:
    """(r,) promised jobs that are to have more before others of their tenant have left.

    Args:
        gpus: (r,) that each job is to have.
        promises: Who has what in any case.
        quotas: What tenants may have.
    """
    over: list[int] = (quotas.now(np.maximum(gpus, quotas.held)) - quotas.most).tolist()
    waits = np.zeros(len(gpus), dtype=np.bool_)
    grows = (promises.bound >= 0) & quotas.limited & (gpus > quotas.held)
    for job in grows.nonzero()[0][::-1].tolist():  # who came first waits last
        if over[quotas.of[job]] > 0:
            over[quotas.of[job]] -= int(gpus[job] - quotas.held[job])
            waits[job] = True
    return waits


def _fill(
    market: Market,
    value: Floats,
    promises: Promises,
    quotas: Quotas,
    found: Cleared,
    keeps: Ints,
) -> Cleared:
    """Give what is left of sites to who gains most by it, within limits.

    Args:
        market: Who competes.
        value: (S, r, k) of `worth`.
        promises: Who has what in any case.
        quotas: What tenants may have.
        found: Who got what.
        keeps: (r,) GPUs that count for the limit of its tenant if each job has them again or not.
    """
    level, site, sizes = found.level.copy(), found.site.copy(), market.sizes
    each = np.arange(len(level))
    used = np.bincount(site, sizes[level], len(market.gpus)).astype(np.int64)
    held = quotas.now(np.maximum(sizes[level], quotas.held))
    spare = np.append(quotas.most - held, market.gpus.sum())
    lent = [kept.site for kept in promises.kept if kept.schedule.lending]
    for one, idle in enumerate((market.gpus - used).tolist()):
        while idle > 0 and one not in lent:
            may = np.where(promises.bound < 0, (level == 0) | (site == one), promises.bound == one)
            extra = sizes - sizes[level][:, None]
            more = np.maximum(sizes, keeps[:, None])
            more -= np.maximum(sizes[level], keeps)[:, None]
            now = np.where(level > 0, value[one, each, level], 0.0)[:, None]
            fits = may[:, None] & (extra > 0) & (extra <= idle) & (now > -np.inf)
            fits &= more <= spare[quotas.of][:, None]
            slope = np.where(fits, value[one] - np.where(fits, now, 0.0), -np.inf)
            slope /= np.maximum(extra, 1)
            job, to = divmod(int(slope.argmax()), len(sizes))
            if slope[job, to] <= LEAST_SLOPE:
                break
            idle -= int(extra[job, to])
            spare[quotas.of[job]] -= more[job, to]
            level[job], site[job] = to, one
    return replace(found, site=site, level=level)


def _limits(sizes: Ints, steps: Steps, wants: Ints, now: Ints, of: Ints, apart: list[int]) -> Ints:
    """(l,) the limit that pays for each job's wanted level, and all that goes before it.

    Those are the steps of its tenant that are steeper, and what jobs hold until they have left.

    Args:
        sizes: (k,)
        steps: Of all, the steepest first.
        wants: (l,) levels.
        now: (l,) GPUs that each job holds, or was promised.
        of: (l,) whose job it is.
        apart: Of each tenant, GPUs of jobs that may not be touched now.
    """
    found = np.zeros(len(of), dtype=np.int64)
    for one, gpus in enumerate(apart):
        mine = steps.of_rows(of == one)
        more = sizes[mine.end] - np.maximum(sizes[mine.end] - mine.cost, now[mine.row])
        paid = gpus + int(now[of == one].sum()) + np.cumsum(np.maximum(more, 0))
        enough = (mine.end >= wants[mine.row]).nonzero()[0][::-1]
        # The first step that is enough is written last.
        found[mine.row[enough]] = paid[enough]
    return found
