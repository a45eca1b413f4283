"""How much time jobs have to spare: the columns that deadline scheduling in one pool works with."""

import math
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints, Snapshot
from scheduler.policies.parts.contest import Contest

#: Seconds that rounding may cost.
HAIR_S = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Laxity:
    """What each job of a contest could do from now on. r jobs, k levels, level 0 is no GPU."""

    now_s: float
    gpus: int  #: for all of them.
    sizes: Ints  #: (k,) GPUs of each level.
    rate: Floats  #: (r, k) work per second.
    work: Floats  #: (r,)
    due_s: Floats  #: (r,) inf for best effort.
    #: (r, k) sizes that are faster than all smaller ones, and the present one.
    pays: Bools
    present: Ints  #: (r,) level now held.
    start_s: Floats  #: (r, k) pause of a change to each level.
    #: (r, k) the same, but for the present level what is left of the pause under way.
    pause_s: Floats
    takes_s: Floats  #: (r, k) time to the end at each level from now on; inf where it cannot run.
    least: Ints  #: (r,) smallest level that is in time from now on; 0: none is, or no deadline.
    area_gpu_s: Floats  #: (r,) GPU time at that level; inf without one.

    def ends_s(self, who: Ints, level: Ints) -> Floats:
        """Return when jobs end that keep a level from now on."""
        return self.now_s + self.takes_s[who, level]


def laxity(seen: Snapshot, contest: Contest, doubling_s: float) -> Laxity:
    """Work the columns out.

    Args:
        seen: What is known.
        contest: Whose.
        doubling_s: How much longer the start of a gang takes with each doubling of its size, for
            jobs that declare a start to take any time at all.
    """
    jobs, rows = seen.jobs, contest.rows
    own = np.where(contest.allowed, contest.rate, 0.0)
    before = np.hstack([np.zeros((len(rows), 1)), np.maximum.accumulate(own, axis=1)[:, :-1]])
    pays = own > before
    runs = np.flatnonzero(contest.present > 0)
    present = contest.present[runs]
    pays[runs, present] = True
    once_s = (jobs.start_cost_s + jobs.checkpoint_cost_s)[rows][:, None]
    gang_s = doubling_s * np.log2(np.maximum(contest.sizes, 1))
    start_s = np.where(once_s > 0.0, once_s + gang_s, 0.0)
    start_s[:, 0] = 0.0
    pause_s = start_s.copy()
    left_s = jobs.changed_s[rows[runs]] + start_s[runs, present] - seen.now_s
    pause_s[runs, present] = np.maximum(left_s, 0.0)
    fits = pays & (contest.sizes <= contest.gpus)
    takes_s = np.full(own.shape, math.inf)
    np.divide(contest.work[:, None], contest.rate, out=takes_s, where=fits)
    takes_s += pause_s
    due_s = jobs.deadline_s[rows]
    meets = np.isfinite(due_s)[:, None] & (seen.now_s + takes_s <= due_s[:, None] + HAIR_S / 10)
    least = np.where(meets.any(axis=1), meets.argmax(axis=1), 0)
    some = np.flatnonzero(least)
    area = np.full(len(rows), math.inf)
    area[some] = contest.sizes[least[some]] * takes_s[some, least[some]]
    return Laxity(
        seen.now_s,
        contest.gpus,
        contest.sizes,
        contest.rate,
        contest.work,
        due_s,
        pays,
        contest.present,
        start_s,
        pause_s,
        takes_s,
        least,
        area,
    )


def latest_return_s(lax: Laxity, level: Ints) -> Floats:
    """Return (r, k) until when jobs may be at lower levels and be in time back at `level`.

    -inf where that is never so, or the level is not lower. From

        work = rate(low) (s - now - pause(low)) + rate(level) (due - s - start(level)).
    """
    at = np.arange(len(level))
    fast, back_s = lax.rate[at, level][:, None], lax.start_s[at, level][:, None]
    awake_s = lax.now_s + np.where(np.arange(len(lax.sizes)) > 0, lax.pause_s, 0.0)
    timed = np.isfinite(lax.due_s)
    due_s, work = np.where(timed, lax.due_s, lax.now_s)[:, None], lax.work[:, None]
    low = (lax.pays & (lax.sizes <= lax.gpus)) | (lax.sizes == 0)
    low &= (np.arange(len(lax.sizes)) < level[:, None]) & (lax.rate < fast) & timed[:, None]
    latest = np.full(low.shape, -math.inf)
    gained = fast * (due_s - back_s) - work - lax.rate * awake_s
    np.divide(gained, fast - lax.rate, out=latest, where=low)
    # Back before it is awake at the lower level: it then did nothing there.
    idle = np.full(low.shape, -math.inf)
    np.divide(work, np.broadcast_to(fast, low.shape), out=idle, where=low)
    idle = np.where(low, np.minimum(due_s - back_s - idle, awake_s), -math.inf)
    return np.where(latest >= awake_s, latest, idle)
