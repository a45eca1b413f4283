"""Which waiting gangs start, whole or not at all, and which hold back for an earlier one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints

#: What happens behind a gang that does not fit. `strict`: nobody passes it. `fit_first`: whoever
#: fits starts. `easy`: whoever fits and does not delay the gang that does not (policies.md 1).
Backfill = Literal["strict", "fit_first", "easy"]

#: (job, site) -> its speed there, relative to a training pool's GPUs.
PaceOf = Callable[[int, int], float | Floats]

#: site -> who holds what is not slack there.
HoldersOf = Callable[[int], Sequence["Holder"]]

# The records below are made by the thousand in a cycle; frozen ones take three times as long.


@dataclass(slots=True)
class Claim:
    """A gang that wants to start."""

    job: int
    gpus: int  #: its base size.
    run_s: float  #: at that size, on a training pool's GPUs.


class Holder(NamedTuple):
    """A gang that holds GPUs until it ends; in order of their ends, then jobs."""

    end_s: float
    job: int
    gpus: int


@dataclass(slots=True)
class Outcome:
    """What became of a claim."""

    job: int
    site: int  #: -1: it waits.
    rule: str  #: `start`, `backfilled`, `capacity`, `backfill` or `strict`.
    behind: int = -1  #: the job it holds back for, or passes.
    #: The most GPUs that one eligible site could give, when it was considered; -1: no site is.
    offered: int = -1


def as_declared(_job: int, _site: int) -> float:
    """Run everywhere as on a training pool's GPUs."""
    return 1.0


def ends_s(now_s: float, claim: Claim, site: int, pace: PaceOf) -> float:
    """Return when a gang ends that starts in a site now; practically never where it cannot run."""
    return now_s + claim.run_s / max(float(pace(claim.job, site)), 1e-12)


def start(
    now_s: float,
    claims: Sequence[Claim],
    slack: Ints,
    speeds: Callable[[int, Ints], Floats],
    holders: HoldersOf,
    mode: Backfill,
    count_started: bool = False,
    able: Bools | None = None,
    pace: PaceOf = as_declared,
) -> list[Outcome]:
    """Go through claims in the order given.

    Args:
        now_s: The present.
        claims: In the order in which they are served.
        slack: (s,) GPUs that each site can give, for example by scaling in; lowered by each start.
        speeds: (job, slack) -> (s,) how fast it would run in each site with that slack; 0 where it
            cannot ever run. The best site that has room wins, the lowest index among equals.
        holders: Who holds what is not slack in a site; asked only once a gang does not fit.
        mode: What happens behind a gang that does not fit.
        count_started: Whether a gang that does not fit reserves what those who start just before
            it will free; without it such a reservation is late, or never, and may be delayed.
        able: (c, s) sites where each claim may ever run, if known: speeds are then asked only for
            those that fit.
        pace: How fast each runs where, which tells when it ends.
    """
    outcomes: list[Outcome] = []
    started: dict[int, list[Holder]] = {}  # by site, if they count
    head = -1
    head_site, from_s, spare = -1, np.inf, 0
    room: list[int] = slack.tolist()  # the same again: single numbers are read faster from a list
    reach = _Reach(able, room) if able is not None else None
    for index, claim in enumerate(claims):
        speed: Floats | None = None
        if reach is not None:
            sites, offered = reach.of(index)
        else:
            speed = speeds(claim.job, slack)
            sites = np.flatnonzero(speed > 0).tolist()
            offered = max((room[at] for at in sites), default=-1)
        if head >= 0 and mode == "strict":
            outcomes.append(Outcome(claim.job, -1, "strict", head, offered))
            continue
        if offered < claim.gpus:
            outcomes.append(Outcome(claim.job, -1, "capacity", head, offered))
            if head < 0 and sites:
                head = claim.job
                if mode == "easy":
                    head_site, from_s, spare = reserve(
                        claim.gpus, slack, sites, lambda at: [*holders(at), *started.get(at, ())]
                    )
            continue
        outlasts = head_site >= 0 and ends_s(now_s, claim, head_site, pace) > from_s
        shut = head_site if outlasts and claim.gpus > spare else -1
        free_to = [at for at in sites if room[at] >= claim.gpus and at != shut]
        if free_to:
            site = free_to[0]
            if len(free_to) > 1:
                speed = speeds(claim.job, slack) if speed is None else speed
                site = max(free_to, key=speed.tolist().__getitem__)
            slack[site] -= claim.gpus
            room[site] -= claim.gpus
            if reach is not None:
                reach.forget(room[site] + claim.gpus)
            if count_started:
                holder = Holder(ends_s(now_s, claim, site, pace), claim.job, claim.gpus)
                started.setdefault(site, []).append(holder)
            if site == head_site and outlasts:
                spare -= claim.gpus
            rule = "backfilled" if head >= 0 else "start"
            outcomes.append(Outcome(claim.job, site, rule, head, offered))
        else:
            outcomes.append(Outcome(claim.job, -1, "backfill", head, offered))
    return outcomes


class _Reach:
    """The sites where each claim may run, and the most that one of them could give."""

    def __init__(self, able: Bools, room: list[int]) -> None:
        self._able, self._room = able, room
        packed = np.packbits(able, axis=1)
        width, bits = packed.shape[1], packed.tobytes()
        self._keys = [bits[at : at + width] for at in range(0, len(bits), width)]
        self._known: dict[bytes, tuple[list[int], int]] = {}

    def of(self, index: int) -> tuple[list[int], int]:
        """Return both for a claim; -1 GPUs if it may run nowhere."""
        key = self._keys[index]
        if key not in self._known:
            sites: list[int] = self._able[index].nonzero()[0].tolist()
            self._known[key] = (sites, max((self._room[at] for at in sites), default=-1))
        return self._known[key]

    def forget(self, gpus: int) -> None:
        """Look again, where the answer was that of a site that no longer gives so many."""
        self._known = {key: found for key, found in self._known.items() if found[1] != gpus}


def reserve(
    gpus: int, slack: Ints, sites: Sequence[int], holders: HoldersOf
) -> tuple[int, float, int]:
    """Find where and when a gang fits first, if those who hold GPUs end as expected.

    Returns:
        The site, the moment, and how many GPUs are left over there then; -1, inf, 0 if never.
    """
    best = (-1, float("inf"), 0)
    for site in sites:
        free = int(slack[site])
        for end_s, _, held in sorted(holders(site)):
            free += held
            if free >= gpus:
                if end_s < best[1]:
                    best = (site, end_s, free - gpus)
                break
    return best
