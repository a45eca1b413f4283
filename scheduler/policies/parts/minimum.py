"""ElasticFlow's plan: the least GPU-time that keeps each deadline, filled backwards from it.

Progressive filling finds the smallest size with which a job makes its deadline (`share.fill`).
ElasticFlow then lets it run at the next smaller size (or not at all) for as long as it can, and at
that size only from there to the deadline (read from the released code). Time is
continuous here, but the moment of the change lies on a grid of slots from the present, rounded
down, so that a deadline is met with up to a slot to spare.
"""

import math
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Ints
from scheduler.policies.parts.share import NEARLY, Demand, Filling, Profile, book, run

#: Seconds that rounding may cost.
_HAIR_S, _LATE_S = 1e-6, 1e-5


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


def least(profile: Profile, demand: Demand, slot_s: float) -> Least | None:
    """Find the filling with the least GPU-time that ends a job by its deadline; None: none does.

    Args:
        profile: Free GPUs. A step may be split, and nothing is taken.
        demand: What is to be done.
        slot_s: Grid, from the profile's start, of the moment at which the job grows; 0: none.
    """
    starts_s, work = profile.starts_s, demand.work * NEARLY
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
    return run(profile.starts_s, level, demand.work, demand.curve)


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
