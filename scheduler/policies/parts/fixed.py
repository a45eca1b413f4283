"""Gangs of one fixed size on the training pools: what most policies of the literature schedule.

What every such policy needs besides its order: which size and pools a gang has, what is free, who
may be touched, and a plan with its reasons. Pools that are lent, and the edge, are left as they
are: jobs there stay until their node goes back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import (
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    Need,
    Phase,
    Plan,
    Snapshot,
)
from scheduler.policies.parts.allot import (
    KEEP,
    Allotment,
    Because,
    allot,
    closing,
    no_pool,
    training_pool,
)
from scheduler.policies.parts.free_gpus import Style

#: As many names as a reason lists; the engine stores a reason again when they change.
NAMES_MOST = 3
#: A job's remaining time is taken as at least this, so that none is ever free.
SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Gangs:
    """The gangs of a snapshot. n jobs, m pools."""

    seen: Snapshot
    size: Ints  #: (n,) GPUs it has or would start with; 0 if no size is allowed.
    left_s: Floats  #: (n,) run time left at that size and speed 1.
    speed: Floats  #: (n, m) in each training pool; 0 where it cannot run, and in other pools.
    runs: Bools  #: (n,) holds an allowed size in a training pool and may be preempted.
    ousted: Bools  #: (n,) must leave where it is.
    starts: Bools  #: (n,) waits or is ousted, and may be placed now.
    pool: Ints  #: (n,) where it runs, -1 if not `runs`.
    room: Ints  #: (m,) GPUs free in each training pool while all that `runs` stay.
    pools: tuple[tuple[int, ...], ...]  #: (n,) pools it can run in, the fastest first.

    def fits(self, job: int, room: Sequence[int]) -> int:
        """Return the fastest pool with room for a gang; -1 if there is none."""
        size = int(self.size[job])
        return next((pool for pool in self.pools[job] if room[pool] >= size), -1)

    def best_s(self) -> Floats:
        """(n,) run time left in the fastest pool; inf if it can run in none."""
        top = self.speed.max(axis=1, initial=0.0)
        return np.where(top > 0, self.left_s / np.maximum(top, 1e-12), np.inf)


def gangs(seen: Snapshot) -> Gangs:
    """Read the gangs: who runs keeps its size, who waits gets what was asked for.

    What was asked for but is not allowed becomes the largest allowed size below, or the smallest.
    """
    jobs, pools = seen.jobs, seen.pools
    n, m = len(jobs.ids), len(pools.ids)
    rows, allowed = np.arange(n), jobs.rate > 0
    runnable: Bools = np.any(allowed, axis=1)
    below = np.where(allowed & (jobs.sizes <= jobs.requested[:, None]), jobs.sizes, 0).max(axis=1)
    asked = np.where(below > 0, below, jobs.sizes[allowed.argmax(axis=1)])
    at = np.minimum(jobs.sizes.searchsorted(jobs.size), len(jobs.sizes) - 1)
    holds = (jobs.size > 0) & (jobs.sizes[at] == jobs.size) & allowed[rows, at]
    size = np.where(holds, jobs.size, np.where(runnable, asked, 0))
    rate = jobs.rate[rows, np.minimum(jobs.sizes.searchsorted(size), len(jobs.sizes) - 1)]
    left_s = np.where(runnable, jobs.remaining_steps / np.where(rate > 0, rate, 1.0), np.inf)
    trains = (pools.kind == Kind.TRAINING) & pools.occupied(seen.nodes)
    able = trains & (jobs.memory_mib[:, None] <= pools.gpu_memory_mib) & runnable[:, None]
    speed = np.where(able, jobs.affinity, 0.0)
    held = seen.holdings
    closed: Bools = closing(seen) > 0
    counted = np.bincount(held.job, held.gpus, n)
    may = (jobs.phase == Phase.RUNNING) & (counted == jobs.size)
    ousted: Bools = may & (np.bincount(held.job, closed[held.node], n) > 0)
    here = np.take_along_axis(speed, np.maximum(jobs.pool, 0)[:, None], axis=1)[:, 0]
    runs: Bools = may & holds & ~ousted & (here > 0)
    ready = (jobs.phase == Phase.WAITING) & (jobs.backoff_until_s <= seen.now_s)
    starts = (ready | ousted) & (speed > 0).any(axis=1)
    free = np.bincount(seen.nodes.pool, np.where(closed, 0, seen.nodes.free), m)
    given_up = ousted[held.job] & ~closed[held.node]
    free += np.bincount(seen.nodes.pool[held.node[given_up]], held.gpus[given_up], m)
    order = np.argsort(-speed, axis=1, kind="stable")
    counts = (speed > 0).sum(axis=1).tolist()
    return Gangs(
        seen=seen,
        size=size,
        left_s=np.maximum(left_s, SHORTEST_S),
        speed=speed,
        runs=runs,
        ousted=ousted,
        starts=starts,
        pool=np.where(runs, jobs.pool, -1),
        room=np.where(trains, free, 0).astype(np.int64),
        pools=tuple(tuple(row[:k]) for row, k in zip(order.tolist(), counts, strict=True)),
    )


def sweep(found: Gangs, order: Iterable[int]) -> Ints:
    """Serve gangs in an order: whoever fits runs, whoever does not is preempted or waits.

    Later gangs pass those that do not fit. One that runs stays in its pool or stops.

    Args:
        found: Of whom all that `runs` are preempted unless the order serves them.
        order: Jobs that `runs` or `starts`.

    Returns:
        (n,) the pool of each, -1 for none.
    """
    given = np.full(len(found.size), -1)
    back = np.bincount(found.pool[found.runs], found.size[found.runs], len(found.room))
    room = (found.room + back.astype(np.int64)).tolist()
    left = sum(room)
    stays, sizes = found.pool.tolist(), found.size.tolist()
    for job in order:
        if not left:
            break
        pool = stays[job]
        if pool < 0:
            pool = found.fits(job, room)
        elif room[pool] < sizes[job]:
            pool = -1
        if pool >= 0:
            given[job] = pool
            room[pool] -= sizes[job]
            left -= sizes[job]
    return given


@dataclass(slots=True)
class Verdict:
    """What a policy decided. n jobs."""

    pool: Ints  #: (n,) of those that `runs` or `starts`: where each shall be, -1 for nowhere.
    rule: str  #: that gave places and took them.
    size: Ints | None = None  #: (n,) GPUs there; None: `Gangs.size`.
    why: Mapping[int, Because] = field(default_factory=dict)  #: where `rule` says too little.
    figures: Mapping[str, Floats] = field(default_factory=dict)  #: (n,) each, told in reasons.
    notes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    style: Style = "pack"  #: How gangs are placed,
    order: Sequence[int] | None = None  #: and in which order; None: large ones first.


def write(found: Gangs, verdict: Verdict) -> Plan:
    """Write the plan: whoever neither `runs` nor `starts` stays as it is."""
    seen = found.seen
    touched = found.runs | found.ousted | found.starts
    size = np.where(verdict.pool >= 0, found.size if verdict.size is None else verdict.size, 0)
    gpus = np.where(touched, size, KEEP)
    pool = np.where(verdict.pool >= 0, verdict.pool, seen.jobs.pool)
    pool = np.where(pool >= 0, pool, training_pool(seen))
    wanted = Allotment(
        gpus,
        verdict.rule,
        pool,
        style=verdict.style,
        order=verdict.order,
        why=_reasons(found, verdict, gpus),
        notes=verdict.notes,
    )
    return allot(seen, wanted)


def unready(found: Gangs, job: int) -> Because | None:
    """Say why a waiting gang could not be placed even if all GPUs were free; None if it could."""
    if not found.size[job]:
        return Because("gang.size", needs=(Need("allowed_sizes", 0, 1),))
    if not found.pools[job]:
        return Because("gang.no_pool", needs=(no_pool(found.seen, job),))
    rest_s = float(found.seen.jobs.backoff_until_s[job]) - found.seen.now_s
    if rest_s > 0.0:
        return Because("gang.backoff", needs=(Need("backoff_s", rest_s, 0.0),))
    return None


def _reasons(found: Gangs, verdict: Verdict, gpus: Ints) -> dict[int, Because]:
    jobs, now_s = found.seen.jobs, found.seen.now_s
    after = np.where(gpus == KEEP, jobs.size, gpus)
    names: dict[int, tuple[str, ...]] = {}

    def rivals(pool: int, fresh: bool) -> tuple[str, ...]:
        """Those who get GPUs of a pool, or else its largest holders."""
        key = 2 * pool + fresh
        if key not in names:
            mine = (verdict.pool == pool) & (after > (jobs.size if fresh else 0))
            who = np.flatnonzero(mine)
            who = who[np.argsort(-after[who], kind="stable")][:NAMES_MOST]
            names[key] = tuple(jobs.ids[job] for job in who.tolist())
        return names[key]

    used = np.bincount(verdict.pool[verdict.pool >= 0], minlength=len(found.room))
    spare = found.room.astype(np.float64)
    served = (found.runs | found.ousted | found.starts) & (after != 0) & (verdict.pool >= 0)
    np.subtract.at(spare, verdict.pool[served], after[served])
    np.add.at(spare, found.pool[found.runs], jobs.size[found.runs])
    open_gpus: list[float] = spare.tolist()
    why: dict[int, Because] = {}
    told = {name: column.tolist() for name, column in verdict.figures.items()}
    waiting = jobs.phase == Phase.WAITING
    rows = np.flatnonzero((after != jobs.size) | waiting | found.ousted)
    columns = (rows, after[rows], jobs.size[rows], waiting[rows], found.ousted[rows])
    for job, gets, had, waits, ousted in zip(*(column.tolist() for column in columns), strict=True):
        figures = tuple(Figure(name, row[job]) for name, row in told.items())
        if job in verdict.why:
            why[job] = verdict.why[job]
        elif gets == 0 and waits:
            figures = (Figure("waited_s", now_s - float(jobs.waiting_since_s[job])), *figures)
            if (cause := unready(found, job)) is not None:
                why[job] = Because(cause.rule, (), figures, cause.needs)
            else:
                most = max(found.pools[job], key=lambda pool: (open_gpus[pool], -pool))
                need = Need("free_gpus", open_gpus[most], float(found.size[job]))
                lost_to = rivals(most, fresh=False) if used[most] else ()
                why[job] = Because("gang.capacity", lost_to, figures, (need,))
        elif ousted:
            why[job] = Because("loans.reclaim", (), figures)
        elif gets < had:
            why[job] = Because(verdict.rule, rivals(int(found.pool[job]), fresh=True), figures)
        else:
            why[job] = Because(verdict.rule, (), figures)
    return why
