"""Who is where while sizes and pools of gangs are decided, and who must leave.

`begin` reads it; a policy changes `pool` and `floor`; `placement.finish` writes the plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import (
    RUNNING,
    WAITING,
    Bools,
    Figure,
    Ints,
    Kind,
    Snapshot,
)
from scheduler.policies.parts.allot import Because, closing
from scheduler.policies.parts.curves import Curves, curves
from scheduler.policies.parts.loans import Loans

#: As many names as a reason lists; the engine stores a reason again when they change.
NAMES_MOST = 3


@dataclass(slots=True, eq=False)
class Draft:
    """Working state of one plan. n jobs, m pools, p nodes; levels are indices into the sizes."""

    seen: Snapshot
    curve: Curves
    loans: Loans
    reclaim: Mapping[str, float]  #: what `loans` gives back, by name.
    closed: Bools  #: (p,) nobody may stay there.
    was: Ints  #: (n,) pool of those that run and may be touched, -1 for others.
    pool: Ints  #: (n,) where they shall be, -1: nowhere.
    floor: Ints  #: (n,) level below which a job must not go while it runs.
    forced: Bools  #: (n,) must change, because a node that they hold closes.
    why: dict[int, Because]

    def waiting(self) -> Bools:
        """(n,) jobs that wait, have a size, and are not backing off."""
        jobs = self.seen.jobs
        found: Bools = (jobs.phase == WAITING) & self.curve.runnable
        return found & (jobs.backoff_until_s <= self.seen.now_s)

    def able(self, kinds: Sequence[Kind]) -> Bools:
        """(n, m) pools of some kinds where each job can run."""
        jobs, pools = self.seen.jobs, self.seen.pools
        there = pools.occupied(self.seen.nodes) & np.isin(pools.kind, kinds)
        fits = jobs.memory_mib[:, None] <= pools.gpu_memory_mib
        found: Bools = there & (jobs.affinity > 0) & fits
        return found

    def free_gpus(self) -> Ints:
        """(m,) GPUs that each pool could give with every job at its floor."""
        nodes, held, m = self.seen.nodes, self.seen.holdings, len(self.seen.pools.ids)
        found = np.bincount(nodes.pool, np.where(self.closed, 0, nodes.free), m)
        gives = (self.was[held.job] >= 0) & ~self.closed[held.node]
        found += np.bincount(nodes.pool[held.node[gives]], held.gpus[gives], m)
        runs = self.pool >= 0
        found -= np.bincount(self.pool[runs], self.curve.sizes[self.floor[runs]], m)
        return found.astype(np.int64)

    def names(self, jobs: Ints) -> tuple[str, ...]:
        """Return the first few names, for `lost_to`."""
        return tuple(self.seen.jobs.ids[job] for job in jobs[:NAMES_MOST].tolist())


def begin(seen: Snapshot, loans: Loans) -> Draft:
    """Read who runs where; who loses its base by nodes that go back is nowhere.

    A job that keeps at least its base elsewhere in its pool stays, smaller. One that holds a size
    which its curve does not allow, or that is where it could not start, may not be touched, unless
    it must leave.
    """
    jobs, nodes, held, n = seen.jobs, seen.nodes, seen.holdings, len(seen.jobs.ids)
    curve = curves(jobs)
    reclaim = {nodes.ids[node]: due_s for node, due_s in sorted(loans.reclaim.items())}
    closed = closing(seen, reclaim) > 0
    shown = np.bincount(held.job, held.gpus, n)
    kept = np.bincount(held.job, np.where(closed[held.node], 0, held.gpus), n).astype(np.int64)
    whole = (jobs.phase == RUNNING) & (shown == jobs.size) & (shown > 0)
    here = jobs.affinity[np.arange(n), jobs.pool] > 0
    forced: Bools = whole & (kept < jobs.size)
    was = np.where(whole & (forced | ((curve.present >= 0) & here)), jobs.pool, -1)
    stays = ~forced | (here & curve.runnable & (curve.sizes[curve.base] <= kept))
    why: dict[int, Because] = {}
    if forced.any():
        owner = {node: one.id for one in seen.lenders for node in one.nodes.tolist()}
        for job in forced.nonzero()[0].tolist():
            lost = held.node[(held.job == job) & closed[held.node]].tolist()
            owners = sorted({owner[node] for node in lost if node in owner})
            figures = (Figure("kept_gpus", int(kept[job])),)
            why[job] = Because("loans.reclaim", tuple(owners[:NAMES_MOST]), figures)
    pool = np.where(stays, was, -1)
    return Draft(seen, curve, loans, reclaim, closed, was, pool, curve.base.copy(), forced, why)
