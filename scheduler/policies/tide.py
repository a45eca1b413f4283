"""The default policy: lends with the tide, and gives each GPU to the job it helps most.

In order: loans; jobs on nodes that go back; deadlines and the edge; waiting gangs at their base
size; what is left by marginal return; moves that pay; placement. Free GPUs go first, then those
that elastic jobs hold above their base, then jobs are moved, and only then preempted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler.policies.deadlines import (
    DeadlineOptions,
    Guarantee,
    guarantee,
    hold,
    promise,
    urgent,
)
from scheduler.policies.draft import Draft, Why
from scheduler.policies.elastic import ElasticOptions, settle, weights, worth
from scheduler.policies.gang import Backfill, Claim, Outcome, make_room, start
from scheduler.policies.interface import Figure, Floats, Ints, Kind, Plan, Snapshot
from scheduler.policies.lending import lend_and_reclaim
from scheduler.policies.loans import LoanOptions
from scheduler.policies.moves import MoveOptions, move
from scheduler.policies.waits import backfilled, waits

#: (job, slack of each site) -> how fast it would run in each.
SpeedOf = Callable[[int, Ints], Floats]


@dataclass(frozen=True, slots=True)
class Tide:
    """Capacity loaning, elastic sizes, deadlines and edge offload in one plan.

    Of waiting gangs, deadlines that can be made go first, the nearest before others. The rest go
    by priority; among equals first those whose node went back, then any that have waited
    `starving_s`, by age, then the shortest at base size.
    """

    name: str = "tide"
    loans: LoanOptions = field(default_factory=LoanOptions)
    deadlines: DeadlineOptions = field(default_factory=DeadlineOptions)
    elastic: ElasticOptions = field(default_factory=ElasticOptions)
    moves: MoveOptions = field(default_factory=MoveOptions)
    backfill: Backfill = "easy"
    starving_s: float = 3600.0
    aging: float = 5.0  #: priority that a gang gains with every `starving_s` of waiting.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide sites and sizes of all jobs, and which nodes change hands."""
        draft = Draft(snapshot)
        if not len(draft.curve.sizes) or not draft.capacity.site_pool:
            return Plan()
        lend_and_reclaim(draft, self.loans)
        homeless = draft.displace()
        draft.count_slack()
        timed = guarantee(draft, homeless, self.deadlines)
        settled = draft.now_s - snapshot.jobs.changed_s < self.elastic.interval_s
        promise(draft, timed, settled)
        draft.promised = draft.floor.copy()
        outcomes = self._start(draft, timed, homeless)
        hold(draft, timed, settled)
        level = self._size(draft)
        move(draft, level, self.moves)
        return draft.finish(level, waits(draft, outcomes))

    def _start(self, draft: Draft, timed: Guarantee, homeless: list[int]) -> dict[int, Outcome]:
        """Find a site for every gang that may start; returns what became of each."""
        waiting = sorted([*draft.waiting(), *(job for job in homeless if draft.site[job] < 0)])
        waiting = [job for job in waiting if draft.site[job] < 0]
        if not waiting:
            return {}
        jobs, curve = draft.snapshot.jobs, draft.curve
        base: list[int] = curve.sizes[curve.base].tolist()
        run_s: list[float] = (curve.work_s / curve.sizes[curve.base]).tolist()
        claim = {job: Claim(job, base[job], run_s[job]) for job in waiting}
        outcomes: dict[int, Outcome] = {}

        def cloud(job: int, slack: Ints) -> Floats:
            return np.where(draft.kind != Kind.EDGE, draft.speeds(job, slack), 0.0)

        def accept(found: list[Outcome], rule: str) -> None:
            for outcome in found:
                outcomes[outcome.job] = outcome
                if outcome.site >= 0:
                    lost_node = draft.was[outcome.job] >= 0  # and that is why it moves
                    passes = rule == "gang.base" and outcome.rule == "backfilled"
                    why = backfilled(draft, outcome.behind) if passes else Why(rule)
                    draft.put(outcome.job, outcome.site, None if lost_node else why)

        # Deadlines that can be made come first; the edge is for `offload` to give them.
        first = [claim[job] for job in timed.jobs if job in claim and timed.satisfied[job]]
        if first:
            found = start(draft.now_s, first, draft.slack.copy(), cloud, [], "fit_first")
            accept(found, "gang.deadline")
            for outcome in found:
                if outcome.site >= 0:
                    continue
                need = max(base[outcome.job], timed.share[outcome.job])
                if self._preempt(draft, replace(claim[outcome.job], gpus=need), cloud):
                    outcomes[outcome.job] = replace(outcome, site=draft.site[outcome.job])

        def urgency(job: int) -> tuple[float, ...]:
            in_time = timed.satisfied.get(job, False)
            waited_s = draft.now_s - float(jobs.waiting_since_s[job])
            aged = self.aging * (waited_s // self.starving_s)
            return (
                -(float(jobs.priority[job]) + aged),
                float(draft.was[job] < 0),  # those that lost their node were running
                0.0 if in_time else 1.0,
                float(jobs.deadline_s[job]) if in_time else 0.0,
                0.0 if waited_s >= self.starving_s else 1.0,
                -waited_s if waited_s >= self.starving_s else run_s[job],
                float(job),
            )

        rest = sorted((job for job in waiting if draft.site[job] < 0), key=urgency)
        holders = draft.holders()
        late = [claim[job] for job in rest]
        accept(
            start(draft.now_s, late, draft.slack.copy(), draft.speeds, holders, self.backfill),
            "gang.base",
        )
        return outcomes

    def _preempt(self, draft: Draft, claim: Claim, cloud: SpeedOf) -> bool:
        """Stop best-effort jobs for a gang that must start now, if it then fits."""
        jobs, curve = draft.snapshot.jobs, draft.curve
        best: tuple[float, int, list[int]] | None = None
        speed = cloud(claim.job, draft.slack)
        for site in np.flatnonzero(speed > 0).tolist():
            if not urgent(draft, claim.job, site, self.deadlines):
                continue
            holders = []
            for job in draft.residents(site):
                if draft.was[job] < 0 or np.isfinite(jobs.deadline_s[job]):
                    continue
                if jobs.priority[job] > jobs.priority[claim.job]:
                    continue
                rate = max(float(curve.rate[job, max(curve.present[job], 0)]), 1e-12)
                lost_s = float(jobs.checkpoint_age_steps[job]) / rate + float(curve.change_s[job])
                gpus = draft.size_at(job, int(draft.floor[job]))
                holders.append((lost_s * float(jobs.size[job]), job, gpus))
            victims = make_room(claim.gpus, int(draft.slack[site]), holders)
            cost = sum(cost for cost, job, _ in holders if job in victims)
            if victims and (best is None or cost < best[0]):
                best = (cost, site, victims)
        if best is None:
            return False
        for victim in best[2]:
            why = Why("gang.deadline", draft.names([claim.job]), (Figure("lost_gpu_s", best[0]),))
            draft.put(victim, -1, why)
        draft.put(claim.job, best[1], Why("gang.preempts"))
        return True

    def _size(self, draft: Draft) -> Ints:
        """Share out what every site has left, by marginal return."""
        jobs, curve = draft.snapshot.jobs, draft.curve
        site = np.array(draft.site, dtype=np.int64)
        stays = (
            (site >= 0) & (site == np.array(draft.was)) & ~np.array(draft.forced, dtype=np.bool_)
        )
        present = np.where(stays, curve.present, -1)
        live = curve.runnable & (jobs.remaining_steps > 0)
        weight = np.zeros(len(site))
        weight[live] = weights(curve.work_s[live], self.elastic)
        value = worth(replace(curve, present=present), weight, self.elastic)
        settled = stays & (draft.now_s - jobs.changed_s < self.elastic.interval_s)
        level = draft.floor.copy()
        for at in range(len(draft.slack)):
            if draft.slack[at] <= 0:
                continue
            rows = np.flatnonzero(site == at)
            if not len(rows):
                continue
            cap = np.where(
                settled[rows], np.maximum(present[rows], draft.floor[rows]), curve.top[rows]
            )
            level[rows] = settle(
                curve.sizes,
                value[rows],
                present[rows],
                draft.floor[rows],
                cap,
                int(draft.slack[at]),
                settled[rows],
                self.elastic,
            )
        return level
