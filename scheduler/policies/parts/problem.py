"""Who competes for the GPUs of a pool, and with what curve: the prelude of policies that only size.

Such a policy sees, per pool, jobs that may be given any allowed size or none, and how many GPUs
there are for all of them. It answers with levels; `write` makes the plan of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import (
    RUNNING,
    WAITING,
    Bools,
    Figure,
    Floats,
    Ints,
    Jobs,
    Kind,
    Need,
    Plan,
    Reason,
    Snapshot,
)
from scheduler.policies.parts.allot import KEEP, Allotment, Because, allot, closing, no_pool
from scheduler.policies.parts.free_gpus import Style

#: A job that is about to end is taken to need this much longer, so that none is ever for free.
_SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The jobs that compete for one pool. r jobs; k levels, of which level 0 is no GPU at all."""

    pool: int
    gpus: int  #: of the pool, for all of them together.
    rows: Ints  #: (r,) indices into `Jobs`, ascending.
    sizes: Ints  #: (k,) 0, then every size.
    allowed: Bools  #: (r, k) level 0 always is.
    #: (r, k) work per second on this pool's GPUs, 0 at level 0; never falls with size, because
    #: measured curves do and more GPUs can always be left idle.
    rate: Floats
    base: Ints  #: (r,) smallest allowed level above 0.
    present: Ints  #: (r,) level held here now; 0: none.
    work: Floats  #: (r,) remaining, in the unit of `rate`; above 0.

    def run_s(self) -> Floats:
        """(r, k) how long each job would take at each level; inf at level 0."""
        with np.errstate(divide="ignore"):
            found: Floats = self.work[:, None] / self.rate
        return found


def problems(
    seen: Snapshot,
    kinds: Sequence[Kind] = (Kind.TRAINING,),
    reclaim: Mapping[str, float] | None = None,
) -> list[Problem]:
    """Split the jobs over the pools of some kinds; pools without any are left out.

    Who runs stays in its pool. Who waits, or must leave a node that closes, competes where the
    most GPUs per competitor are, the first pool among equals: of those pools that can give it its
    smallest size beside those of all who compete there, or of all if none can.

    Args:
        seen: What is known.
        kinds: Pools that take part; not EDGE, where a gang has one node.
        reclaim: Nodes that this plan gives back.
    """
    jobs, pools = seen.jobs, seen.pools
    closed = closing(seen, reclaim).astype(np.bool_)
    ousted, whole = _ousted(seen, closed), _whole(seen)
    places = [m for m, kind in enumerate(pools.kind.tolist()) if kind in kinds]
    usable = np.where(closed, 0, seen.nodes.free)
    gpus = np.bincount(seen.nodes.pool, usable, len(pools.ids)).astype(np.int64)
    level = np.minimum(np.searchsorted(jobs.sizes, jobs.size), max(len(jobs.sizes) - 1, 0))
    runnable: Bools = np.any(jobs.rate > 0, axis=1)
    rows = np.arange(len(jobs.ids))
    if len(jobs.sizes):
        fits_now = (jobs.sizes[level] == jobs.size) & (jobs.rate[rows, level] > 0)
    else:
        fits_now = np.zeros(len(jobs.ids), dtype=np.bool_)
    part = np.zeros(len(pools.ids) + 1, dtype=np.bool_)  # the last is for those in no pool, -1
    part[places] = True
    fits: Bools = jobs.memory_mib[:, None] <= pools.gpu_memory_mib
    fits &= (jobs.affinity > 0) & pools.occupied(seen.nodes)
    stays = whole & ~ousted & fits_now & part[jobs.pool]
    stays &= jobs.affinity[rows, jobs.pool] > 0
    rests = jobs.backoff_until_s > seen.now_s
    free_to = runnable & (((jobs.phase == WAITING) & ~rests) | ousted)
    held, node = seen.holdings.gpus, seen.holdings.node
    given = (stays | ousted)[seen.holdings.job] & ~closed[node]
    gpus += np.bincount(seen.nodes.pool[node[given]], held[given], len(pools.ids)).astype(np.int64)
    at = np.where(stays, jobs.pool, -1)
    room: list[float] = gpus.tolist()
    count: list[int] = np.bincount(at[at >= 0], minlength=len(room)).tolist()
    able: list[list[bool]] = fits.tolist()
    least = _least(jobs)
    spare: list[int] = (gpus - np.bincount(at[stays], least[stays], len(room))).tolist()
    for job, gang in zip(free_to.nonzero()[0].tolist(), least[free_to].tolist(), strict=True):
        best, most = -1, (False, -1.0)
        for place in places:
            share = spare[place] >= gang, room[place] / (count[place] + 1)
            if able[job][place] and share > most:
                best, most = place, share
        if best >= 0:
            at[job] = best
            count[best] += 1
            spare[best] -= gang if most[0] else 0
    return [
        _problem(seen, pool, int(gpus[pool]), np.flatnonzero(at == pool), stays, level)
        for pool in places
        if count[pool]
    ]


def write(
    seen: Snapshot,
    decided: Sequence[tuple[Problem, Ints]],
    rule: str,
    *,
    style: Style = "pack",
    order: Sequence[int] | None = None,
    why: Mapping[int, Because] | None = None,
    notes: Mapping[str, tuple[float, ...]] | None = None,
    lend: tuple[str, ...] = (),
    reclaim: Mapping[str, float] | None = None,
    reasons: tuple[Reason, ...] = (),
) -> Plan:
    """Make a plan of the levels of every problem; who is in none keeps what it may keep.

    Args:
        seen: What is known.
        decided: Each problem with its (r,) levels.
        rule: What decided.
        style: How gangs are placed.
        order: In which gangs are placed; None: large ones first.
        why: Where something else decided than `rule`.
        notes: What to write on jobs.
        lend: Nodes to ask for.
        reclaim: Nodes to give back; the same as `problems` was told.
        reasons: About nodes.
    """
    jobs = seen.jobs
    gpus = np.full(len(jobs.ids), KEEP, dtype=np.int64)
    gpus[(jobs.phase == WAITING) | _ousted(seen, closing(seen, reclaim).astype(np.bool_))] = 0
    pool = jobs.pool.copy()
    inside = np.zeros(len(jobs.ids), dtype=np.bool_)
    for problem, level in decided:
        gpus[problem.rows] = problem.sizes[level]
        pool[problem.rows] = problem.pool
        inside[problem.rows] = True
    causes = {**_left_out(seen, inside), **(why or {})}
    wanted = Allotment(
        gpus,
        rule,
        pool=pool,
        style=style,
        order=order,
        why=causes,
        notes=notes or {},
        lend=lend,
        reclaim=reclaim or {},
        reasons=reasons,
    )
    return allot(seen, wanted)


def _whole(seen: Snapshot) -> Bools:
    """(n,) running jobs all of whose GPUs are in sight."""
    held = seen.holdings
    gpus = np.bincount(held.job, held.gpus, len(seen.jobs.ids)).astype(np.int64)
    found: Bools = (seen.jobs.phase == RUNNING) & (gpus == seen.jobs.size)
    return found


def _ousted(seen: Snapshot, closed: Bools) -> Bools:
    """(n,) running jobs that hold a GPU on a node that closes."""
    found = np.zeros(len(seen.jobs.ids), dtype=np.bool_)
    found[seen.holdings.job[closed[seen.holdings.node]]] = True
    return found & _whole(seen)


def _least(jobs: Jobs) -> Ints:
    """(n,) smallest size of each job, of those that have any."""
    found: Ints = jobs.sizes[(jobs.rate > 0).argmax(axis=1)] if len(jobs.sizes) else jobs.size
    return found


def _problem(
    seen: Snapshot, pool: int, gpus: int, rows: Ints, stays: Bools, level: Ints
) -> Problem:
    jobs = seen.jobs
    own = jobs.rate[rows] * jobs.affinity[rows, pool][:, None]
    none = np.zeros((len(rows), 1))
    rate = np.hstack([none, np.maximum.accumulate(own, axis=1)])
    allowed: Bools = np.hstack([np.ones((len(rows), 1), dtype=np.bool_), own > 0])
    base: Ints = 1 + np.argmax(allowed[:, 1:], axis=1)
    first_rate = rate[np.arange(len(rows)), base]
    return Problem(
        pool=pool,
        gpus=gpus,
        rows=rows,
        sizes=np.concatenate([[0], jobs.sizes]).astype(np.int64),
        allowed=allowed,
        rate=rate,
        base=base,
        present=np.where(stays[rows], level[rows] + 1, 0),
        work=np.maximum(jobs.remaining_steps[rows], first_rate * _SHORTEST_S),
    )


def _left_out(seen: Snapshot, inside: Bools) -> dict[int, Because]:
    """Say of every waiting job that is in no problem why that is so."""
    jobs = seen.jobs
    runnable: Bools = np.any(jobs.rate > 0, axis=1)
    found = {}
    for job in ((jobs.phase == WAITING) & ~inside).nonzero()[0].tolist():
        waited = Figure("waited_s", seen.now_s - float(jobs.waiting_since_s[job]))
        if not runnable[job]:
            rule, need = "gang.size", Need("allowed_sizes", 0, 1)
        elif jobs.backoff_until_s[job] > seen.now_s:
            left_s = float(jobs.backoff_until_s[job]) - seen.now_s
            rule, need = "gang.backoff", Need("backoff_s", left_s, 0.0)
        else:
            rule, need = "gang.no_pool", no_pool(seen, job)
        found[job] = Because(rule, (), (waited,), (need,))
    return found
