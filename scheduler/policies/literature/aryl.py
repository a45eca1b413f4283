"""Aryl, later Lyra (EuroSys '23): lends whole inference servers, and scales jobs into them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from scheduler.policies.interface import Ints, Kind, Plan, Snapshot
from scheduler.policies.parts.changes import waits
from scheduler.policies.parts.draft import Draft, begin
from scheduler.policies.parts.gang import Outcome
from scheduler.policies.parts.knapsack import exact
from scheduler.policies.parts.lending import lend_and_reclaim
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.parts.placement import finish
from scheduler.policies.parts.victims import RULES, Rule
from scheduler.policies.ranges import Amount

#: Speeds nearer than this part are alike.
_ALIKE = 1e-9


@dataclass(frozen=True, slots=True)
class Aryl:
    """Capacity loaning with few preemptions, then two phases of sizes.

    Loans: an inference pool lends what its forecast peak and headroom leave; a reclaim returns
    empty servers, then those with workers above their jobs' base, then those that cost least by
    any of three rules: `fraction` (the paper's: a job counts in equal parts at each of its
    servers), `count`, and `ratio` (what falls per server that comes free); the cheapest plan wins.

    Phase 1: all waiting jobs at their base size, the shortest at that size first, skipping those
    that do not fit; running jobs keep their base, and give up what they have above it.
    Phase 2: what is left, by a knapsack of completion time saved, T(base) - T(size), per pool.

    Slow GPUs: a job has GPUs of one type. On loaned servers that are a third as fast, a worker is
    three GPUs (as recalled [M]: demands and capacities are counted in training's GPUs), so a job's
    base there is the smallest size as fast as its base on training's. Where it may not have so
    many GPUs, it waits for training's. A reclaim may leave it fewer, but no less than its base.

    Placement: jobs of one size go to training servers first, elastic ones to loaned servers first.
    On loaned servers bases fill from the first server and workers above the base from the last,
    so that a reclaim finds servers that scaling in empties.

    Differences: the headroom and the horizon are ours; the paper forecasts with a network (as
    recalled), `forecast` here with seasons and a quantile. A victim costs the GPU-seconds that its
    stop wastes, not 1. A job that changed less than `interval_s` ago does not grow. Edge nodes are
    not asked for.

    Knows remaining work and curves. Cost: O(n k) and a program over what the bound leaves open.
    """

    name: str = "aryl"
    loans: LoanOptions = field(default_factory=LoanOptions)
    #: ("fraction",) for the paper's alone.
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)] = RULES
    interval_s: Amount = 60.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide loans, sizes and pools of all jobs."""
        if not len(snapshot.jobs.sizes) or not len(snapshot.nodes.ids):
            return Plan()
        draft = begin(snapshot, lend_and_reclaim(snapshot, self.loans, self.rules, edge=False))
        bases = _bases(draft)
        _hold(draft, bases)
        room = draft.free_gpus()
        outcomes = _start_bases(draft, room, bases)
        level = self._grow(draft, room)
        inference = snapshot.pools.kind == Kind.INFERENCE
        base = draft.curve.sizes[draft.floor]
        told = waits(draft, outcomes, "gpus_above_base")

        def placing(
            free: Ints, job: int, pool: int, gpus: int, held: Mapping[int, int]
        ) -> dict[int, int] | None:
            """Keep bases and extra workers apart on loaned servers."""
            if not inference[pool]:
                return None
            members = (snapshot.nodes.pool == pool).nonzero()[0]
            return group(free, members, int(base[job]), gpus, held)

        return finish(draft, level, told, placing)

    def _grow(self, draft: Draft, room: Ints) -> Ints:
        """Phase 2: (n,) levels."""
        jobs, curve, pools = draft.seen.jobs, draft.curve, draft.seen.pools
        held = (draft.pool >= 0) & (draft.pool == draft.was) & ~draft.forced
        at_edge = pools.kind[draft.pool] == Kind.EDGE
        level = np.where(held & at_edge, curve.present, draft.floor)
        fresh = held & (draft.seen.now_s - jobs.changed_s < self.interval_s)
        most = np.where(fresh, np.maximum(curve.present, draft.floor), len(curve.sizes))
        able = curve.allowed & (np.arange(len(curve.sizes))[None, :] <= most[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            run_s = np.where(able, jobs.remaining_steps[:, None] / curve.rate, np.inf)
        for pool in ((pools.kind != Kind.EDGE) & (room > 0)).nonzero()[0].tolist():
            rows = np.flatnonzero(draft.pool == pool)
            value = -run_s[rows] / jobs.affinity[rows, pool][:, None]
            level[rows] = exact(curve.sizes, value, level[rows], int(room[pool])).level
        return level


def _bases(draft: Draft) -> Ints:
    """(n, m) level of each job's base at each pool, as fast as on training's GPUs; -1: none is.

    Where GPUs are faster, and on edge nodes, it is the smallest all the same.
    """
    curve, pools = draft.curve, draft.seen.pools
    slowly = np.where(pools.kind == Kind.INFERENCE, np.minimum(draft.seen.jobs.affinity, 1.0), 1.0)
    rows = np.arange(len(curve.base))
    needed = curve.rate[rows, curve.base][:, None] * (1.0 - _ALIKE)
    enough = curve.allowed[:, None, :] & (
        curve.rate[:, None, :] * slowly[:, :, None] >= needed[:, :, None]
    )
    found: Ints = np.where(enough.any(axis=2), enough.argmax(axis=2), -1)
    return found


def _hold(draft: Draft, bases: Ints) -> None:
    """Let who runs keep the base of its pool, or what a reclaim leaves it of that."""
    curve, held = draft.curve, draft.seen.holdings
    runs = (draft.pool >= 0).nonzero()[0]
    kept = np.bincount(held.job, np.where(draft.closed[held.node], 0, held.gpus), len(bases))
    fits = curve.allowed[runs] & (curve.sizes <= kept[runs, None])
    last = np.where(fits, np.arange(len(curve.sizes)), 0).max(axis=1, initial=0)
    base = bases[runs, draft.pool[runs]]
    draft.floor[runs] = np.where(base < 0, last, np.minimum(base, last))


def _start_bases(draft: Draft, room: Ints, bases: Ints) -> dict[int, Outcome]:
    """Phase 1: find a pool for the base of every job that fits; return what became of each.

    Args:
        draft: Given the pools.
        room: (m,) GPUs that pools can give; lowered by each start.
        bases: (n, m) level of each job's base at each pool, -1: none.
    """
    curve, pools = draft.curve, draft.seen.pools
    displaced = draft.forced & (draft.pool < 0) & curve.runnable
    waiting = (draft.waiting() | displaced).nonzero()[0]
    run_s = curve.work_s / curve.sizes[curve.base]
    elastic = curve.top > curve.base
    fits = draft.able((Kind.TRAINING, Kind.INFERENCE)) & (bases >= 0)
    base = curve.sizes[bases]
    every = np.arange(len(room))
    liked = {
        kind: np.lexsort((every, -pools.speed, pools.kind != kind))
        for kind in (Kind.TRAINING, Kind.INFERENCE)
    }
    found: dict[int, Outcome] = {}
    for job in waiting[np.lexsort((waiting, run_s[waiting]))].tolist():
        order = liked[Kind.INFERENCE if elastic[job] else Kind.TRAINING]
        able = order[fits[job, order]]
        offered = int(room[able].max(initial=-1)) if len(able) else -1
        enough = able[room[able] >= base[job, able]]
        pool = int(enough[0]) if len(enough) else -1
        found[job] = Outcome(job, pool, "capacity", -1, offered)
        if pool >= 0:
            room[pool] -= base[job, pool]
            draft.pool[job], draft.floor[job] = pool, bases[job, pool]
    return found


def group(
    free: Ints, members: Ints, base: int, size: int, held: Mapping[int, int]
) -> dict[int, int]:
    """Find nodes on loaned servers: bases from the first on, extra workers from the last on.

    Args:
        free: (p,) free GPUs of all nodes; the job has given up its own.
        members: Nodes of the pool; must have `size` free GPUs.
        base: GPUs without which the job stops.
        size: GPUs it shall have.
        held: What it had, node -> GPUs; kept, but for the last nodes where it shrinks.

    Returns:
        node -> GPUs, by node.

    Raises:
        RuntimeError: the pool has fewer free GPUs; a bug of the policy.
    """
    room: dict[int, int] = dict(zip(members.tolist(), free[members].tolist(), strict=True))
    placed: dict[int, int] = {}

    def put(node: int, gpus: int) -> None:
        if gpus > 0:
            placed[node] = placed.get(node, 0) + gpus
            room[node] -= gpus

    for node in sorted(held):
        put(node, min(held[node], room.get(node, 0), size - sum(placed.values())))
    for target, forth in ((base, 1), (size, -1)):
        rest = target - sum(placed.values())
        while rest > 0:
            fits = [node for node in room if room[node] >= rest]
            if fits:
                node = min(fits, key=lambda n: forth * n)
            else:
                node = max(room, key=lambda n: (room[n], -forth * n))
                if not room[node]:
                    raise RuntimeError(f"{rest} GPUs of {size} are missing; given out twice")
            take = min(rest, room[node])
            put(node, take)
            rest -= take
    return dict(sorted(placed.items()))
