"""ElasticFlow's plan: the least GPU-time that keeps each deadline, filled backwards from it.

Progressive filling finds the smallest size with which a job makes its deadline (`share.fill`).
ElasticFlow then lets it run at the next smaller size (or not at all) for as long as it can, and at
that size only from there to the deadline (policies.md 11.1, read from the released code). Time is
continuous here, but the moment of the change lies on a grid of slots from the present, rounded
down, so that a deadline is met with up to a slot to spare.
"""

import math
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Floats, Ints
from scheduler.policies.parts.share import Filling, Profile

#: Work is done when this part of it is: the rest is rounding.
_NEARLY = 1 - 1e-12
#: Seconds that rounding may cost.
_HAIR_S, _LATE_S = 1e-6, 1e-5
_NOTHING = Filling(math.inf, np.zeros(0), np.zeros(0, dtype=np.int64))


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


@dataclass(frozen=True, slots=True, eq=False)
class Least:
    """The least that a job can do with."""

    filling: Filling
    #: GPU-seconds that a step of work saves which is done before it is due: the job then grows
    #: later. What a surplus is worth is measured by it.
    price: float


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """What n jobs are planned to take, and what that leaves."""

    profile: Profile
    least: tuple[Least | None, ...]  #: (n,) None: late, or without a deadline; nothing is booked.

    @property
    def gpus_now(self) -> Ints:
        """(n,) GPUs that each takes at once."""
        return np.array([0 if own is None else own.filling.now for own in self.least], np.int64)


def curve(sizes: Ints, rate: Floats) -> Curve:
    """Return the sizes worth having of (k,) sizes and rates, 0 where one is not allowed.

    Measured speeds often fall with size (policies.md 0.1); the largest size kept is ElasticFlow's
    `max_gpu`.
    """
    before = np.concatenate(([0.0], np.maximum.accumulate(rate)[:-1]))
    pays = rate > before
    return Curve(sizes[pays], rate[pays])


def least(profile: Profile, demand: Demand, slot_s: float) -> Least | None:
    """Find the filling with the least GPU-time that ends a job by its deadline; None: none does.

    Args:
        profile: Free GPUs. A step may be split, and nothing is taken.
        demand: What is to be done.
        slot_s: Grid, from the profile's start, of the moment at which the job grows; 0: none.
    """
    starts_s, work = profile.starts_s, demand.work * _NEARLY
    now_s = float(starts_s[0])
    sizes, deadline_s = demand.curve.sizes, demand.deadline_s
    if not len(sizes) or deadline_s <= now_s:
        return None
    due = max(1, int(starts_s.searchsorted(deadline_s)))
    bounds = np.concatenate((starts_s[:due], [deadline_s]))
    offered = sizes.searchsorted(profile.free[:due], side="right")
    paces = np.concatenate(([0.0], demand.curve.rate))
    pace = paces[np.minimum(offered, np.arange(len(paces))[:, None])]  # (q + 1, due)
    done = pace * (bounds[1:] - bounds[:-1])
    meets = done.sum(axis=1) >= work
    if not meets.any():
        return None
    share = max(int(meets.argmax()), 1)
    # Work done if the job grows at each bound: one size below before it, at its share after it.
    total = np.zeros(due + 1)
    total[1:] = done[share - 1].cumsum()
    total[:-1] += done[share][::-1].cumsum()[::-1]
    at = min(max(int(np.count_nonzero(total >= work)) - 1, 0), due - 1)  # it falls with the bound
    grows_s = float(bounds[at])
    spare, slope = float(total[at]) - work, float(pace[share, at] - pace[share - 1, at])
    if spare > 0.0 and slope > 0.0:  # less a hair: rounding must not end it too late
        grows_s = min(grows_s + spare / slope, float(bounds[at + 1])) - _HAIR_S
    if slot_s > 0.0:
        grows_s = now_s + math.floor((grows_s - now_s + 2.0 * _HAIR_S) / slot_s) * slot_s
    grows_s = min(max(grows_s, now_s), deadline_s)
    filling = _follow(profile, demand, share, grows_s)
    if filling.end_s > deadline_s + _LATE_S:
        return None
    smaller = int(sizes[share - 2]) if share > 1 else 0
    return Least(
        filling, (int(sizes[share - 1]) - smaller) / float(paces[share] - paces[share - 1])
    )


def _follow(profile: Profile, demand: Demand, share: int, grows_s: float) -> Filling:
    """Take one size less than a share until a moment, and the share from there until the end."""
    grows_at = profile.split(grows_s)
    level = np.minimum(demand.curve.sizes.searchsorted(profile.free, side="right"), share)
    level[:grows_at] = np.minimum(level[:grows_at], share - 1)
    pace = np.concatenate(([0.0], demand.curve.rate))[level]
    done = np.cumsum(pace[:-1] * (profile.starts_s[1:] - profile.starts_s[:-1]))
    step = int(done.searchsorted(demand.work * _NEARLY))
    if pace[step] <= 0.0:  # only for lack of digits: it was found to be enough
        return _NOTHING
    before = float(done[step - 1]) if step else 0.0
    end_s = float(profile.starts_s[step]) + max(demand.work - before, 0.0) / float(pace[step])
    used = np.concatenate(([0], demand.curve.sizes))[level[: step + 1]]
    return Filling(end_s, profile.starts_s[: step + 1], used)


def book(profile: Profile, own: Filling) -> None:
    """Take a filling out of the profile that it was found in."""
    last = len(own.used)
    if own.end_s > profile.starts_s[last - 1]:
        profile.split(own.end_s)
    profile.free[:last] -= own.used


def plan_least(profile: Profile, demands: list[Demand], slot_s: float) -> Ledger:
    """Plan jobs in the order given; those that cannot be in time, or have no deadline, not at all.

    Args:
        profile: What there is; becomes what is left.
        demands: (n,) by deadline.
        slot_s: See `least`.
    """
    found: list[Least | None] = []
    for demand in demands:
        own = least(profile, demand, slot_s) if math.isfinite(demand.deadline_s) else None
        if own is not None:
            book(profile, own.filling)
        found.append(own)
    return Ledger(profile, tuple(found))
