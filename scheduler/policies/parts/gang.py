"""Which waiting gangs start, whole or not at all, and which hold back for an earlier one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

#: What happens behind a gang that does not fit. `strict`: nobody passes it. `easy`: whoever fits
#: and does not delay the gang that does not.
Backfill = Literal["strict", "easy"]


@dataclass(slots=True)  # made by the thousand in a cycle; frozen ones take three times as long.
class Claim:
    """A gang that wants to start."""

    job: int
    gpus: int
    run_s: float  #: on GPUs of speed 1.
    pace: Sequence[float]  #: (m,) how fast it is in each pool; 0 where it cannot ever run.

    def ends_s(self, now_s: float, pool: int) -> float:
        """Return when it ends if it starts in a pool now; practically never where it cannot."""
        return now_s + self.run_s / max(self.pace[pool], 1e-12)


class Holder(NamedTuple):
    """A gang that holds GPUs until it ends; in order of their ends, then jobs."""

    end_s: float
    job: int
    gpus: int


class Outcome(NamedTuple):
    """What became of a gang that wanted to start."""

    job: int
    pool: int  #: -1: it waits.
    rule: str  #: `start`, `backfilled`, `capacity`, `backfill` or `strict`.
    behind: int = -1  #: the job it holds back for, or passes.
    #: The most GPUs that one pool for it could give, when it was considered; -1: there is none.
    offered: int = -1


def start(
    now_s: float,
    claims: Sequence[Claim],
    room: list[int],
    holders: Callable[[int], Sequence[Holder]],
    mode: Backfill,
    speeds: Callable[[int, Sequence[int]], Sequence[float]],
) -> list[Outcome]:
    """Go through claims in the order given. m pools.

    A gang that does not fit also counts on what those will free who start just before it.

    Args:
        now_s: The present.
        claims: In the order in which they are served.
        room: (m,) free GPUs; lowered by each start.
        holders: Who holds the other GPUs of a pool; asked only once a gang does not fit.
        mode: What happens behind a gang that does not fit.
        speeds: (job, room) -> (m,) by which the best of several pools with room is chosen, the
            lowest index among equals.
    """
    outcomes: list[Outcome] = []
    started: list[list[Holder]] = [[] for _ in room]
    #: By pool, all its GPUs: those who start here only move some from free to held.
    whole: dict[int, int] = {}
    held: dict[int, Sequence[Holder]] = {}
    head, head_pool, from_s, spare = -1, -1, float("inf"), 0
    for claim in claims:
        pools = [at for at, pace in enumerate(claim.pace) if pace > 0]
        offered = max((room[at] for at in pools), default=-1)
        if head >= 0 and mode == "strict":
            outcomes.append(Outcome(claim.job, -1, "strict", head, offered))
            continue
        if offered < claim.gpus:
            outcomes.append(Outcome(claim.job, -1, "capacity", head, offered))
            if head < 0 and pools and mode == "strict":
                head = claim.job
            elif head < 0 and pools:
                for at in pools:
                    if at not in whole:
                        held[at] = holders(at)
                        taken = sum(who.gpus for who in (*held[at], *started[at]))
                        whole[at] = room[at] + taken
                if all(whole[at] < claim.gpus for at in pools):
                    continue  # never fits: to look for a moment takes as long for each such gang
                known = {at: [*held[at], *started[at]] for at in pools}
                head_pool, from_s, spare = reserve(claim.gpus, room, known)
                # One that never fits holds nothing back: room is kept for the first that will.
                head = claim.job if head_pool >= 0 else -1
            continue
        outlasts = head_pool >= 0 and claim.ends_s(now_s, head_pool) > from_s
        shut = head_pool if outlasts and claim.gpus > spare else -1
        free_to = [at for at in pools if room[at] >= claim.gpus and at != shut]
        if not free_to:
            outcomes.append(Outcome(claim.job, -1, "backfill", head, offered))
            continue
        pool = free_to[0]
        if len(free_to) > 1:
            pool = max(free_to, key=speeds(claim.job, room).__getitem__)
        room[pool] -= claim.gpus
        started[pool].append(Holder(claim.ends_s(now_s, pool), claim.job, claim.gpus))
        if pool == head_pool and outlasts:
            spare -= claim.gpus
        # A literal for each: the tests read the rules there are off these lines.
        if head >= 0:
            outcomes.append(Outcome(claim.job, pool, "backfilled", head, offered))
        else:
            outcomes.append(Outcome(claim.job, pool, "start", head, offered))
    return outcomes


def reserve(
    gpus: int, room: Sequence[int], holders: dict[int, list[Holder]]
) -> tuple[int, float, int]:
    """Find where and when a gang fits first, if those who hold GPUs end as expected.

    Returns:
        The pool, the moment, and how many GPUs are left over there then; -1, inf, 0 if never.
    """
    best = (-1, float("inf"), 0)
    for pool, who in holders.items():
        free = room[pool]
        for end_s, _, held in sorted(who):
            free += held
            if free >= gpus:
                if end_s < best[1]:
                    best = (pool, end_s, free - gpus)
                break
    return best
