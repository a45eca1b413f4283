"""Free GPUs as a working copy: what a plan may still hand out, with undo.

A policy tries things: it takes back what a job holds, places another, and rolls back when that
does not fit. All parts of a policy share one `Capacity`, so no plan exceeds a node's GPUs.
"""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import RUNNING, Bools, Ints, Kind, Snapshot

#: Undo record of a closed node; any other record is (job, node, GPUs the job had there before).
_CLOSED = -1


class Capacity:
    """Free GPUs per node, and who holds them, while a plan is made.

    A *site* is where a gang may live whole: a training or inference pool that has nodes, or one
    edge node. Sites are numbered: first those pools, in their order; then edge nodes, in theirs.

    Jobs that are MOVING, or that hold GPUs the snapshot does not show (on a silent node), are
    not in `held`: nobody may touch them, and what they hold is not free.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        jobs, nodes, pools = snapshot.jobs, snapshot.nodes, snapshot.pools
        edge = pools.kind == Kind.EDGE
        shared = ~edge & pools.occupied(nodes)
        whole = np.flatnonzero(shared)
        alone = np.flatnonzero(edge[nodes.pool])
        site_of = (np.cumsum(shared) - 1)[nodes.pool]
        site_of[alone] = len(whole) + np.arange(len(alone))
        pool_of_site = np.concatenate((whole, nodes.pool[alone]))
        #: (s,) pool of each site.
        self.site_pool: list[int] = pool_of_site.tolist()
        #: (p,) site of each node.
        self.site_of: list[int] = site_of.tolist()
        members = [np.flatnonzero(site_of == site) for site in range(len(whole))]
        #: Nodes of each site, ascending.
        self.members: list[Ints] = [*members, *alone[:, None]]
        self.kind: list[int] = pools.kind[pool_of_site].tolist()
        self.memory_mib: list[float] = pools.gpu_memory_mib[pool_of_site].tolist()
        self.transfer_mib_per_s: list[float] = pools.transfer_mib_per_s[pool_of_site].tolist()
        #: (p,) may take work.
        self.open: list[bool] = nodes.usable.tolist()
        #: (p,) `free` again, to look at many nodes at once.
        self.room: Ints = np.where(nodes.usable, nodes.free, 0)
        self.free: list[int] = self.room.tolist()
        free_at = np.bincount(site_of, self.room, len(pool_of_site)).astype(np.int64)
        self.site_free: list[int] = free_at.tolist()
        holdings = snapshot.holdings
        shown = np.bincount(holdings.job, holdings.gpus, len(jobs.ids))
        #: (n,) jobs that may be scaled, moved or preempted in this plan.
        self.movable: Bools = (jobs.phase == RUNNING) & (shown == jobs.size) & (shown > 0)
        mine = self.movable[holdings.job]
        job, node = holdings.job[mine], holdings.node[mine]
        #: (n,) the site that each of them is in, -1 for others.
        self.job_site: Ints = np.full(len(jobs.ids), -1, dtype=np.int64)
        self.job_site[job] = site_of[node]
        self._holdings = holdings
        self._held: dict[int, dict[int, int]] = {}
        self._undo: list[tuple[int, int, int]] = []

    def held(self, job: int) -> dict[int, int]:
        """Return what a job holds in this working copy: node -> GPUs."""
        if job not in self._held:  # few jobs of many change in a plan
            found: dict[int, int] = {}
            if self.movable[job]:
                all_held = self._holdings
                mine = slice(*all_held.job.searchsorted((job, job + 1)).tolist())
                nodes, gpus = all_held.node[mine].tolist(), all_held.gpus[mine].tolist()
                found = dict(zip(nodes, gpus, strict=True))
            self._held[job] = found
        return self._held[job]

    def checkpoint(self) -> int:
        """Return a mark to `rollback` to."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undo everything done since `mark`."""
        while len(self._undo) > mark:
            job, node, before = self._undo.pop()
            if job == _CLOSED:
                self.open[node] = True
                self._add(node, before)
            else:
                self._set(job, node, before)

    def take(self, job: int, placement: Mapping[int, int]) -> None:
        """Give a job GPUs on top of what it holds.

        Raises:
            ValueError: A node is closed, or has fewer free GPUs than asked for. Nothing is taken.
        """
        for node, gpus in placement.items():
            if not self.open[node] or gpus > self.free[node]:
                raise ValueError(
                    f"node {node} has {self.free[node]} free GPUs, {gpus} were asked for; "
                    "place with `placement.place`, which looks first"
                )
        for node, gpus in sorted(placement.items()):
            before = self.held(job).get(node, 0)
            self._undo.append((job, node, before))
            self._set(job, node, before + gpus)

    def give(self, job: int) -> dict[int, int]:
        """Take back all that a job holds; return what that was."""
        before = dict(self.held(job))
        for node, gpus in before.items():
            self._undo.append((job, node, gpus))
            self._set(job, node, 0)
        return before

    def close(self, node: int) -> None:
        """Let a node take no more work; what is given back there is not free."""
        if self.open[node]:
            self._undo.append((_CLOSED, node, self.free[node]))
            self._add(node, -self.free[node])
            self.open[node] = False

    def _set(self, job: int, node: int, gpus: int) -> None:
        held = self.held(job)
        if self.open[node]:
            self._add(node, held.get(node, 0) - gpus)
        if gpus:
            held[node] = gpus
        else:
            held.pop(node, None)

    def _add(self, node: int, gpus: int) -> None:
        self.free[node] += gpus
        self.room[node] = self.free[node]
        self.site_free[self.site_of[node]] += gpus
