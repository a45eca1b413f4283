"""The baseline: gangs in order of submission, at one size, on training pools only."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scheduler.policies.interface import Floats, Ints, Jobs, Kind, Phase, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.draft import Draft
from scheduler.policies.parts.gang import Backfill, Claim, Outcome, start
from scheduler.policies.parts.reservations import start_conservatively
from scheduler.policies.parts.waits import backfilled, waits


@dataclass(frozen=True, slots=True)
class Fifo:
    """First in, first out, with backfill (policies.md 1).

    Order is priority, then submission. A gang gets one size and keeps it: the smallest allowed, or
    what was `requested` (else the largest allowed below, else the smallest). Nothing is lent,
    scaled, moved or preempted. A loan that another policy left behind is not ended; jobs on nodes
    that go back are stopped.

    Behind a gang that does not fit, `strict` lets nobody pass; `fit_first` whoever fits, until that
    gang has waited `patience_s`; `easy` whoever does not delay that gang; `conservative` whoever
    delays no gang before it. The last two go by the remaining times.
    """

    name: str = "fifo"
    backfill: Backfill | Literal["conservative"] = "easy"
    sizes: Literal["smallest", "requested"] = "smallest"
    patience_s: float = 3600.0  #: no value is published; ours.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start what fits."""
        if self.sizes == "requested":
            snapshot = replace(snapshot, jobs=_fixed(snapshot.jobs))
        draft = Draft(snapshot)
        jobs = snapshot.jobs
        draft.displace()
        draft.floor = np.where(draft.curve.present >= 0, draft.curve.present, draft.floor)
        draft.floor = np.where(draft.forced, draft.curve.base, draft.floor)
        draft.count_slack()
        base: list[int] = draft.curve.sizes[draft.curve.base].tolist()
        work: list[float] = draft.curve.work_s.tolist()
        order = sorted(draft.waiting(), key=lambda job: (-int(jobs.priority[job]), job))
        claims = [Claim(job, base[job], work[job] / base[job]) for job in order]
        outcomes = self._start(draft, claims)
        for outcome in outcomes:
            if outcome.site >= 0:
                passes = outcome.rule == "backfilled"
                why = backfilled(draft, outcome.behind) if passes else Because("fifo.order")
                draft.put(outcome.job, outcome.site, why)
        by_job = {outcome.job: outcome for outcome in outcomes}
        return draft.finish(draft.floor, waits(draft, by_job, base_only=True))

    def _start(self, draft: Draft, claims: list[Claim]) -> list[Outcome]:
        def speeds(job: int, slack: Ints) -> Floats:
            return np.where(draft.kind == Kind.TRAINING, draft.speeds(job, slack), 0.0)

        now_s = draft.now_s
        rows = np.array([claim.job for claim in claims], dtype=np.int64)
        able = draft.able(rows) & (draft.kind == Kind.TRAINING)
        if self.backfill == "conservative":
            holders = [draft.holders(site) for site in range(len(draft.slack))]
            slack = draft.slack.copy()
            return start_conservatively(now_s, claims, slack, speeds, holders, pace=draft.pace)
        slack, how = draft.slack.copy(), (speeds, draft.holders)
        outcomes = start(now_s, claims, slack, *how, self.backfill, True, able, draft.pace)
        if self.backfill == "fit_first":
            head = next((o.job for o in outcomes if o.rule == "capacity" and o.offered >= 0), -1)
            waited_s = now_s - draft.snapshot.jobs.waiting_since_s[head] if head >= 0 else 0.0
            if waited_s > self.patience_s:
                slack = draft.slack.copy()
                return start(now_s, claims, slack, *how, "strict", able=able)
        return outcomes


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
