"""A plan being made: which site and size each job shall have, and why.

The parts of a policy fill it in, and `finish` places the gangs and writes the plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.capacity import Capacity
from scheduler.policies.curves import Curves, curves, level_within
from scheduler.policies.gang import Holder
from scheduler.policies.interface import (
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    LoanPhase,
    Need,
    Phase,
    Plan,
    Reason,
    Snapshot,
    Target,
)
from scheduler.policies.placement import place

#: Speed preference among sites that are otherwise as fast: training pools first.
_PREFERENCE = {Kind.TRAINING: 1.0, Kind.INFERENCE: 0.99, Kind.EDGE: 0.98}
#: As many names as a reason lists; the engine stores a reason again when they change.
NAMES_MOST = 3


@dataclass(slots=True)
class Why:
    """What decided a job's change; completed by `Draft.finish`."""

    rule: str
    lost_to: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    needs: tuple[Need, ...] = ()


@dataclass(slots=True)
class Loans:
    """Nodes that change hands in this plan."""

    lend: list[int] = field(default_factory=list)
    reclaim: dict[int, float] = field(default_factory=dict)  #: node -> due moment.
    #: node -> its lender, of all that close, also those already RECLAIMING.
    owner: dict[int, str] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)


class Draft:
    """Working state of one plan. n jobs, s sites; levels are indices into `curve.sizes`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.now_s = snapshot.now_s
        self.capacity = Capacity(snapshot)
        self.curve: Curves = curves(snapshot.jobs)
        self.loans = Loans()
        self.movable = list(self.capacity.movable)
        present: list[int] = self.curve.present.tolist()
        for job, level in enumerate(present):
            if self.movable[job] and level < 0:  # holds a size that its curve does not allow
                self.movable[job] = False
        #: (n,) site each job was in, and shall be in; -1: none.
        self.was = [
            self.capacity.site_of_job(j) if able else -1 for j, able in enumerate(self.movable)
        ]
        self.site = list(self.was)
        #: (n,) level below which a job must not go while it runs.
        self.floor: Ints = self.curve.base.copy()
        #: (n,) must change, because a node it holds closes.
        self.forced = [False] * len(present)
        self.why: dict[int, Why] = {}
        #: Why a floor is above the base, of jobs with a deadline.
        self.shares: dict[int, Why] = {}
        #: (n,) floors that waiting gangs had to respect.
        self.promised: Ints = self.floor
        self.slack: Ints = np.zeros(len(self.capacity.site_pool), dtype=np.int64)
        kinds = self.capacity.kind
        self.kind = np.array(kinds, dtype=np.int64)
        self.speed = np.array(self.capacity.speed, dtype=np.float64)
        self.memory_mib = np.array(self.capacity.memory_mib, dtype=np.float64)
        self.edge = self.kind == Kind.EDGE
        self._any_edge = bool(self.edge.any())
        first = [nodes[0] if nodes else 0 for nodes in self.capacity.site_nodes]
        usable = np.where(snapshot.nodes.usable, snapshot.nodes.gpus, 0)
        self._edge_gpus = usable[first] if self._any_edge else usable[:0]
        self._liking = self.speed * np.array([_PREFERENCE[Kind(kind)] for kind in kinds])

    # --- who is where -------------------------------------------------------------------------

    def waiting(self) -> list[int]:
        """Return the jobs that wait, have a size, and are not backing off."""
        jobs = self.snapshot.jobs
        able = (jobs.phase == Phase.WAITING) & self.curve.runnable
        able &= jobs.backoff_until_s <= self.now_s
        return [int(job) for job in np.flatnonzero(able)]

    def residents(self, site: int) -> list[int]:
        """Return the movable or starting jobs of a site, ascending."""
        return [job for job, at in enumerate(self.site) if at == site]

    def size_at(self, job: int, level: int) -> int:
        """Return GPUs of a level."""
        return int(self.curve.sizes[level])

    def speeds(self, job: int, slack: Ints) -> Floats:
        """(s,) how fast a job could run with each site's slack; its base speed if that is less.

        0 where it does not fit: its memory, an edge it may not use, an edge node too small.
        """
        jobs, curve = self.snapshot.jobs, self.curve
        base = int(curve.base[job])
        level = curve.sizes.searchsorted(slack, side="right") - 1
        able = jobs.memory_mib[job] <= self.memory_mib
        if self._any_edge:
            able &= ~self.edge | (jobs.edge_allowed[job] & (self._edge_gpus >= curve.sizes[base]))
        return np.where(able, curve.rate[job, np.maximum(level, base)] * self._liking, 0.0)

    def count_slack(self) -> None:
        """Count what each site could give with every job at its floor."""
        slack = list(self.capacity.site_free)
        sizes: list[int] = self.curve.sizes[self.floor].tolist()
        for job, site in enumerate(self.site):
            if self.was[job] >= 0:
                for node, gpus in self.capacity.held[job].items():
                    if self.capacity.open[node]:
                        slack[self.was[job]] += gpus
            if site >= 0:
                slack[site] -= sizes[job]
        self.slack = np.array(slack, dtype=np.int64)

    def put(self, job: int, site: int, why: Why | None = None) -> None:
        """Let a job run in a site at its floor; it leaves the one it is in. Slack may go below 0.

        Site -1 takes it off.
        """
        gpus = self.size_at(job, int(self.floor[job]))
        if self.site[job] >= 0:
            self.slack[self.site[job]] += gpus
        if site >= 0:
            self.slack[site] -= gpus
        self.site[job] = site
        if why:
            before = self.why.get(job)
            if before and not why.lost_to:  # it still lost its node to somebody
                why.lost_to = before.lost_to
            self.why[job] = why

    def raise_floor(self, job: int, level: int) -> None:
        """Let a job have at least this level, which its site's slack must allow."""
        more = self.size_at(job, level) - self.size_at(job, int(self.floor[job]))
        if more > 0:
            self.slack[self.site[job]] -= more
            self.floor[job] = level

    def holders(self) -> list[list[Holder]]:
        """Return per site who holds what is not slack, and until when."""
        found: list[list[Holder]] = [[] for _ in self.capacity.site_pool]
        jobs, curve = self.snapshot.jobs, self.curve
        rows = np.arange(len(self.site))
        level = np.maximum(curve.present, 0)
        left_s = jobs.remaining_steps / np.maximum(curve.rate[rows, level], 1e-12)
        left: list[float] = left_s.tolist()
        gpus: list[int] = curve.sizes[self.floor].tolist()
        for job, site in enumerate(self.site):
            if site >= 0 and self.was[job] >= 0:
                end_s = self.now_s + left[job] / self.capacity.speed[site]
                found[site].append(Holder(job, gpus[job], end_s))
        return found

    def names(self, jobs: Iterable[int]) -> tuple[str, ...]:
        """Return the first few names, for `lost_to`."""
        return tuple(self.snapshot.jobs.ids[job] for job in list(jobs)[:NAMES_MOST])

    def in_cloud(self) -> Bools:
        """(n,) jobs that are, or shall be, in a pool that is not an edge pool."""
        site = np.array(self.site, dtype=np.int64)
        found: Bools = (site >= 0) & ~self.edge[np.maximum(site, 0)]
        return found

    # --- nodes that go back -------------------------------------------------------------------

    def displace(self) -> list[int]:
        """Close the nodes that go back; return the jobs that lose their base by it.

        A job that keeps at least its base elsewhere in its pool stays, smaller.
        """
        nodes = self.snapshot.nodes
        loan: list[int] = nodes.loan.tolist()
        for lender in self.snapshot.lenders:
            for node in lender.nodes.tolist():
                if node in self.loans.reclaim or loan[node] == LoanPhase.RECLAIMING:
                    self.loans.owner[node] = lender.id
                    self.capacity.close(node)
        homeless = []
        for job, held in enumerate(self.capacity.held):
            closed = [node for node in held if not self.capacity.open[node]]
            if not closed:
                continue
            if any(node not in self.loans.owner for node in closed):
                self.movable[job] = False  # not usable for another reason: let it be
                self.was[job] = self.site[job] = -1
                continue
            if not self.movable[job]:  # its size is no longer allowed, but here it cannot stay
                self.movable[job] = True
                self.was[job] = self.capacity.site_of_job(job)
            self.forced[job] = True
            kept = sum(gpus for node, gpus in held.items() if self.capacity.open[node])
            owners = sorted({self.loans.owner[node] for node in closed})
            figures = (Figure("kept_gpus", kept),)
            self.why[job] = Why("loans.reclaim", tuple(owners[:NAMES_MOST]), figures)
            if level_within(self.curve, job, kept) >= 0:
                self.site[job] = self.was[job]
                continue
            self.site[job] = -1
            if self.curve.runnable[job]:
                homeless.append(job)
        return homeless

    # --- the plan -----------------------------------------------------------------------------

    def finish(self, level: Ints, waits: Mapping[int, Why]) -> Plan:
        """Place every job that changes, and write the plan.

        Args:
            level: (n,) of jobs that shall run; ignored for others.
            waits: Why each job that waits does so.
        """
        ids = self.snapshot.jobs.ids
        wanted: list[int] = level.tolist()
        sizes: list[int] = self.curve.sizes.tolist()
        changed, old = [], {}
        targets: dict[str, Target | None] = {}
        reasons = list(self.loans.reasons)
        before = [self.capacity.size(job) for job in range(len(ids))]
        for job, site in enumerate(self.site):
            if site < 0 and self.was[job] < 0:
                continue
            if site >= 0 and site == self.was[job] and not self.forced[job]:
                if sizes[wanted[job]] == before[job]:
                    continue
            changed.append(job)
        for job in changed:
            old[job] = self.capacity.give(job)
        # Those that shrink keep what they can first; then the large ones, for whole nodes.
        changed.sort(key=lambda j: (self._grows(j, sizes[wanted[j]], old[j]), -wanted[j], j))
        for job in changed:
            target = self._place(job, wanted[job], old[job])
            if target is not None or self.was[job] >= 0:
                targets[ids[job]] = target
        reasons.extend(
            self._reason(job, before[job], targets[ids[job]], changed, before)
            for job in sorted(changed)
            if ids[job] in targets
        )
        reasons.extend(
            Reason(ids[job], "waits", why.rule, why.figures, why.lost_to, why.needs)
            for job, why in sorted(waits.items())
        )
        node_ids = self.snapshot.nodes.ids
        return Plan(
            targets={job: targets[job] for job in ids if job in targets},
            lend=tuple(node_ids[node] for node in sorted(self.loans.lend)),
            reclaim={node_ids[n]: due for n, due in sorted(self.loans.reclaim.items())},
            reasons=tuple(reasons),
        )

    def _grows(self, job: int, size: int, old: Mapping[int, int]) -> bool:
        stays = self.site[job] == self.was[job]
        return not stays or size > sum(g for n, g in old.items() if self.capacity.open[n])

    def _place(self, job: int, level: int, old: Mapping[int, int]) -> Target | None:
        site = self.site[job]
        if site < 0:
            return None
        prefer = old if site == self.was[job] else {}
        placement = place(self.capacity, site, self.size_at(job, level), prefer)
        if placement is None:
            raise RuntimeError(
                f"job {self.snapshot.jobs.ids[job]} shall get {self.size_at(job, level)} GPUs of "
                f"{self.capacity.site_free[site]} free ones; a policy gave GPUs out twice"
            )
        self.capacity.take(job, placement)
        node_ids = self.snapshot.nodes.ids
        pool = self.snapshot.pools.ids[self.capacity.site_pool[site]]
        return Target(pool, tuple((node_ids[node], gpus) for node, gpus in placement.items()))

    def _reason(
        self,
        job: int,
        before: int,
        target: Target | None,
        changed: Sequence[int],
        sizes_before: Sequence[int],
    ) -> Reason:
        jobs, after = self.snapshot.jobs, target.size if target else 0
        moved = self.site[job] != self.was[job]
        if target is None:
            verb = "preempts"
        elif self.was[job] < 0:
            verb = "starts"
        elif moved or after == before:
            verb = "migrates"
        else:
            verb = "scales_out" if after > before else "scales_in"
        why = self.why.get(job) or Why("elastic.marginal_return")
        floor = self.size_at(job, int(self.floor[job]))
        if verb == "scales_out" and after == floor and job in self.shares:
            why = self.shares[job]
        lost_to = why.lost_to
        if verb == "scales_in" and not lost_to:
            rivals = [
                other
                for other in changed
                if self.site[other] == self.was[job]
                and self.capacity.size(other) > sizes_before[other]
            ]
            lost_to = self.names(sorted(rivals, key=lambda j: (self.was[j] >= 0, j)))
        age_s = float(jobs.rate_age_s[job])
        figures = [Figure("gpus_before", before), Figure("gpus_after", after)]
        size = after or before
        level = int(np.searchsorted(self.curve.sizes, size))
        site = self.site[job] if target else self.was[job]
        rate = float(self.curve.rate[job, level]) * self.capacity.speed[site]
        figures.append(Figure("steps_per_s", rate, age_s))
        figures.append(Figure("left_s", float(jobs.remaining_steps[job]) / max(rate, 1e-12), age_s))
        figures.append(Figure("pause_s", float(self.curve.change_s[job])))
        return Reason(jobs.ids[job], verb, why.rule, (*figures, *why.figures), lost_to, why.needs)
