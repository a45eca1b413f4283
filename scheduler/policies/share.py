"""ElasticFlow's minimum satisfactory share: the fewest GPUs with which each job makes its deadline.

Progressive filling (policies.md 11.1): by earliest deadline, each job takes the smallest size that,
kept as far as the GPUs left over by earlier jobs allow, finishes it in time. What is left over
changes only when a job ends, so it is kept as a step function: no slots, nothing rounded.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints


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

    level: int  #: of the share, as an index into the job's allowed sizes; -1: it cannot run.
    end_s: float  #: inf if it never ends.
    starts_s: Floats  #: (t,) steps of the profile it was made for, as far as it runs.
    used: Ints  #: (t,) GPUs it takes in each.

    @property
    def now(self) -> int:
        """GPUs it takes in the first step."""
        return int(self.used[0]) if len(self.used) else 0


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The outcome for n jobs."""

    gpus_now: Ints  #: (n,)
    end_s: Floats  #: (n,) with no more than its share; inf if it cannot run.
    satisfied: Bools  #: (n,) ends by its deadline.
    idle_now: int  #: GPUs that nobody takes in the first step.
    profile: Profile  #: what is left.
    fillings: tuple[Filling, ...]  #: (n,) what each took.


#: Work is done when this part of it is: the rest is rounding.
_NEARLY = 1 - 1e-12
_NEVER = Filling(-1, float("inf"), np.zeros(0), np.zeros(0, dtype=np.int64))


def fill(profile: Profile, work: float, sizes: Ints, rate: Floats, deadline_s: float) -> Filling:
    """Find the smallest share that does `work` by the deadline; the fastest if none does.

    Args:
        profile: Free GPUs; not changed.
        work: Steps to do.
        sizes: (q,) the job's allowed sizes, ascending.
        rate: (q,) steps per second at each.
        deadline_s: When it must have ended.
    """
    if not len(sizes):
        return _NEVER
    starts_s = profile.starts_s
    offered = sizes.searchsorted(profile.free, side="right")  # (t,) levels that are free
    paces = np.concatenate(([0.0], rate))
    length = np.full(len(starts_s), np.inf)
    np.subtract(starts_s[1:], starts_s[:-1], out=length[:-1])
    share = len(sizes)
    if np.isfinite(deadline_s):
        due = max(1, int(starts_s.searchsorted(deadline_s)))
        in_time = length[:due].copy()
        in_time[-1] = max(deadline_s - float(starts_s[due - 1]), 0.0)
        levels = np.arange(1, len(sizes) + 1)
        meets = paces[np.minimum(offered[:due], levels[:, None])] @ in_time >= work * _NEARLY
        share = int(levels[meets.argmax()]) if meets.any() else share
    level = np.minimum(offered, share)
    pace = paces[level]
    done = np.cumsum(pace[:-1] * length[:-1])
    step = int(done.searchsorted(work * _NEARLY))
    if pace[step] <= 0:  # only the last step is never long enough: nothing is free for ever
        return _NEVER
    before = float(done[step - 1]) if step else 0.0
    end_s = float(starts_s[step] + (work - before) / pace[step])
    used = np.concatenate(([0], sizes))[level[: step + 1]]
    return Filling(share - 1, end_s, starts_s[: step + 1], used)


def book(profile: Profile, filling: Filling) -> None:
    """Take a filling out of the profile it was made for."""
    if not np.isfinite(filling.end_s) or not len(filling.used):
        return
    last = len(filling.used) - 1
    if filling.end_s > profile.starts_s[last]:
        profile.split(filling.end_s)
    profile.free[: last + 1] -= filling.used


def satisfy(
    now_s: float, gpus: int, work: Floats, deadline_s: Floats, sizes: Ints, rate: Floats
) -> Shares:
    """Fill all jobs, by deadline, then those that cannot make theirs with what is left.

    The test is sufficient, not necessary: it shows a plan. Jobs that miss are never rejected, and
    never take from those that do not.

    Args:
        now_s: The present.
        gpus: That these jobs may have.
        work: (n,) steps left.
        deadline_s: (n,) finite.
        sizes: (k,) sizes, ascending.
        rate: (n, k) steps per second; 0 where a size is not allowed.
    """
    n = len(work)
    profile = Profile(np.array([now_s]), np.array([gpus], dtype=np.int64))
    gpus_now = np.zeros(n, dtype=np.int64)
    end_s = np.full(n, np.inf)
    fillings = [_NEVER] * n
    missed: list[int] = []
    order: list[int] = np.argsort(deadline_s, kind="stable").tolist()
    for job in order:
        may = rate[job] > 0
        filling = fill(profile, work[job], sizes[may], rate[job, may], deadline_s[job])
        if filling.end_s > deadline_s[job] + 1e-6:
            missed.append(job)
            continue
        book(profile, filling)
        gpus_now[job], end_s[job], fillings[job] = filling.now, filling.end_s, filling
    satisfied = np.isfinite(end_s)
    for job in missed:
        may = rate[job] > 0
        filling = fill(profile, work[job], sizes[may], rate[job, may], np.inf)
        book(profile, filling)
        gpus_now[job], end_s[job], fillings[job] = filling.now, filling.end_s, filling
    return Shares(gpus_now, end_s, satisfied, int(profile.free[0]), profile, tuple(fillings))


def end_with_more(
    profile: Profile,
    own: Filling,
    work: float,
    sizes: Ints,
    rate: Floats,
    until_s: float,
) -> float:
    """Return when a job ends if it gets its next larger size until `until_s` (EdgeFlow, eq. 7).

    The rest is planned again in what is free then, and in what the job itself would have held.

    Args:
        profile: What all jobs together leave.
        own: What this job takes of it, as booked there.
        work: Steps left.
        sizes: (q,) allowed sizes, ascending.
        rate: (q,) steps per second at each.
        until_s: The next event.
    """
    starts_s = profile.starts_s
    free = profile.free.copy()
    if np.isfinite(own.end_s):
        steps = int(np.searchsorted(starts_s, own.end_s))
        free[:steps] += own.used[np.searchsorted(own.starts_s, starts_s[:steps], side="right") - 1]
    level = min(int(np.searchsorted(sizes, own.now, side="right")), len(sizes) - 1)
    now_s = float(starts_s[0])
    done = rate[level] * (until_s - now_s)
    if done >= work:
        return float(now_s + work / rate[level])
    rest = Profile(starts_s.copy(), free)
    at = rest.split(until_s)
    rest = Profile(rest.starts_s[at:], rest.free[at:])
    return fill(rest, work - done, sizes, rate, np.inf).end_s
