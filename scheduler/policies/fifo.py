"""The baseline: gangs in order of submission, at their base size, on training pools only."""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.draft import Draft, Why
from scheduler.policies.gang import Backfill, Claim, start
from scheduler.policies.interface import Floats, Ints, Kind, Plan, Snapshot
from scheduler.policies.waits import backfilled, waits


@dataclass(frozen=True, slots=True)
class Fifo:
    """First in, first out, with backfill (policies.md 1).

    Order is priority, then submission. A gang gets its smallest allowed size and keeps it: a job
    that must have more GPUs allows only that size. Nothing is lent, scaled, moved or preempted.
    A loan that another policy left behind is not ended; jobs on nodes that go back are stopped.
    """

    name: str = "fifo"
    backfill: Backfill = "easy"

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start what fits."""
        draft = Draft(snapshot)
        jobs = snapshot.jobs
        draft.displace()
        draft.floor = np.where(draft.curve.present >= 0, draft.curve.present, draft.floor)
        for job, forced in enumerate(draft.forced):
            if forced:
                draft.floor[job] = draft.curve.base[job]
        draft.count_slack()
        base: list[int] = draft.curve.sizes[draft.curve.base].tolist()
        work: list[float] = draft.curve.work_s.tolist()
        order = sorted(draft.waiting(), key=lambda job: (-int(jobs.priority[job]), job))
        claims = [Claim(job, base[job], work[job] / base[job]) for job in order]

        def speeds(job: int, slack: Ints) -> Floats:
            return np.where(draft.kind == Kind.TRAINING, draft.speeds(job, slack), 0.0)

        outcomes = start(
            draft.now_s, claims, draft.slack.copy(), speeds, draft.holders(), self.backfill
        )
        for outcome in outcomes:
            if outcome.site >= 0:
                passes = outcome.rule == "backfilled"
                why = backfilled(draft, outcome.behind) if passes else Why("fifo.order")
                draft.put(outcome.job, outcome.site, why)
        by_job = {outcome.job: outcome for outcome in outcomes}
        return draft.finish(draft.floor, waits(draft, by_job, base_only=True))
