"""Conservative backfill: every waiting gang has a moment it will start by, and keeps it."""

from collections.abc import Callable, Sequence

import numpy as np

from scheduler.policies.interface import Floats, Ints
from scheduler.policies.parts.gang import Claim, Holder, Outcome, PaceOf, as_declared, ends_s
from scheduler.policies.parts.share import Profile

#: Who should have ended already is expected to end so much after the present.
OVERDUE_S = 1.0


def earliest(profile: Profile, gpus: int, run_s: float) -> float:
    """Return when so many GPUs are free for so long at first; inf if never."""
    enough = profile.free >= gpus
    at = np.arange(len(enough))
    next_bad = np.minimum.accumulate(np.where(enough, len(enough), at)[::-1])[::-1]
    ends_s = np.append(profile.starts_s, np.inf)[next_bad]
    able = enough & (ends_s - profile.starts_s >= run_s)
    return float(profile.starts_s[able.argmax()]) if able.any() else float("inf")


def reserve(profile: Profile, gpus: int, start_s: float, run_s: float) -> None:
    """Take so many GPUs out of a profile for so long."""
    first = profile.split(start_s)
    last = profile.split(start_s + run_s) if np.isfinite(run_s) else len(profile.starts_s)
    profile.free[first:last] -= gpus


def start_conservatively(
    now_s: float,
    claims: Sequence[Claim],
    slack: Ints,
    speeds: Callable[[int, Ints], Floats],
    holders: Sequence[Sequence[Holder]],
    promises: dict[int, float] | None = None,
    pace: PaceOf = as_declared,
) -> list[Outcome]:
    """Reserve the earliest place for each claim in turn; start those whose moment is now.

    A claim never moves a reservation of one before it, so with exact run times nobody starts later
    than first promised (policies.md 1, mode d).

    Args:
        now_s: The present.
        claims: In the order in which they are served.
        slack: (s,) GPUs free in each site; lowered by each start.
        speeds: As for `gang.start`: 0 where a job cannot ever run, the best site wins among equals.
        holders: Per site, who holds GPUs until when.
        promises: Filled with job -> the moment it was promised.
        pace: How fast each runs where, which tells for how long.
    """
    profiles = [_profile(now_s, int(gpus), who) for gpus, who in zip(slack, holders, strict=True)]
    outcomes: list[Outcome] = []
    head = -1
    for claim in claims:
        speed = speeds(claim.job, slack)
        able = np.flatnonzero(speed > 0)
        offered = int(slack[able].max()) if len(able) else -1
        found = []
        for at in able.tolist():
            run_s = ends_s(0.0, claim, at, pace)
            found.append((earliest(profiles[at], claim.gpus, run_s), -float(speed[at]), at, run_s))
        start_s, _, site, run_s = min(found, default=(float("inf"), 0.0, -1, 0.0))
        if promises is not None:
            promises[claim.job] = start_s
        if np.isfinite(start_s):
            reserve(profiles[site], claim.gpus, start_s, run_s)
        if start_s <= now_s:
            slack[site] -= claim.gpus
            rule = "backfilled" if head >= 0 else "start"
            outcomes.append(Outcome(claim.job, site, rule, head, offered))
        elif offered >= claim.gpus:
            outcomes.append(Outcome(claim.job, -1, "backfill", head, offered))
        else:
            outcomes.append(Outcome(claim.job, -1, "capacity", head, offered))
        if head < 0 and start_s > now_s and len(able):
            head = claim.job
    return outcomes


def _profile(now_s: float, free: int, holders: Sequence[Holder]) -> Profile:
    """Return what is free from now on if those who hold GPUs end as expected."""
    ends_s = np.array([max(holder.end_s, now_s + OVERDUE_S) for holder in holders])
    gpus = np.array([holder.gpus for holder in holders], dtype=np.int64)
    moments, which = np.unique(ends_s, return_inverse=True)
    freed = np.bincount(which.ravel(), gpus, len(moments)).astype(np.int64)
    starts_s = np.concatenate(([now_s], moments))
    return Profile(starts_s, free + np.concatenate(([0], np.cumsum(freed))))
