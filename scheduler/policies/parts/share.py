"""ElasticFlow's minimum satisfactory share: the fewest GPUs with which each job makes its deadline.

Progressive filling (policies.md 11.1): by earliest deadline, each job takes the smallest size that,
kept as far as the GPUs left over by earlier jobs allow, finishes it in time. What is left over
changes only when a job ends, so it is kept as a step function: no slots, nothing rounded.
"""

from collections.abc import Mapping
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

    def less(self, end_s: Floats, gpus: Ints) -> "Profile":
        """Return the profile without the GPUs of jobs that run from its start, each to its end."""
        starts_s = np.sort(np.concatenate((self.starts_s, end_s)))
        starts_s = starts_s[np.append(True, starts_s[1:] != starts_s[:-1])]
        free = self.free[self.starts_s.searchsorted(starts_s, side="right") - 1]
        taken = np.bincount(starts_s.searchsorted(end_s), gpus, len(starts_s))
        return Profile(starts_s, free - (taken.sum() - np.cumsum(taken)).astype(np.int64))


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
class Shares:
    """The outcome for n jobs."""

    gpus_now: Ints  #: (n,)
    end_s: Floats  #: (n,) with no more than its share; inf if it cannot run.
    satisfied: Bools  #: (n,) ends by its deadline.
    profile: Profile  #: what is left.
    filled: Mapping[int, Filling]  #: of jobs that run at more than one size, or not at all.

    @property
    def idle_now(self) -> int:
        """GPUs that nobody takes in the first step."""
        return int(self.profile.free[0])

    def filling(self, job: int) -> Filling:
        """Return what a job took."""
        if job in self.filled:
            return self.filled[job]
        return Filling(
            float(self.end_s[job]), self.profile.starts_s[:1], self.gpus_now[job : job + 1]
        )


#: Work is done when this part of it is: the rest is rounding.
_NEARLY = 1 - 1e-12
#: Seconds that rounding may make a job late.
_LATE_S = 1e-6
_NEVER = Filling(float("inf"), np.zeros(0), np.zeros(0, dtype=np.int64))


def fill(profile: Profile, work: float, sizes: Ints, rate: Floats, deadline_s: float) -> Filling:
    """Find the smallest share that does `work` by the deadline; the fastest if none does.

    Args:
        profile: Free GPUs; not changed.
        work: Steps to do.
        sizes: (q,) the job's allowed sizes, ascending.
        rate: (q,) steps per second at each; never falling.
        deadline_s: When it must have ended.
    """
    if not len(sizes):
        return _NEVER
    offered = sizes.searchsorted(profile.free, side="right")  # (t,) sizes that are free, counted
    share, steps = 0, len(offered)
    if np.isfinite(deadline_s):
        share, steps = _least(profile.starts_s, offered, work, rate, deadline_s)
    if not share:
        share, steps = len(sizes), len(offered)
    return _run(profile.starts_s[:steps], np.minimum(offered[:steps], share), work, sizes, rate)


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
    need = work * _NEARLY
    # Were all GPUs free it would need at least this; a little less, for rounding.
    alone = int(rate.searchsorted(need * (1 - 1e-9) / max(float(length.sum()), 1e-12)))
    paces = np.concatenate(([0.0], rate))
    done = 0.0
    for share in range(alone + 1, len(paces)):
        done = float(paces[np.minimum(offered[:due], share)] @ length)
        if done >= need:
            return share, due
    return (len(rate), due) if alone < len(rate) and done >= need - rate[-1] * _LATE_S else (0, due)


def _run(starts_s: Floats, level: Ints, work: float, sizes: Ints, rate: Floats) -> Filling:
    """Do the work at so many of the job's sizes, counted, in each step; the last has no end."""
    pace = np.concatenate(([0.0], rate))[level]
    done = np.cumsum(pace[:-1] * (starts_s[1:] - starts_s[:-1]))
    step = int(done.searchsorted(work * _NEARLY))
    if pace[step] <= 0:  # only the last step is never long enough: nothing is free for ever
        return _NEVER
    before = float(done[step - 1]) if step else 0.0
    end_s = float(starts_s[step] + (work - before) / pace[step])
    used = np.concatenate(([0], sizes))[level[: step + 1]]
    return Filling(end_s, starts_s[: step + 1], used)


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

    As long as the shares of the jobs so far fit beside each other, none is in another's way, and
    they are found all at once; only jobs beyond that are filled in one by one.

    Args:
        now_s: The present.
        gpus: That these jobs may have.
        work: (n,) steps left.
        deadline_s: (n,) finite.
        sizes: (k,) sizes, ascending.
        rate: (n, k) steps per second, never falling with size; 0 where a size is not allowed.
    """
    n, k = rate.shape
    may: Bools = rate > 0
    rows = np.arange(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        run_s = np.where(may, work[:, None] / rate, np.inf)  # with all GPUs free
    done = rate * np.maximum(deadline_s - now_s, 0.0)[:, None]
    meets: Bools = may & (done >= (work * _NEARLY)[:, None])
    top = k - 1 - may[:, ::-1].argmax(axis=1)
    meets[rows, top] |= now_s + run_s[rows, top] <= deadline_s + _LATE_S
    able = np.any(meets, axis=1)  # others miss whatever is free
    made = _Fillings(now_s, gpus, work, sizes, rate, run_s)
    order = np.argsort(deadline_s, kind="stable")
    made.fill_all(order[able[order]], meets.argmax(axis=1), deadline_s)
    satisfied = np.isfinite(made.end_s)
    late = order[~satisfied[order] & np.any(may, axis=1)[order]]
    made.fill_all(late, top, np.full(n, np.inf))
    for job in np.flatnonzero(~np.isfinite(made.end_s)).tolist():
        made.filled[job] = _NEVER
    return Shares(made.gpus_now, made.end_s, satisfied, made.profile, made.filled)


class _Fillings:
    """What n jobs take, one after the other."""

    def __init__(
        self, now_s: float, gpus: int, work: Floats, sizes: Ints, rate: Floats, run_s: Floats
    ) -> None:
        self.gpus_now = np.zeros(len(work), dtype=np.int64)
        self.end_s = np.full(len(work), np.inf)
        self.filled: dict[int, Filling] = {}
        self._now_s, self._work, self._sizes, self._rate = now_s, work, sizes, rate
        self._run_s = run_s
        #: From the first step on in which anything is free, and the moments before.
        self._rest = Profile(np.array([now_s]), np.array([gpus], dtype=np.int64))
        self._full_s: list[Floats] = []
        self._gpus = gpus
        #: Which sizes are allowed -> those, and for so many free GPUs how many of them fit.
        self._fits: dict[bytes, tuple[Bools, Ints, Ints]] = {}

    @property
    def profile(self) -> Profile:
        """What is left."""
        full_s = np.concatenate([*self._full_s, self._rest.starts_s])
        free = np.zeros(len(full_s), dtype=np.int64)
        free[len(full_s) - len(self._rest.free) :] = self._rest.free
        return Profile(full_s, free)

    def fill_all(self, order: Ints, level: Ints, deadline_s: Floats) -> None:
        """Fill jobs in order; those that would be late take nothing.

        Args:
            order: Jobs.
            level: (n,) that each takes where enough is free.
            deadline_s: (n,) inf: it is late at no time.
        """
        if not len(order):
            return
        size = self._sizes[level[order]]
        least = 0 if self._full_s else int(self._rest.free.min())
        beside = int(np.cumsum(size).searchsorted(least, side="right"))
        free_for_all = order[:beside]
        if beside:
            self.gpus_now[free_for_all] = size[:beside]
            end_s = self._now_s + self._run_s[free_for_all, level[free_for_all]]
            self.end_s[free_for_all] = end_s
            self._rest = self._rest.less(end_s, size[:beside])
        for job in order[beside:].tolist():
            self._fill(job, float(deadline_s[job]))

    def _fill(self, job: int, deadline_s: float) -> None:
        rest, work = self._rest, float(self._work[job])
        allowed, sizes, fits = self._allowed(job)
        rate = self._rate[job, allowed]
        offered = fits[rest.free]
        share, steps = len(sizes), len(offered)
        if np.isfinite(deadline_s):
            share, steps = _least(rest.starts_s, offered, work, rate, deadline_s)
        if not share:
            return
        level = np.minimum(offered[:steps], share)
        filling = _run(rest.starts_s[:steps], level, work, sizes, rate)
        if filling.end_s > deadline_s + _LATE_S or not np.isfinite(filling.end_s):
            return
        book(rest, filling)
        self.end_s[job] = filling.end_s
        if not self._full_s:
            self.gpus_now[job] = filling.now
        else:  # nothing is free now
            starts_s = np.concatenate(([self._now_s], filling.starts_s))
            filling = Filling(filling.end_s, starts_s, np.concatenate(([0], filling.used)))
        self.filled[job] = filling
        if not rest.free[0]:
            full = int((rest.free > 0).argmax())  # the last step is never full: all jobs end
            self._full_s.append(rest.starts_s[:full])
            self._rest = Profile(rest.starts_s[full:], rest.free[full:])

    def _allowed(self, job: int) -> tuple[Bools, Ints, Ints]:
        """Return the sizes allowed for a job."""
        allowed = self._rate[job] > 0
        key = allowed.tobytes()
        if key not in self._fits:
            sizes = self._sizes[allowed]
            counted = np.arange(self._gpus + 1)
            self._fits[key] = (allowed, sizes, sizes.searchsorted(counted, side="right"))
        return self._fits[key]


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
