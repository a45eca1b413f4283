"""What each job is worth at each site and size: one number that everything is weighed by.

V(site, job, size) = weight * speed-up * (1 - lost) + right

weight    short jobs first, but no job for ever last: (2 rank - 1)^0.3 * T^-0.35, rank 1 the longest
          of times T on one GPU (heSRPT, Berg et al. 2020, with powers that were measured on
          Pollux's workloads), times (age + T / base)^0.1, times what it has waited beyond
          `patience_s`; twice that for a priority above 0, half of it for one below.
speed-up  over one GPU at the base size's speed.
lost      what the pause of a change takes of the time within which it must pay, for who runs at
          least `UNDONE`; less than nothing for who has just started and stays.
right     who has a higher priority than others runs at its base size before they run at all; who is
          within its tenant's guarantee, before all that are not, and before any grows. It is no
          more than that takes: of jobs of one class of priority, a short one may grow before a
          long one starts.
"""

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints, Snapshot
from scheduler.policies.parts.portable import power
from scheduler.policies.tide.market import Market, barred, by_part

RANK_POWER = 0.3
LENGTH_POWER = 0.35
#: Power of the time from submission to the end in the weight: who is slowed down most, most.
AGE_POWER = 0.1
#: A change at a site is counted so many times: others there have to change because of it. A move to
#: another site counts for less: the GPUs that it leaves are others' gain, and `Market.stay` asks
#: for more besides. Counted once, it would leave jobs on slow GPUs for too long: where sites are
#: not equally fast, mean completion times are up to 1 % longer then.
RIPPLE, MOVE = 2.0, 0.5
#: What a change of who runs loses at least, though it may be free: as much as a pause of 30 s in
#: ten minutes. Who comes and goes changes prices, and the next change undoes some of what this one
#: gains. Where changes are free, as in some papers, mean completion times are 1 % shorter by it.
UNDONE = 0.05
#: A pause may take this many times its length to pay, where that is longer than the horizon: else
#: what takes minutes to start would never change, though it runs for days beside idle GPUs.
PAUSES = 5.0
#: What a start is taken to lose, at most, beside its share of the whole run; and what who has just
#: started is worth more.
START_MOST = 0.3
#: Factor of the weight of a priority above 0, and divisor of one below.
FAVOUR = 2.0
#: What a class has more than the one below it, of the dearest GPU there: above 1, so that nobody of
#: a lower class outbids it.
RIGHT = 2.0


def weights(seen: Snapshot, market: Market, patience_s: float) -> Floats:
    """(r,) worth of one unit of speed-up.

    Args:
        seen: What is known.
        market: Whose.
        patience_s: From so long without GPUs on, weight grows with that time.
    """
    jobs, rows, work_s = seen.jobs, market.rows, market.work_s
    # Equal works are ranked by index: two jobs must not swap ranks from cycle to cycle.
    odd = np.empty(len(rows))  # 2 rank - 1
    odd[(-work_s).argsort(kind="stable")] = np.arange(1, 2 * len(rows), 2)
    age_s = market.now_s - jobs.submit_s[rows]
    without_s = age_s - jobs.held_s[rows]
    weight: Floats = power(odd, RANK_POWER) * power(work_s, -LENGTH_POWER)
    weight *= np.maximum(1.0, without_s / patience_s)
    alone_s = work_s / market.sizes[market.base]
    weight *= power(np.maximum(age_s, 0.0) + alone_s, AGE_POWER)
    priority = jobs.priority[rows]
    if np.count_nonzero(priority):
        weight *= power(FAVOUR, np.sign(priority))
    return weight


def worth(market: Market, weight: Floats, horizon_s: float, rank: Ints, entitled: Bools) -> Floats:
    """(S, r, k) V; -inf where a job may not run, 0 for no GPU.

    Args:
        market: Who could do what.
        weight: (r,)
        horizon_s: A change of who runs must pay for its pause within this, or within `PAUSES`.
        rank: (r,) of `classes`.
        entitled: (r,) of `Quotas`.
    """
    per_rate = weight * market.work_s / market.work
    # Who waits has to start some day, so little of its start is a loss of this one. But if none
    # were, who was stopped would at once be worth more than before, and two would take turns.
    most = np.where(market.home < 0, START_MOST, np.inf)
    least = np.where(market.home < 0, 0.0, UNDONE)
    columns = np.empty_like(market.rate)
    moves = (market.home >= 0) & (market.own != np.arange(len(columns))[:, None])
    counts = np.where(moves, MOVE, RIPPLE)[:, :, None]
    for part in by_part(columns):
        takes_s, pause_s, own = market.takes_s[part], market.pause_s[part], columns[part]
        within_s = np.maximum(PAUSES * pause_s, horizon_s)
        np.minimum(within_s, takes_s, out=within_s)
        lost = pause_s / np.maximum(within_s, 1e-9, out=within_s)
        np.maximum(lost, least[part[1], None], out=lost)
        lost *= counts[part]
        np.minimum(lost, most[part[1], None], out=lost)
        whole_s = np.maximum(takes_s, 1e-9, out=within_s)
        np.maximum(lost, np.divide(pause_s, whole_s, out=whole_s), out=lost)  # less than it, else
        np.subtract(1.0, lost, out=lost)
        np.multiply(per_rate[part[1], None], market.rate[part], out=own)
        own *= np.maximum(lost, 0.0, out=lost)
        own += barred(market.pays[part])
    value = spread(columns, market)
    _, runs, present = market.here
    # No change, no loss. But a start that is undone at once is all loss, so who has just started
    # has an advantage that goes down to nothing within `PAUSES` of its pause.
    whole_s = PAUSES * market.start_s[market.here[1:]]
    fresh = np.maximum(whole_s - market.since_s, 0.0) / np.maximum(whole_s, 1e-9)
    stays = market.rate[market.own[runs], runs, present] * (1.0 + START_MOST * fresh)
    value[market.here] = per_rate[runs] * stays
    if np.count_nonzero(rank):
        dearest = np.full(int(rank.max()) + 1, 1e-9)  # of each class
        np.maximum.at(dearest, rank, (value[:, :, 1:] / market.sizes[1:]).max(axis=(0, 2)))
        right = (dearest.cumsum() - dearest)[rank] + np.where(entitled, dearest.sum(), 0.0)
        value += (RIGHT * right * market.sizes[market.base])[:, None]
    value[:, :, 0] = 0.0
    return value


def spread(columns: Floats, market: Market) -> Floats:
    """(S, r, k) what each site has of (p, r, k) columns; not to be used as those any more."""
    if market.alike[-1] == len(market.alike) - 1:  # no two are alike
        return columns
    found = np.empty_like(columns, shape=(len(market.alike), *columns.shape[1:]))
    for site, part in enumerate(market.alike.tolist()):
        found[site] = columns[part]
    home, runs, _ = market.here
    found[home, runs] = columns[market.own[runs], runs]
    return found


def classes(seen: Snapshot, market: Market, entitled: Bools) -> Ints:
    """(r,) who has its base size before whom: a higher class before all lower ones; 0 the lowest.

    Args:
        seen: What is known.
        market: Whose.
        entitled: (r,) of `Quotas`.
    """
    priority = seen.jobs.priority[market.rows]
    found: Ints = np.array(sorted(set(priority.tolist()))).searchsorted(priority)
    found += np.where(entitled, found.max(initial=0) + 1, 0)
    return found
