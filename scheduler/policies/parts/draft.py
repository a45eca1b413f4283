"""A plan being made: which site and size each job shall have, and why.

The parts of a policy fill it in, and `finish` places the gangs and writes the plan.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from scheduler.policies.interface import (
    WAITING,
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    LoanPhase,
    Plan,
    Reason,
    Snapshot,
    Target,
)
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.capacity import Capacity
from scheduler.policies.parts.changes import explain
from scheduler.policies.parts.curves import Curves, curves, level_within
from scheduler.policies.parts.gang import Holder
from scheduler.policies.parts.loans import Loans
from scheduler.policies.parts.placement import place

#: Speed preference among sites that are otherwise as fast: training pools first.
_PREFERENCE = {Kind.TRAINING: 1.0, Kind.INFERENCE: 0.99, Kind.EDGE: 0.98}
#: As many names as a reason lists; the engine stores a reason again when they change.
NAMES_MOST = 3


class Draft:
    """Working state of one plan. n jobs, s sites; levels are indices into `curve.sizes`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.now_s = snapshot.now_s
        self.capacity = Capacity(snapshot)
        self.curve: Curves = curves(snapshot.jobs)
        self.loans = Loans()
        #: node -> its lender, of all that close, also those already RECLAIMING.
        self.owner: dict[int, str] = {}
        #: (n,) may be touched: those that hold a size which their curve does not allow may not,
        #: nor those that are where they could not start.
        self.movable: Bools = self.capacity.movable & (self.curve.present >= 0)
        rows = np.arange(len(self.movable))
        self.movable &= snapshot.jobs.affinity[rows, snapshot.jobs.pool] > 0
        #: (n,) GPUs that those hold which may be touched, and a few more.
        self.held: Ints = np.where(self.capacity.movable, snapshot.jobs.size, 0)
        #: (n,) site each job was in, and shall be in; -1: none.
        self.was: Ints = np.where(self.movable, self.capacity.job_site, -1)
        self.site: Ints = self.was.copy()
        #: (n,) level below which a job must not go while it runs.
        self.floor: Ints = self.curve.base.copy()
        #: (n,) must change, because a node it holds closes.
        self.forced: Bools = np.zeros(len(self.was), dtype=np.bool_)
        self.why: dict[int, Because] = {}
        self.slack: Ints = np.zeros(len(self.capacity.site_pool), dtype=np.int64)
        kinds = self.capacity.kind
        self.kind = np.array(kinds, dtype=np.int64)
        self.pool: Ints = np.array(self.capacity.site_pool, dtype=np.int64)
        self.memory_mib = np.array(self.capacity.memory_mib, dtype=np.float64)
        self.edge = self.kind == Kind.EDGE
        #: (s,) GPUs of an edge site; no limit elsewhere.
        self._most = np.full(len(kinds), np.inf)
        usable = np.where(snapshot.nodes.usable, snapshot.nodes.gpus, 0)
        pools = int((~self.edge).sum())
        alone = [int(nodes[0]) for nodes in self.capacity.members[pools:]]
        self._most[pools:] = usable[np.array(alone, dtype=np.int64)]
        self._preference = np.array([_PREFERENCE[Kind(kind)] for kind in kinds])
        #: (memory, whether it may go to the edge, base, affinity) -> (s,) how much such jobs like
        #: each site, 0 where they may not run.
        self._likings: dict[tuple[float, bool, int, bytes], Floats] = {}

    # --- who is where -------------------------------------------------------------------------

    def waiting(self) -> list[int]:
        """Return the jobs that wait, have a size, and are not backing off."""
        jobs = self.snapshot.jobs
        able = (jobs.phase == WAITING) & self.curve.runnable
        able &= jobs.backoff_until_s <= self.now_s
        found: list[int] = able.nonzero()[0].tolist()
        return found

    def size_at(self, job: int, level: int) -> int:
        """Return GPUs of a level."""
        return int(self.curve.sizes[level])

    def able(self, rows: Ints, sites: Ints | slice = slice(None)) -> Bools:
        """(r, t) sites, of all or of these, where each of r jobs may ever run.

        Not where its affinity is 0, its memory too large, the edge not for it or too small.
        """
        jobs, curve = self.snapshot.jobs, self.curve
        fits = (jobs.affinity[rows] > 0)[:, self.pool[sites]]
        fits &= jobs.memory_mib[rows][:, None] <= self.memory_mib[sites]
        fits &= ~self.edge[sites] | jobs.edge_allowed[rows][:, None]
        found: Bools = fits & (curve.sizes[curve.base[rows]][:, None] <= self._most[sites])
        return found

    def pace(self, rows: Ints | int, sites: Ints | int) -> Floats:
        """How fast jobs run in sites, relative to their `rate`; shaped as both together."""
        found: Floats = self.snapshot.jobs.affinity[rows, self.pool[sites]]
        return found

    def speeds(self, job: int, slack: Ints) -> Floats:
        """(s,) how fast a job could run with each site's slack; its base speed if that is less.

        0 where it may not run.
        """
        curve, jobs = self.curve, self.snapshot.jobs
        base = int(curve.base[job])
        own = jobs.affinity[job]
        kind = float(jobs.memory_mib[job]), bool(jobs.edge_allowed[job]), base, own.tobytes()
        liking = self._likings.get(kind)
        if liking is None:
            able = self.able(np.array([job], dtype=np.int64))[0]
            liking = np.where(able, own[self.pool] * self._preference, 0.0)
            self._likings[kind] = liking
        level = curve.sizes.searchsorted(slack, side="right") - 1
        found: Floats = curve.rate[job].take(np.maximum(level, base)) * liking
        return found

    def count_slack(self) -> None:
        """Count what each site could give with every job at its floor."""
        holdings, sites = self.snapshot.holdings, len(self.capacity.site_pool)
        slack = np.array(self.capacity.site_free, dtype=np.int64)
        open_nodes = np.array(self.capacity.open, dtype=np.bool_)
        gives = (self.was[holdings.job] >= 0) & open_nodes[holdings.node]
        at = self.was[holdings.job[gives]]
        slack += np.bincount(at, holdings.gpus[gives], sites).astype(np.int64)
        runs = self.site >= 0
        kept = np.bincount(self.site[runs], self.curve.sizes[self.floor[runs]], sites)
        self.slack = slack - kept.astype(np.int64)

    def put(self, job: int, site: int, why: Because | None = None) -> None:
        """Let a job run in a site at its floor; it leaves the one it is in. Slack may go below 0.

        Site -1 takes it off.
        """
        gpus = self.curve.sizes[self.floor[job]]
        if self.site[job] >= 0:
            self.slack[self.site[job]] += gpus
        if site >= 0:
            self.slack[site] -= gpus
        self.site[job] = site
        if why:
            before = self.why.get(job)
            if before and not why.lost_to:  # it still lost its node to somebody
                why = replace(why, lost_to=before.lost_to)
            self.why[job] = why

    def holders(self, site: int) -> list[Holder]:
        """Return who holds what is not slack in a site, and until when."""
        jobs, curve = self.snapshot.jobs, self.curve
        rows = ((self.site == site) & (self.was >= 0)).nonzero()[0]
        level = np.maximum(curve.present[rows], 0)
        left_s = jobs.remaining_steps[rows] / np.maximum(curve.rate[rows, level], 1e-12)
        ends_s = self.now_s + left_s / self.pace(rows, site)
        gpus = curve.sizes[self.floor[rows]]
        return list(map(Holder, ends_s.tolist(), rows.tolist(), gpus.tolist()))

    def names(self, jobs: Iterable[int]) -> tuple[str, ...]:
        """Return the first few names, for `lost_to`."""
        return tuple(self.snapshot.jobs.ids[job] for job in list(jobs)[:NAMES_MOST])

    # --- nodes that go back -------------------------------------------------------------------

    def displace(self) -> list[int]:
        """Close the nodes that go back; return the jobs that lose their base by it.

        A job that keeps at least its base elsewhere in its pool stays, smaller.
        """
        nodes, holdings = self.snapshot.nodes, self.snapshot.holdings
        back = nodes.loan == LoanPhase.RECLAIMING
        back[list(self.loans.reclaim)] = True
        for lender in self.snapshot.lenders if back.any() else ():
            for node in lender.nodes[back[lender.nodes]].tolist():
                self.owner[node] = lender.id
                self.capacity.close(node)
        homeless = []
        hit = ~np.array(self.capacity.open, dtype=np.bool_)[holdings.node]
        hit &= self.capacity.movable[holdings.job]
        for job in np.unique(holdings.job[hit]).tolist():
            held = self.capacity.held(job)
            closed = [node for node in held if not self.capacity.open[node]]
            if any(node not in self.owner for node in closed):
                self.movable[job] = False  # not usable for another reason: let it be
                self.was[job] = self.site[job] = -1
                continue
            # Also where its size is no longer allowed: here it cannot stay.
            self.movable[job] = True
            self.was[job] = self.capacity.job_site[job]
            self.forced[job] = True
            kept = sum(gpus for node, gpus in held.items() if self.capacity.open[node])
            owners = sorted({self.owner[node] for node in closed})
            figures = (Figure("kept_gpus", kept),)
            self.why[job] = Because("loans.reclaim", tuple(owners[:NAMES_MOST]), figures)
            here = int(self.was[job])
            if level_within(self.curve, job, kept) >= 0 and self.pace(job, here) > 0:
                self.site[job] = here
                continue
            self.site[job] = -1
            if self.curve.runnable[job]:
                homeless.append(job)
        return homeless

    # --- the plan -----------------------------------------------------------------------------

    def finish(self, level: Ints, waits: Iterable[Reason]) -> Plan:
        """Place every job that changes, and write the plan.

        Args:
            level: (n,) of jobs that shall run; ignored for others.
            waits: Why each job that waits does so.
        """
        ids, node_ids = self.snapshot.jobs.ids, self.snapshot.nodes.ids
        wanted = self.curve.sizes[level]
        same = (self.site == self.was) & ~self.forced & (wanted == self.held)
        changed: list[int] = np.flatnonzero(
            ((self.site >= 0) | (self.was >= 0)) & ~((self.site >= 0) & same)
        ).tolist()
        sizes = {job: int(wanted[job]) for job in changed}
        old = {job: self.capacity.give(job) for job in changed}
        # Those that shrink keep what they can first; then the large ones, for whole nodes.
        order = sorted(changed, key=lambda j: (self._grows(j, sizes[j], old[j]), -sizes[j], j))
        placed = {job: self._place(job, int(level[job]), old[job]) for job in order}
        targets = {
            job: placed[job] for job in changed if placed[job] is not None or self.was[job] >= 0
        }
        return Plan(
            targets={ids[job]: target for job, target in targets.items()},
            lend=tuple(node_ids[node] for node in sorted(self.loans.lend)),
            reclaim={node_ids[n]: due for n, due in sorted(self.loans.reclaim.items())},
            reasons=(*self.loans.reasons, *explain(self, targets), *waits),
        )

    def _grows(self, job: int, size: int, old: Mapping[int, int]) -> bool:
        stays = self.site[job] == self.was[job]
        return not stays or size > sum(g for n, g in old.items() if self.capacity.open[n])

    def _place(self, job: int, level: int, old: Mapping[int, int]) -> Target | None:
        site = int(self.site[job])
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
