"""What was promised, as a schedule of GPUs over time that can be checked: nothing is hoped for.

A promised job keeps its level to the end, or *lends*: it is at a lower level until a moment, and at
its own from there on. As long as the schedule of all promised jobs never exceeds the pool, doing
nothing but follow it keeps every promise; any other plan must show the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import PROMISED as PROMISED, Bools, Floats, Ints
from scheduler.policies.parts.share import Profile
from scheduler.policies.tide.slack import HAIR_S, Slack

#: Loans that one plan gives or calls back, at most: each is checked against the whole schedule.
LOANS = 16
#: A promised job that is late by no more goes on as promised.
GRACE_S = 60.0
#: (from, until, GPUs)
Piece = tuple[float, float, int]


@dataclass(slots=True, eq=False)
class Schedule:
    """Levels over time of r jobs; those `kept` are planned to be in time, as all promised are."""

    kept: Bools  #: (r,)
    level: Ints  #: (r,) from now on.
    until_s: Floats  #: (r,) when a lender is back; inf for the others.
    back: Ints  #: (r,) at which level.

    def copy(self) -> "Schedule":
        """Return one to try something on."""
        return Schedule(self.kept.copy(), self.level.copy(), self.until_s.copy(), self.back.copy())

    def stay(self, who: Ints | int, level: Ints | int) -> None:
        """Give jobs a level to their end."""
        self.level[who] = self.back[who] = level
        self.until_s[who] = math.inf

    @property
    def lending(self) -> bool:
        """Whether anybody lends."""
        return bool(np.count_nonzero(np.isfinite(self.until_s)))


def free_over_time(slack: Slack, schedule: Schedule, more: Sequence[Piece] = ()) -> Profile:
    """Return what the promised leave of the pool; below 0 where they exceed it.

    Args:
        slack: The jobs.
        schedule: What they do.
        more: Other uses to be counted.
    """
    uses = schedule.kept & ((schedule.level > 0) | np.isfinite(schedule.until_s))
    who = uses.nonzero()[0]
    level, back, until_s = schedule.level[who], schedule.back[who], schedule.until_s[who]
    lends = np.isfinite(until_s)
    ends_s = np.where(lends, until_s, slack.ends_s(who, level))
    some = who[lends]
    awake_s = until_s[lends] - slack.now_s - slack.pause_s[some, level[lends]]
    done = slack.rate[some, level[lends]] * np.maximum(awake_s, 0.0)
    rest_s = np.maximum(slack.work[some] - done, 0.0) / slack.rate[some, back[lends]]
    later_s = until_s[lends] + slack.start_s[some, back[lends]] + rest_s
    extra = np.array(more, dtype=np.float64).reshape(-1, 3)
    now, later = slack.sizes[level], np.concatenate((slack.sizes[back[lends]], extra[:, 2]))
    # Who ends makes room for who comes back: a hair apart, or rounding would show a conflict.
    from_s = (until_s[lends] + HAIR_S, extra[:, 0])
    at_s = np.concatenate((*from_s, ends_s, later_s + HAIR_S, extra[:, 1]))
    order = at_s.argsort()  # of equal ones only the sum counts
    change = np.concatenate((-later, now, later))[order]
    starts_s = np.concatenate(([slack.now_s], np.maximum(at_s[order], slack.now_s)))
    free = np.concatenate(([slack.gpus - np.add.reduce(now)], change)).cumsum()
    last = np.append(starts_s[1:] > starts_s[:-1], True) & np.isfinite(starts_s)
    return Profile(starts_s[last], np.rint(free[last]).astype(np.int64))


def resume(slack: Slack, notes: Floats) -> Schedule:
    """Find a schedule that keeps what was promised: with the least GPUs, if that can be.

    In order: everybody at the least constant level; lenders as they were written down, the others
    at the least; lenders so, the others as they are. The last is what was promised, so it
    holds unless GPUs or speed were lost. Lenders are then called back as far as there is room.

    Args:
        slack: The jobs.
        notes: (r, `NOTE`) written by `written`.
    """
    r = len(slack.work)
    nothing = np.zeros(r, dtype=np.int64)
    was = notes[:, 0] == PROMISED
    schedule = Schedule(was, nothing, np.full(r, math.inf), nothing.copy())
    if not np.count_nonzero(was):
        return schedule
    noted = own = (was & np.isfinite(notes[:, 2])).nonzero()[0]
    if len(noted):
        own = np.minimum(slack.sizes.searchsorted(notes[noted, 1]), len(slack.sizes) - 1)
        able = (slack.sizes[own] == notes[noted, 1]) & (slack.rate[noted, own] > 0)
        noted, own = noted[able], own[able]
    lends = notes[noted, 2] > slack.now_s
    # A promise that cannot be kept any more, because GPUs or speed were lost or the job was not
    # what it said, keeps nothing from others. One that is late by what a start may take is kept.
    schedule.kept = kept = was & (slack.least > 0)
    late = (was & ~kept & (slack.present > 0)).nonzero()[0]
    if len(late):
        ends_s = slack.ends_s(late, slack.present[late])
        kept[late] = ends_s <= slack.due_s[late] + GRACE_S
    kept[noted[lends]] = True
    least, who = np.where(slack.least > 0, slack.least, slack.present), kept.nonzero()[0]
    schedule.stay(who, least[who])
    used = int(np.add.reduce(slack.sizes[schedule.level]))
    if used <= slack.gpus and np.count_nonzero(least[noted[lends]]) == len(noted[lends]):
        return schedule
    for others in (least, slack.present):
        schedule.stay(who, others[who])
        schedule.stay(noted, own)
        schedule.level[noted[lends]] = slack.present[noted[lends]]
        schedule.until_s[noted[lends]] = notes[noted[lends], 2]
        if free_over_time(slack, schedule).free.min() >= 0:
            break
    soonest = noted[lends][np.argsort(notes[noted[lends], 2], kind="stable")]
    for job in soonest[:LOANS].tolist():
        tried = schedule.copy()
        tried.stay(job, least[job])
        if free_over_time(slack, tried).free.min() >= 0:
            schedule = tried
    _trim(slack, schedule)
    return schedule


def _trim(slack: Slack, schedule: Schedule) -> None:
    """Where GPUs were lost, keep as many jobs as can be; the largest rests lose."""
    if int(slack.sizes[schedule.level].sum()) <= slack.gpus:
        return
    rest = np.where(schedule.kept, slack.area_gpu_s, math.inf)
    order = np.lexsort((np.arange(len(rest)), rest))
    over = np.cumsum(slack.sizes[schedule.level[order]]) > slack.gpus
    schedule.stay(order[over], 0)


def borrow(
    slack: Slack,
    schedule: Schedule,
    latest_s: Floats,
    profile: Profile,
    job: int,
    level: int,
    late_s: float,
) -> Schedule | None:
    """Start a job in room that others lend until it ends; None: too few can.

    Those lend that can be back in time `late_s` after its end: first whom it suffices to shrink,
    the smallest such, else who frees most.

    Args:
        slack: The jobs.
        schedule: What they do; not changed.
        latest_s: (r, k) of `latest_return_s` from the present schedule.
        profile: What those leave.
        job: Who borrows.
        level: What it needs, to its end.
        late_s: By how much a return may be late.
    """
    ends_s = slack.now_s + float(slack.takes_s[job, level])
    steps = int(profile.starts_s.searchsorted(ends_s))
    need = int(slack.sizes[level]) - int(profile.free[:steps].min())
    can = latest_s >= ends_s + late_s
    who = np.flatnonzero(can.any(axis=1) & schedule.kept & ~np.isfinite(schedule.until_s))
    lowest = can[who].argmax(axis=1)
    frees = slack.sizes[schedule.level[who]] - slack.sizes[lowest]
    if int(frees.sum()) < need:
        return None
    after = schedule.copy()
    while need > 0:
        enough = np.flatnonzero(frees >= need)
        at = int(enough[frees[enough].argmin()]) if len(enough) else int(frees.argmax())
        lender = int(who[at])
        own = int(after.level[lender])
        to = np.flatnonzero(can[lender] & (slack.sizes <= slack.sizes[own] - need))
        after.level[lender] = int(to[-1]) if len(to) else int(lowest[at])
        after.until_s[lender] = ends_s
        need -= int(slack.sizes[own] - slack.sizes[after.level[lender]])
        frees[at] = 0
    after.stay(job, level)
    after.kept[job] = True
    return after


def written(slack: Slack, schedule: Schedule, job: int) -> tuple[float, ...]:
    """Return the note of a promised job."""
    if not math.isfinite(schedule.until_s[job]):
        return (PROMISED,)
    return (PROMISED, float(slack.sizes[schedule.back[job]]), float(schedule.until_s[job]))


def renewed(slack: Slack, schedule: Schedule, promised: Bools, notes: Floats) -> Ints:
    """Return promised jobs whose notes, (r, `NOTE`), do not say what `written` does."""
    who = promised.nonzero()[0]
    lends, noted = np.isfinite(schedule.until_s[who]), notes[who, :3]
    says = np.empty((len(who), 3))
    says[:] = PROMISED, math.nan, math.nan
    if np.count_nonzero(lends):
        says[lends, 1] = slack.sizes[schedule.back[who[lends]]]
        says[lends, 2] = schedule.until_s[who[lends]]
    same = (says == noted) | (np.isnan(says) & np.isnan(noted))
    found: Ints = who[~np.logical_and.reduce(same, axis=1)]
    return found
