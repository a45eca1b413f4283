"""When so many GPUs are free for so long, and a place for them from then on."""

import numpy as np

from scheduler.policies.parts.share import Profile


def earliest(profile: Profile, gpus: int, run_s: float) -> float:
    """Return when so many GPUs are free for so long at first; inf if never."""
    enough = profile.free >= gpus
    at = np.arange(len(enough))
    next_bad = np.minimum.accumulate(np.where(enough, len(enough), at)[::-1])[::-1]
    ends_s = np.append(profile.starts_s, np.inf)[next_bad]
    able = enough & (ends_s - profile.starts_s >= run_s)
    return float(profile.starts_s[able.argmax()]) if able.any() else float("inf")


def free_now(profile: Profile, gpus: int, run_s: float) -> bool:
    """Whether so many GPUs are free for so long from the first moment on."""
    short = (profile.free < gpus).nonzero()[0]
    return not len(short) or bool(profile.starts_s[short[0]] - profile.starts_s[0] >= run_s)


def reserve(profile: Profile, gpus: int, start_s: float, run_s: float) -> None:
    """Take so many GPUs out of a profile for so long."""
    first = profile.split(start_s)
    last = profile.split(start_s + run_s) if np.isfinite(run_s) else len(profile.starts_s)
    profile.free[first:last] -= gpus
