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
from scheduler.policies.flow import FlowOptions, flow, is_plain
from scheduler.policies.interface import Bools, Figure, Floats, Ints, Plan, Snapshot
from scheduler.policies.moves import MoveOptions, move
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.draft import Draft
from scheduler.policies.parts.elastic import ElasticOptions, settle, weights, worth
from scheduler.policies.parts.gang import Backfill, Claim, Outcome, make_room, start
from scheduler.policies.parts.lending import lend_and_reclaim
from scheduler.policies.parts.loans import LoanOptions, Loans
from scheduler.policies.parts.waits import backfilled, waits
from scheduler.policies.ranges import Positive
from scheduler.policies.timely import TimelyOptions, has_deadlines, timely

#: (job, slack of each site) -> how fast it would run in each.
SpeedOf = Callable[[int, Ints], Floats]


@dataclass(frozen=True, slots=True)
class Tide:
    """Capacity loaning, elastic sizes, deadlines and edge offload in one plan.

    Where one training pool is all there is and nobody has priority, any job may be scaled and
    stopped: `flow` shares it for the least mean completion time, `timely` for the most deadlines,
    also with edge servers beside it.

    Elsewhere jobs have rights: a gang that runs keeps its base size, but for a deadline, a reclaim
    or the edge. In order: loans, minimum satisfactory shares, the edge, waiting gangs at their
    base, the rest by marginal return, moves that pay. Of waiting gangs, deadlines that can be made
    go first, the nearest before others. The rest go by priority; among equals first those whose
    node went back, then any that have waited `starving_s`, by age, then the shortest at base size.
    """

    name: str = "tide"
    loans: LoanOptions = field(default_factory=LoanOptions)
    deadlines: DeadlineOptions = field(default_factory=DeadlineOptions)
    elastic: ElasticOptions = field(default_factory=ElasticOptions)
    moves: MoveOptions = field(default_factory=MoveOptions)
    #: How one pool of best-effort training is shared; None: as any other, by right.
    flow: FlowOptions | None = field(default_factory=FlowOptions)
    #: How one such pool, and the edge, is shared if some jobs have deadlines; None: likewise.
    timely: TimelyOptions | None = field(default_factory=TimelyOptions)
    backfill: Backfill = "easy"
    starving_s: Positive = 3600.0
    aging: float = 5.0  #: priority that a gang gains with every `starving_s` of waiting.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide sites and sizes of all jobs, and which nodes change hands."""
        if self.timely is not None and has_deadlines(snapshot):
            return timely(snapshot, self.timely, self._loans(snapshot))
        if self.flow is not None and is_plain(snapshot):
            return flow(snapshot, self.flow)
        draft = Draft(snapshot)
        if not len(draft.curve.sizes) or not draft.capacity.site_pool:
            return Plan()
        draft.loans = lend_and_reclaim(snapshot, self.loans)
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

    def _loans(self, snapshot: Snapshot) -> Loans | None:
        """Decide which nodes change hands, if there are lenders."""
        if not snapshot.lenders or not len(snapshot.jobs.sizes):
            return None
        return lend_and_reclaim(snapshot, self.loans)

    def _start(self, draft: Draft, timed: Guarantee, homeless: list[int]) -> dict[int, Outcome]:
        """Find a site for every gang that may start; returns what became of each."""
        waiting = np.array(sorted([*draft.waiting(), *homeless]), dtype=np.int64)
        waiting = waiting[draft.site[waiting] < 0]
        if not len(waiting):
            return {}
        curve = draft.curve
        base = curve.sizes[curve.base]
        run_s = curve.work_s / base
        able = draft.able(waiting)

        def claims(rows: Ints) -> list[Claim]:
            return list(map(Claim, rows.tolist(), base[rows].tolist(), run_s[rows].tolist()))

        outcomes: dict[int, Outcome] = {}

        def cloud(job: int, slack: Ints) -> Floats:
            return np.where(draft.edge, 0.0, draft.speeds(job, slack))

        def accept(found: list[Outcome], rule: str) -> None:
            outcomes.update((outcome.job, outcome) for outcome in found)
            for outcome in found:
                if outcome.site >= 0:
                    lost_node = draft.was[outcome.job] >= 0  # and that is why it moves
                    passes = rule == "gang.base" and outcome.rule == "backfilled"
                    why = backfilled(draft, outcome.behind) if passes else Because(rule)
                    draft.put(outcome.job, outcome.site, None if lost_node else why)

        # Deadlines that can be made come first; the edge is for `offload` to give them.
        in_time = np.zeros(len(draft.site), dtype=np.bool_)
        first = timed.jobs[timed.satisfied]
        in_time[first] = True
        first = first[draft.site[first] < 0]
        if len(first):
            there = able[waiting.searchsorted(first)] & ~draft.edge
            asked, slack = claims(first), draft.slack.copy()
            found = start(draft.now_s, asked, slack, cloud, draft.holders, "fit_first", able=there)
            accept(found, "gang.deadline")
            for claim, outcome in zip(asked, found, strict=True):
                if outcome.site >= 0:
                    continue
                share = int(timed.share[timed.jobs == claim.job][0])
                if self._preempt(draft, replace(claim, gpus=max(claim.gpus, share)), cloud):
                    outcomes[outcome.job] = replace(outcome, site=int(draft.site[outcome.job]))

        rest = waiting[draft.site[waiting] < 0]
        if not len(rest):
            return outcomes
        rest = self._in_order(draft, in_time[rest], rest, run_s[rest])
        may, slack = able[waiting.searchsorted(rest)], draft.slack.copy()
        how = draft.speeds, draft.holders, self.backfill
        found = start(draft.now_s, claims(rest), slack, *how, able=may, pace=draft.pace)
        accept(found, "gang.base")
        return outcomes

    def _in_order(self, draft: Draft, in_time: Bools, rows: Ints, run_s: Floats) -> Ints:
        """Sort waiting jobs by what goes first, as the class says."""
        jobs = draft.snapshot.jobs
        waited_s = draft.now_s - jobs.waiting_since_s[rows]
        starves = waited_s >= self.starving_s
        keys = (
            rows,
            np.where(starves, -waited_s, run_s),
            ~starves,
            np.where(in_time, jobs.deadline_s[rows], 0.0),
            ~in_time,
            draft.was[rows] < 0,  # those that lost their node were running
            -(jobs.priority[rows] + self.aging * (waited_s // self.starving_s)),
        )
        return rows[np.lexsort(keys)]

    def _preempt(self, draft: Draft, claim: Claim, cloud: SpeedOf) -> bool:
        """Stop best-effort jobs for a gang that must start now, if it then fits."""
        jobs, curve = draft.snapshot.jobs, draft.curve
        best: tuple[float, int, list[int]] | None = None
        cloud_sites = np.flatnonzero(~draft.edge).tolist()
        hasty = [site for site in cloud_sites if urgent(draft, claim.job, site, self.deadlines)]
        if not hasty:
            return False
        speed = cloud(claim.job, draft.slack)
        for site in hasty:
            if speed[site] <= 0:
                continue
            rows = np.array(draft.residents(site), dtype=np.int64)
            may = (draft.was[rows] >= 0) & np.isinf(jobs.deadline_s[rows])
            rows = rows[may & (jobs.priority[rows] <= jobs.priority[claim.job])]
            rate = np.maximum(curve.rate[rows, np.maximum(curve.present[rows], 0)], 1e-12)
            lost_s = jobs.checkpoint_age_steps[rows] / rate + curve.change_s[rows]
            costs = (lost_s * jobs.size[rows]).tolist()
            gives = curve.sizes[draft.floor[rows]].tolist()
            holders = list(zip(costs, rows.tolist(), gives, strict=True))
            victims = make_room(claim.gpus, int(draft.slack[site]), holders)
            cost = sum(cost for cost, job, _ in holders if job in victims)
            if victims and (best is None or cost < best[0]):
                best = (cost, site, victims)
        if best is None:
            return False
        for victim in best[2]:
            why = Because(
                "gang.deadline", draft.names([claim.job]), (Figure("lost_gpu_s", best[0]),)
            )
            draft.put(victim, -1, why)
        draft.put(claim.job, best[1], Because("gang.preempts"))
        return True

    def _size(self, draft: Draft) -> Ints:
        """Share out what every site has left, by marginal return."""
        jobs, curve = draft.snapshot.jobs, draft.curve
        site = draft.site
        stays = (site >= 0) & (site == draft.was) & ~draft.forced
        settled = stays & (draft.now_s - jobs.changed_s < self.elastic.interval_s)
        cap = np.where(settled, np.maximum(curve.present, draft.floor), curve.top)
        level = draft.floor.copy()
        rows = ((site >= 0) & (cap > level) & (draft.slack > 0)[site]).nonzero()[0]
        if not len(rows):
            return level
        live = curve.runnable & (jobs.remaining_steps > 0)
        weight = np.zeros(len(site))
        weight[live] = weights(curve.work_s[live], self.elastic)
        some = curve.of(rows)
        some = replace(some, present=np.where(stays[rows], some.present, -1))
        value = worth(some, weight[rows], self.elastic)
        for at in np.unique(site[rows]).tolist():
            mine = (site[rows] == at).nonzero()[0]
            who = rows[mine]
            level[who] = settle(
                curve.sizes,
                value[mine],
                some.present[mine],
                level[who],
                cap[who],
                int(draft.slack[at]),
                settled[who],
                self.elastic,
            )
        return level
