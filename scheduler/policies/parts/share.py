"""ElasticFlow's minimum satisfactory share: the fewest GPUs with which each job makes its deadline.

Progressive filling: by earliest deadline, each job takes the smallest size that,
kept as far as the GPUs left over by earlier jobs allow, finishes it in time. What is left over
changes only when a job ends, so it is kept as a step function: no slots, nothing rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.policies.interface import Floats, Ints
from scheduler.policies.parts.portable import weighed


@dataclass(slots=True, eq=False)
class Profile:
    """Free GPUs over time: `free[j]` from `starts_s[j]` until the next start; the last for ever."""

    starts_s: Floats
    free: Ints

    def split(self, at_s: float) -> int:
        """Start a step at a moment within the profile; return its index."""
        index = int(np.searchsorted(self.starts_s, at_s))
        if index < len(self.starts_s) and self.starts_s[index] == at_s:
            return index
        # `np.insert` does the same, ten times slower at these lengths.
        starts_s, free = self.starts_s, self.free
        self.starts_s = np.concatenate((starts_s[:index], [at_s], starts_s[index:]))
        self.free = np.concatenate((free[:index], free[index - 1 :]))
        return index


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """How one job would run in what is free."""

    end_s: float  #: inf if it never ends.
    starts_s: Floats  #: (t,) steps of the profile it was made for, as far as it runs.
    used: Ints  #: (t,) GPUs it takes in each.

    @property
    def now(self) -> int:
        """GPUs it takes in the first step."""
        return int(self.used[0]) if len(self.used) else 0


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """How fast one job is, at sizes that are each faster than all smaller ones. q sizes."""

    sizes: Ints  #: (q,)
    rate: Floats  #: (q,) steps per second.


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What a job has left to do. Best effort: no deadline."""

    work: float  #: steps
    deadline_s: float  #: inf where there is none.
    curve: Curve


def curve(sizes: Ints, rate: Floats) -> Curve:
    """Return the sizes worth having of (k,) sizes and rates, 0 where one is not allowed.

    Measured speeds often fall with size; the largest size kept is ElasticFlow's
    `max_gpu`.
    """
    before = np.concatenate(([0.0], np.maximum.accumulate(rate)[:-1]))
    pays = rate > before
    return Curve(sizes[pays], rate[pays])


#: Work is done when this part of it is: the rest is rounding.
NEARLY = 1 - 1e-12
#: Seconds that rounding may make a job late.
_LATE_S = 1e-6
NEVER = Filling(float("inf"), np.zeros(0), np.zeros(0, dtype=np.int64))


def fill(profile: Profile, demand: Demand) -> Filling:
    """Find the smallest share that ends a job by its deadline; the fastest if none does.

    Args:
        profile: Free GPUs; not changed.
        demand: What is to be done.
    """
    sizes, rate, work = demand.curve.sizes, demand.curve.rate, demand.work
    if not len(sizes):
        return NEVER
    offered = sizes.searchsorted(profile.free, side="right")  # (t,) sizes that are free, counted
    share, steps = 0, len(offered)
    if np.isfinite(demand.deadline_s):
        share, steps = _least(profile.starts_s, offered, work, rate, demand.deadline_s)
    if not share:
        share, steps = len(sizes), len(offered)
    level = np.minimum(offered[:steps], share)
    return run(profile.starts_s[:steps], level, work, demand.curve)


def _least(
    starts_s: Floats, offered: Ints, work: float, rate: Floats, deadline_s: float
) -> tuple[int, int]:
    """Return how many sizes there are up to the smallest that is enough; 0 if none is.

    And for how many steps it can run at most.
    """
    due = max(1, int(starts_s.searchsorted(deadline_s)))
    length = np.empty(due)
    np.subtract(starts_s[1:due], starts_s[: due - 1], out=length[:-1])
    length[-1] = max(deadline_s - float(starts_s[due - 1]), 0.0)
    need = work * NEARLY
    # Were all GPUs free it would need at least this; a little less, for rounding.
    alone = int(rate.searchsorted(need * (1 - 1e-9) / max(float(length.sum()), 1e-12)))
    paces = np.concatenate(([0.0], rate))
    done = 0.0
    for share in range(alone + 1, len(paces)):
        done = float(weighed(paces[np.minimum(offered[:due], share)], length))
        if done >= need:
            return share, due
    return (len(rate), due) if alone < len(rate) and done >= need - rate[-1] * _LATE_S else (0, due)


def run(starts_s: Floats, level: Ints, work: float, curve: Curve) -> Filling:
    """Do the work at so many of the job's sizes, counted, in each step; the last has no end."""
    pace = np.concatenate(([0.0], curve.rate))[level]
    done = np.cumsum(pace[:-1] * (starts_s[1:] - starts_s[:-1]))
    step = int(done.searchsorted(work * NEARLY))
    if pace[step] <= 0:  # only the last step is never long enough: nothing is free for ever
        return NEVER
    before = float(done[step - 1]) if step else 0.0
    end_s = float(starts_s[step] + (work - before) / pace[step])
    used = np.concatenate(([0], curve.sizes))[level[: step + 1]]
    return Filling(end_s, starts_s[: step + 1], used)


def book(profile: Profile, filling: Filling) -> None:
    """Take a filling out of the profile it was made for."""
    if not np.isfinite(filling.end_s) or not len(filling.used):
        return
    last = len(filling.used) - 1
    if filling.end_s > profile.starts_s[last]:
        profile.split(filling.end_s)
    profile.free[: last + 1] -= filling.used


def satisfy(profile: Profile, demands: Sequence[Demand]) -> list[Filling]:
    """Fill all jobs, by deadline, then those that cannot make theirs with what is left.

    The test is sufficient, not necessary: it shows a plan. Jobs that miss are never rejected, and
    never take from those that do not.

    Args:
        profile: What there is; becomes what is left.
        demands: (n,) with deadlines.
    """
    found = [NEVER] * len(demands)
    order = sorted(range(len(demands)), key=lambda job: demands[job].deadline_s)
    late = []
    for job in order:
        own = fill(profile, demands[job])
        if own.end_s <= demands[job].deadline_s + _LATE_S:
            found[job] = own
            book(profile, own)
        else:
            late.append(job)
    for job in late:
        found[job] = fill(profile, replace(demands[job], deadline_s=np.inf))
        book(profile, found[job])
    return found


def end_with_more(profile: Profile, own: Filling, demand: Demand, until_s: float) -> float:
    """Return when a job ends if it gets its next larger size until `until_s` (EdgeFlow, eq. 7).

    The rest is planned again in what is free then, and in what the job itself would have held.

    Args:
        profile: What all jobs together leave.
        own: What this job takes of it, as booked there.
        demand: What it has left to do.
        until_s: The next event.
    """
    starts_s, sizes, rate = profile.starts_s, demand.curve.sizes, demand.curve.rate
    free = profile.free.copy()
    if np.isfinite(own.end_s):
        steps = int(np.searchsorted(starts_s, own.end_s))
        free[:steps] += own.used[np.searchsorted(own.starts_s, starts_s[:steps], side="right") - 1]
    level = min(int(np.searchsorted(sizes, own.now, side="right")), len(sizes) - 1)
    now_s = float(starts_s[0])
    done = rate[level] * (until_s - now_s)
    if done >= demand.work:
        return float(now_s + demand.work / rate[level])
    rest = Profile(starts_s.copy(), free)
    at = rest.split(until_s)
    rest = Profile(rest.starts_s[at:], rest.free[at:])
    return fill(rest, Demand(demand.work - done, np.inf, demand.curve)).end_s
