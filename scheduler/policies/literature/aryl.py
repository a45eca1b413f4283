"""Aryl, later Lyra (EuroSys '23): lends whole inference servers, and scales jobs into them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from scheduler.policies.interface import Ints, Kind, Plan, Snapshot, Target
from scheduler.policies.parts.capacity import Capacity
from scheduler.policies.parts.draft import Draft
from scheduler.policies.parts.gang import Outcome
from scheduler.policies.parts.knapsack import exact
from scheduler.policies.parts.lending import lend_and_reclaim
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.parts.victims import RULES, Rule
from scheduler.policies.parts.waits import waits


@dataclass(frozen=True, slots=True)
class Aryl:
    """Capacity loaning with few preemptions, then two phases of sizes (policies.md 9).

    Loans: an inference pool lends what its forecast peak and headroom leave; a reclaim returns
    empty servers, then those with workers above their jobs' base, then those that cost least by
    any of three rules: `fraction` (the paper's: a job counts in equal parts at each of its
    servers), `count`, and `ratio` (what falls per server that comes free); the cheapest plan wins.

    Phase 1: all waiting jobs at their base size, the shortest at that size first, skipping those
    that do not fit; running jobs keep their base, and give up what they have above it.
    Phase 2: what is left, by a knapsack of completion time saved, T(base) - T(size), per pool.

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
    interval_s: float = 60.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide loans, sizes and pools of all jobs."""
        draft = _Grouped(snapshot)
        if not len(draft.curve.sizes) or not draft.capacity.site_pool:
            return Plan()
        draft.loans = lend_and_reclaim(snapshot, self.loans, self.rules, edge=False)
        homeless = draft.displace()
        draft.count_slack()
        outcomes = _start_bases(draft, homeless)
        return draft.finish(self._grow(draft), waits(draft, outcomes))

    def _grow(self, draft: Draft) -> Ints:
        """Phase 2: (n,) levels."""
        jobs, curve = draft.snapshot.jobs, draft.curve
        site, was = np.array(draft.site, dtype=np.int64), np.array(draft.was, dtype=np.int64)
        held = (site >= 0) & (site == was) & ~np.array(draft.forced, dtype=np.bool_)
        level = np.where(held & draft.edge[site], curve.present, draft.floor)
        fresh = held & (draft.now_s - jobs.changed_s < self.interval_s)
        most = np.where(fresh, np.maximum(curve.present, draft.floor), len(curve.sizes))
        able = curve.allowed & (np.arange(len(curve.sizes))[None, :] <= most[:, None])
        with np.errstate(divide="ignore", invalid="ignore"):
            run_s = np.where(able, jobs.remaining_steps[:, None] / curve.rate, np.inf)
        for at in range(len(draft.slack)):
            rows = np.flatnonzero(site == at)
            if draft.kind[at] == Kind.EDGE or draft.slack[at] <= 0 or not len(rows):
                continue
            value = -run_s[rows] / draft.pace(rows, at)[:, None]
            chosen = exact(curve.sizes, value, draft.floor[rows], int(draft.slack[at]))
            level[rows] = chosen.level
        return level


def _start_bases(draft: Draft, homeless: Sequence[int]) -> dict[int, Outcome]:
    """Phase 1: find a pool for the base of every job that fits; return what became of each."""
    jobs, curve = draft.snapshot.jobs, draft.curve
    waiting = sorted({*draft.waiting(), *(job for job in homeless if draft.site[job] < 0)})
    run_s = curve.work_s / curve.sizes[curve.base]
    base: list[int] = curve.sizes[curve.base].tolist()
    elastic: list[bool] = (curve.top > curve.base).tolist()
    fits = draft.able(np.arange(len(jobs.ids)))
    sites = np.flatnonzero(~draft.edge).tolist()
    speed = draft.snapshot.pools.speed[draft.pool]
    liked = {
        kind: sorted(sites, key=lambda at: (draft.kind[at] != kind, -speed[at], at))
        for kind in (Kind.TRAINING, Kind.INFERENCE)
    }
    slack: list[int] = draft.slack.tolist()
    found: dict[int, Outcome] = {}
    for job in sorted(waiting, key=lambda job: (float(run_s[job]), job)):
        order = liked[Kind.INFERENCE if elastic[job] else Kind.TRAINING]
        able = [at for at in order if fits[job, at]]
        offered = max((slack[at] for at in able), default=-1)
        site = next((at for at in able if slack[at] >= base[job]), -1)
        found[job] = Outcome(job, site, "start" if site >= 0 else "capacity", -1, offered)
        if site >= 0:
            slack[site] -= base[job]
            draft.put(job, site)
    return found


class _Grouped(Draft):
    """A draft that keeps bases and extra workers apart on loaned servers."""

    def _place(self, job: int, level: int, old: Mapping[int, int]) -> Target | None:
        site = self.site[job]
        if site < 0 or self.kind[site] != Kind.INFERENCE:
            return super()._place(job, level, old)
        base = self.size_at(job, int(self.curve.base[job]))
        kept = old if site == self.was[job] else {}
        placement = group(self.capacity, site, base, self.size_at(job, level), kept)
        self.capacity.take(job, placement)
        node_ids, pools = self.snapshot.nodes.ids, self.snapshot.pools
        placed = tuple((node_ids[node], gpus) for node, gpus in placement.items())
        return Target(pools.ids[self.capacity.site_pool[site]], placed)


def group(
    capacity: Capacity, site: int, base: int, size: int, held: Mapping[int, int]
) -> dict[int, int]:
    """Find nodes on loaned servers: bases from the first on, extra workers from the last on.

    Args:
        capacity: What is free; the job has given up its GPUs.
        site: The pool; must have `size` free GPUs.
        base: GPUs without which the job stops.
        size: GPUs it shall have.
        held: What it had, node -> GPUs; kept, but for the last nodes where it shrinks.

    Returns:
        node -> GPUs, by node.

    Raises:
        RuntimeError: the pool has fewer free GPUs; a bug of the policy.
    """
    free = {node: capacity.free[node] for node in capacity.members[site].tolist()}
    placed: dict[int, int] = {}

    def put(node: int, gpus: int) -> None:
        if gpus > 0:
            placed[node] = placed.get(node, 0) + gpus
            free[node] -= gpus

    for node in sorted(held):
        put(node, min(held[node], free.get(node, 0), size - sum(placed.values())))
    for target, forth in ((base, 1), (size, -1)):
        rest = target - sum(placed.values())
        while rest > 0:
            fits = [node for node in free if free[node] >= rest]
            if fits:
                node = min(fits, key=lambda n: forth * n)
            else:
                node = max(free, key=lambda n: (free[n], -forth * n))
                if not free[node]:
                    raise RuntimeError(f"{rest} GPUs of {size} are missing; given out twice")
            take = min(rest, free[node])
            put(node, take)
            rest -= take
    return dict(sorted(placed.items()))
