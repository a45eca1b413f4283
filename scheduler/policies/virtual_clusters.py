"""Virtual clusters: a gang that fits its tenant's own nodes always fits the shared cluster.

A quota in GPUs cannot promise that: bonus jobs of others may leave no node whole. Here a tenant
owns *cells*, whole nodes and what buddies make of them, and a cell is bound to a node only while
the tenant's guaranteed jobs are on it. Whatever else runs there is bonus, and gives way.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.allot import Because, place, training_pool
from scheduler.policies.fixed import gangs, unready
from scheduler.policies.interface import (
    Figure,
    Ints,
    Need,
    Phase,
    Plan,
    Reason,
    Snapshot,
    Target,
)

#: Notes on a job that runs.
GUARANTEED, BONUS = (1.0,), (0.0,)
_NOBODY, _ALL = -1, 1 << 40


@dataclass(frozen=True, slots=True)
class VirtualClusters:
    """Whole nodes for each tenant, bound when needed (policies.md 4.5; HiveD, OSDI '20) [M].

    Gangs are served by priority, then submission. One that fits the nodes its tenant owns is
    *guaranteed*: up to a node it goes on that one of the tenant's bound nodes where it leaves
    least, else on a node bound anew; larger ones bind as many new nodes as they need. Bonus gangs
    there are stopped, low priority and late start first, until there is room. What does not fit
    is bonus: it gets any free GPUs, and may be stopped. A bonus gang becomes guaranteed where it is
    once its tenant has room for it there.

    The order in which nodes are bound asks nothing of other tenants, so a tenant's guaranteed gangs
    start when they would in a cluster of their own, as long as nodes are alike and none is lost.

    Differences from the paper, as recalled: cells below a node are not aligned, since GPUs of a
    node are alike here; there are none above one; all is in the first training pool, and gangs in
    others stay as they are; stopped bonus gangs move, if there is room elsewhere. Costs O(p) for
    each gang that starts, on p nodes.

    Attributes:
        nodes: Tenant -> nodes it owns, 0 for those not named. Empty: all tenants there are own
            the same number.
    """

    name: str = "virtual_clusters"
    nodes: Mapping[str, int] = field(default_factory=dict)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Serve the guaranteed gangs, then the others."""
        site = training_pool(snapshot)
        return _Round(snapshot, site, self.nodes).plan() if site >= 0 else Plan()


class _Round:
    """One plan being made."""

    def __init__(self, seen: Snapshot, site: int, nodes: Mapping[str, int]) -> None:
        self.seen, self.site, self.found = seen, site, gangs(seen)
        jobs, held = seen.jobs, seen.holdings
        here = (seen.nodes.pool == site) & seen.nodes.usable
        self.members: Ints = np.flatnonzero(here)
        self.cap: Ints = seen.nodes.gpus
        self.free: Ints = np.where(here, seen.nodes.free, 0)
        names = sorted({*jobs.tenants})
        numbers = {name: number for number, name in enumerate(names)}
        share = len(self.members) // max(len(names), 1)
        self.owned = [nodes.get(name, 0) if nodes else share for name in names]
        self.tenant = [numbers[name] for name in jobs.tenants]
        self.bound: Ints = np.full(len(self.cap), _NOBODY)  #: tenants by number
        self.used: Ints = np.zeros(len(self.cap), dtype=np.int64)  #: by guaranteed jobs.
        self.bonus: list[dict[int, int]] = [{} for _ in self.cap]  #: job -> GPUs that it would give
        self.gives: Ints = np.zeros(len(self.cap), dtype=np.int64)  #: the sum of these.
        #: Tenant and size -> cells, until some are taken; none are none for good.
        self.known: dict[tuple[int, int], dict[int, int]] = {}
        self.held: dict[int, dict[int, int]] = {}
        for job, node, gpus in zip(
            held.job.tolist(), held.node.tolist(), held.gpus.tolist(), strict=True
        ):
            self.held.setdefault(job, {})[node] = gpus
        self.safe: dict[int, bool] = {}  #: jobs that shall run -> whether guaranteed.
        self.placed: dict[int, dict[int, int]] = {}
        self.why: dict[int, Because] = {}
        self.queue: list[tuple[int, int]] = []
        self._enter()

    def _enter(self) -> None:
        jobs, found = self.seen.jobs, self.found
        for job, where in self.held.items():
            if found.ousted[job]:
                for node, gpus in where.items():
                    if self.seen.nodes.pool[node] == self.site and self.seen.nodes.usable[node]:
                        self.free[node] += gpus
                continue
            if jobs.pool[job] != self.site:
                continue
            if jobs.notes[job, 0] == GUARANTEED[0]:
                self.safe[job] = True
                self._bind(job, where)
            elif found.runs[job]:
                self.safe[job] = False
                for node, gpus in where.items():
                    self.bonus[node][job] = gpus
                    self.gives[node] += gpus
                self._push(job)
        for job in np.flatnonzero(found.starts).tolist():
            if self.site in found.pools[job]:
                self._push(job)

    def plan(self) -> Plan:
        """Serve everybody, and write what changes."""
        rest: list[int] = []
        while self.queue:
            job = heapq.heappop(self.queue)[1]
            if job in self.safe:
                self._promote(job)
            elif cells := self._cells(job):
                self._take(job, cells)
            else:
                rest.append(job)
        left = int(self.free.sum())
        for job in rest:
            size, own = int(self.found.size[job]), self.held.get(job, {})
            if size > left:
                continue
            where = place(self.free, self.members, size, own, "pack")
            if where is not None:
                for node, gpus in where.items():
                    self.free[node] -= gpus
                left -= size
                self.placed[job], self.safe[job] = where, False
                self.why.setdefault(job, Because("virtual_clusters.bonus"))
        return self._write()

    # --- cells --------------------------------------------------------------------------------

    def _cells(self, job: int) -> dict[int, int]:
        """Return node -> GPUs of the cells for a guaranteed gang; {} if its tenant has none."""
        key = self.tenant[job], int(self.found.size[job])
        if key not in self.known:
            self.known[key] = self._find(*key)
        return self.known[key]

    def _find(self, tenant: int, size: int) -> dict[int, int]:
        nodes = self.members
        owner, left = self.bound[nodes], self.cap[nodes] - self.used[nodes]
        reach = self.free[nodes] + self.gives[nodes]
        snug = (owner == tenant) & (left >= size) & (reach >= size)
        if snug.any():
            return {int(nodes[np.where(snug, left, _ALL).argmin()]): size}
        open_to = owner == _NOBODY
        whole = int(self.cap[nodes[open_to]].max(initial=0))
        count = math.ceil(size / whole) if whole else 0
        if not count or np.count_nonzero(owner == tenant) + count > self.owned[tenant]:
            return {}
        cells: dict[int, int] = {}
        for rest in range(size, 0, -whole):
            take = min(rest, whole)
            able = np.flatnonzero(open_to & (reach >= take))
            if not len(able):
                return {}
            gives = self.gives[nodes[able]]
            stops = np.maximum(take - self.free[nodes[able]], 0)
            at = int(able[np.lexsort((able, gives, stops))[0]])
            cells[int(nodes[at])] = take
            open_to[at] = False
        return cells

    def _left(self, node: int) -> int:
        return int(self.cap[node] - self.used[node])

    def _bind(self, job: int, where: Mapping[int, int]) -> None:
        for node, gpus in where.items():
            if self.bound[node] == _NOBODY:
                self.bound[node] = self.tenant[job]
            self.used[node] += gpus
        # Cells only become fewer while a plan is made.
        self.known = {key: cells for key, cells in self.known.items() if not cells}

    def _take(self, job: int, cells: dict[int, int]) -> None:
        for node, gpus in cells.items():
            for victim in sorted(self.bonus[node], key=self._firmness):
                if self.free[node] >= gpus:
                    break
                if victim in self.bonus[node]:
                    self._stop(victim, job)
            self.free[node] -= gpus
        self._bind(job, cells)
        self.placed[job], self.safe[job] = cells, True
        self.why.setdefault(job, Because("virtual_clusters.cell", (), self._figures(job)))

    def _firmness(self, job: int) -> tuple[int, float, int]:
        jobs = self.seen.jobs
        began_s = float(jobs.first_start_s[job])
        return int(jobs.priority[job]), -began_s if math.isfinite(began_s) else 0.0, -job

    def _stop(self, job: int, claimant: int) -> None:
        for node, gpus in self.held[job].items():
            self.gives[node] -= self.bonus[node].pop(job)
            self.free[node] += gpus
        self.safe.pop(job)
        lost_to = (self.seen.jobs.ids[claimant],)
        self.why[job] = Because("virtual_clusters.reclaim", lost_to, self._figures(job))
        self._push(job)

    def _push(self, job: int) -> None:
        heapq.heappush(self.queue, (-int(self.seen.jobs.priority[job]), job))

    def _promote(self, job: int) -> None:
        """Make a bonus gang guaranteed where it is, if its tenant would place it just so."""
        if self.safe[job]:
            return
        where, cells = self.held[job], self._cells(job)
        if self._shape(cells) != self._shape(where):
            return
        for node in where:
            self.gives[node] -= self.bonus[node].pop(job)
        self.safe[job] = True
        self._bind(job, where)

    def _shape(self, where: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """Return what tells cells apart: GPUs taken, GPUs left to the tenant, whose the node is."""
        return sorted((n, self._left(node), int(self.bound[node])) for node, n in where.items())

    # --- the plan -----------------------------------------------------------------------------

    def _figures(self, job: int) -> tuple[Figure, ...]:
        tenant = self.tenant[job]
        bound = float(np.count_nonzero(self.bound == tenant))
        return Figure("bound_nodes", bound), Figure("owned_nodes", self.owned[tenant])

    def _write(self) -> Plan:
        jobs, ids = self.seen.jobs, self.seen.nodes.ids
        pool = self.seen.pools.ids[self.site]
        targets: dict[str, Target | None] = {}
        reasons: list[Reason] = []
        notes: dict[str, tuple[float, ...]] = {}
        for job, name in enumerate(jobs.ids):
            if job in self.safe and jobs.phase[job] != Phase.MOVING:
                note = GUARANTEED if self.safe[job] else BONUS
                if jobs.notes[job, 0] != note[0]:
                    notes[name] = note
            where, before = self.placed.get(job, {}), self.held.get(job, {})
            gone = bool(self.found.runs[job]) and job not in self.safe and job in self.why
            if where and where != before:
                placement = tuple((ids[node], gpus) for node, gpus in sorted(where.items()))
                targets[name] = Target(pool, placement)
                verb = "migrates" if before else "starts"
            elif not where and (gone or self.found.ousted[job]):
                targets[name] = None
                verb = "preempts"
            elif not where and jobs.phase[job] == Phase.WAITING:
                verb = "waits"
            else:
                continue
            why = unready(self.found, job) if verb == "waits" else None
            why = why or self.why.get(job) or self._short(job)
            reasons.append(Reason(name, verb, why.rule, why.figures, why.lost_to, why.needs))
        return Plan(targets=targets, reasons=tuple(reasons), notes=notes)

    def _short(self, job: int) -> Because:
        need = Need("free_gpus", float(self.free.sum()), float(self.found.size[job]))
        return Because("gang.capacity", (), self._figures(job), (need,))
