"""The baseline: gangs in order of submission, at one size, on training pools only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scheduler.policies.interface import Figure, Ints, Jobs, Kind, Phase, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.changes import waits
from scheduler.policies.parts.draft import Draft, begin
from scheduler.policies.parts.gang import Backfill, Claim, Holder, start
from scheduler.policies.parts.lending import reclaim_only
from scheduler.policies.parts.placement import finish


@dataclass(frozen=True, slots=True)
class Fifo:
    """First in, first out, with backfill.

    Order is priority, then submission. A gang gets one size and keeps it: the smallest allowed, or
    what was `requested` (else the largest allowed below, else the smallest); `tidegate simulate`
    takes `sizes=requested` where its line does not say `sizes`. Nothing is lent, scaled, moved or
    preempted. Loans that another policy made end when their owners need the nodes; jobs there keep
    their smallest size elsewhere in their pool, or are stopped.

    Behind a gang that does not fit, `strict` lets nobody pass; `easy` whoever does not delay that
    gang, by the remaining times.
    """

    name: str = "fifo"
    backfill: Backfill = "easy"
    sizes: Literal["smallest", "requested"] = "smallest"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start what fits."""
        if self.sizes == "requested":
            snapshot = replace(snapshot, jobs=_fixed(snapshot.jobs))
        draft = begin(snapshot, reclaim_only(snapshot))
        jobs, curve, now_s = snapshot.jobs, draft.curve, snapshot.now_s
        keeps = (curve.present >= 0) & ~draft.forced
        draft.floor = np.where(keeps, curve.present, curve.base)
        base = curve.sizes[curve.base]
        pace = np.where(draft.able((Kind.TRAINING,)), jobs.affinity, 0.0)

        def holders(pool: int) -> list[Holder]:
            # Those between two allocations, too: their GPUs come free when they end.
            moves = (jobs.phase == Phase.MOVING) & (jobs.pool == pool)
            rows = (((draft.pool == pool) & (draft.was >= 0)) | moves).nonzero()[0]
            rate = curve.rate[rows, np.maximum(curve.present[rows], 0)]
            speed = np.maximum(rate * jobs.affinity[rows, pool], 1e-12)
            ends_s = now_s + np.where(jobs.leaves[rows], 0.0, jobs.remaining_steps[rows] / speed)
            gpus = np.where(moves[rows], jobs.size[rows], curve.sizes[draft.floor[rows]])
            return list(map(Holder, ends_s.tolist(), rows.tolist(), gpus.tolist()))

        def speeds(job: int, room: Sequence[int]) -> list[float]:
            """At the largest size with room there, though it starts at the smallest."""
            level = curve.sizes.searchsorted(room, side="right") - 1
            found: list[float] = (
                curve.rate[job, np.maximum(level, curve.base[job])] * pace[job]
            ).tolist()
            return found

        rows = _turns(draft)
        run_s = curve.work_s[rows] / base[rows]
        columns = (rows, base[rows], run_s, pace[rows])
        claims = list(map(Claim, *(column.tolist() for column in columns)))
        room: list[int] = draft.free_gpus().tolist()
        outcomes = start(now_s, claims, room, holders, self.backfill, speeds)
        for one in outcomes:
            if one.pool >= 0:
                draft.pool[one.job] = one.pool
                passes = one.rule == "backfilled"
                draft.why[one.job] = _passes(draft, one.behind) if passes else Because("fifo.order")
        by_job = {one.job: one for one in outcomes}
        told = waits(draft, by_job, "free_gpus")
        return finish(draft, draft.floor, told)

    def queue(self, snapshot: Snapshot) -> list[str]:
        """Name the waiting jobs in the order of their turns."""
        draft = begin(snapshot, reclaim_only(snapshot))
        return [snapshot.jobs.ids[job] for job in _turns(draft).tolist()]


def _turns(draft: Draft) -> Ints:
    """Order the gangs that may start: by priority, then submission."""
    rows = draft.waiting().nonzero()[0]
    found: Ints = rows[np.lexsort((rows, -draft.seen.jobs.priority[rows]))]
    return found


def _passes(draft: Draft, head: int) -> Because:
    """Explain a start that passes a gang ahead of it.

    The gang ahead loses nothing by it, so it is not in `lost_to`: a figure names it.
    """
    jobs = draft.seen.jobs
    gpus = int(draft.curve.sizes[draft.curve.base[head]])
    figures = (
        Figure("head_gpus", gpus),
        Figure("head_waited_s", draft.seen.now_s - float(jobs.waiting_since_s[head])),
        Figure(f"gpus_first_wanted_by:{jobs.ids[head]}", gpus),
    )
    return Because("gang.backfilled", (), figures)


def _fixed(jobs: Jobs) -> Jobs:
    """Return the jobs with only the size they hold, or were asked for, allowed."""
    allowed = jobs.rate > 0
    below = allowed & (jobs.sizes <= jobs.requested[:, None])
    last = allowed.shape[1] - 1 - below[:, ::-1].argmax(axis=1)
    level = np.where(below.any(axis=1), last, allowed.argmax(axis=1))
    present = np.minimum(jobs.sizes.searchsorted(jobs.size), len(jobs.sizes) - 1)
    holds = (jobs.phase != Phase.WAITING) & (jobs.sizes[present] == jobs.size)
    only = np.where(holds, present, level)[:, None] == np.arange(len(jobs.sizes))
    return replace(jobs, rate=np.where(only, jobs.rate, 0.0))
