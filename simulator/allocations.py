"""Who holds which GPUs: applies targets, and refuses what no cluster could do."""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import Holdings, Ints, Kind, Plan, Target
from simulator.fleet import Fleet
from simulator.jobtable import JobTable
from simulator.physics.base import Placement


class Allocations:
    """What every job holds, and every change of it."""

    def __init__(self, jobs: JobTable, fleet: Fleet, policy: str) -> None:
        """Begin with nobody holding anything.

        Args:
            jobs: Those who hold.
            fleet: What they hold.
            policy: Who is to blame for a wrong target.
        """
        self._jobs, self._fleet, self._policy = jobs, fleet, policy
        # (h, 3) rows (job, node, GPUs), by job then node; the job's number among all.
        self._rows: Ints = np.zeros((0, 3), dtype=np.int64)
        self._touched: list[int] = []
        self._marked = np.zeros(len(jobs.ids), dtype=np.bool_)
        self.line: list[tuple[float, int]] = [(0.0, 0)]  #: Moments, and GPUs held from then on.
        self.reclaim_preemptions = 0  #: Jobs stopped because a node went back.

    def holdings(self) -> Holdings:
        """Show a policy who holds what."""
        job, node, gpus = self._table().T
        return Holdings(np.searchsorted(self._jobs.active, job), node.copy(), gpus.copy())

    def apply(self, plan: Plan, now_s: float) -> None:
        """Give jobs what a plan wants.

        Raises:
            RuntimeError: It gave out more GPUs than there are, or placed a job wrongly.
        """
        jobs, fleet = self._jobs, self._fleet
        changes: list[tuple[int, Placement]] = []
        at = fleet.layout.at
        for name, target in plan.targets.items():
            job = jobs.at[name]
            placement: Placement = ()
            if target is not None:
                placement = tuple(sorted((at[node], gpus) for node, gpus in target.placement))
            if placement != jobs.placement[job]:
                if not fleet.plain:
                    self._check(job, target, placement, plan.reclaim)
                self._release(job)
                changes.append((job, placement))
        for _, placement in changes:
            for node, gpus in placement:
                fleet.free[node] -= gpus
        if changes and int(fleet.free.min()) < 0:
            over = fleet.layout.ids[int(fleet.free.argmin())]
            raise RuntimeError(
                f"{self._policy}: at {now_s:.0f} s it gave out more GPUs than {over} has"
            )
        for job, placement in changes:
            if not jobs.is_here(job, now_s):
                raise RuntimeError(f"{self._policy}: {jobs.ids[job]} is not there to be placed")
            if fleet.plain:
                jobs.give(job, placement, now_s)
            else:
                self._move(job, placement, now_s)
        if changes:
            self._touched.extend(job for job, _ in changes)
            self._changed(now_s)

    def end(self, ended: list[int], now_s: float) -> None:
        """Take back what jobs that ended held."""
        for job in ended:
            self._release(job)
            self._jobs.placement[job] = ()
        self._changed(now_s)

    def kill(self, node: int, now_s: float, *, late: bool) -> None:
        """Stop all jobs on a node without a checkpoint, `late` if because a grace is over."""
        rows = self._table()
        for job in rows[rows[:, 1] == node, 0].tolist():
            self._release(job)
            self._jobs.kill(job, now_s)
            self.reclaim_preemptions += late
        self._changed(now_s)

    def _changed(self, now_s: float) -> None:
        self.line.append((now_s, self._fleet.layout.total - int(self._fleet.free.sum())))
        self._fleet.changed(now_s)

    def _release(self, job: int) -> None:
        for node, gpus in self._jobs.placement[job]:
            self._fleet.free[node] += gpus
        self._touched.append(job)

    def _table(self) -> Ints:
        if self._touched:
            self._marked[self._touched] = True
            kept = self._rows[~self._marked.take(self._rows[:, 0])]
            self._marked[self._touched] = False
            new = [
                (job, node, gpus)
                for job in sorted(set(self._touched))
                for node, gpus in self._jobs.placement[job]
            ]
            rows = np.concatenate((kept, np.array(new, dtype=np.int64).reshape(-1, 3)))
            self._rows = rows[np.argsort(rows[:, 0], kind="stable")]
            self._touched = []
        return self._rows

    def _move(self, job: int, placement: Placement, now_s: float) -> None:
        """Change an allocation where a checkpoint has to be written, and may have to travel."""
        jobs, layout = self._jobs, self._fleet.layout
        kept = [node for node, _ in placement]
        written_s = now_s + float(jobs.checkpoint_cost_s[job])
        for node, _ in jobs.placement[job]:
            if node not in kept:
                self._fleet.writes(node, written_s)
        if not placement:
            jobs.give(job, placement, now_s)
            return
        before, after, travel_s = jobs.site[job], layout.site(placement), 0.0
        if before not in (-1, after):
            jobs.count.migrated[job] += 1
            jobs.count.crossed[job] += layout.is_edge(before) != layout.is_edge(after)
            travel_s = layout.travel_s(float(jobs.checkpoint_mib[job]), before, after)
        jobs.site[job] = after
        jobs.give(job, placement, now_s, layout.pool_of(after), travel_s)

    def _check(
        self, job: int, target: Target | None, placement: Placement, reclaim: Mapping[str, float]
    ) -> None:
        """Find out whether a job may be placed so.

        Raises:
            RuntimeError: It may not.
        """
        jobs, fleet, layout = self._jobs, self._fleet, self._fleet.layout
        if target is None:
            leaves = [layout.ids[node] for node, _ in jobs.placement[job]]
            self.reclaim_preemptions += any(name in reclaim for name in leaves)
            return
        pool = layout.pool_at[target.pool]
        wrong = []
        for node, _ in placement:
            if layout.pool[node] != pool:
                wrong.append(f"{layout.ids[node]} is in another pool")
            if not fleet.usable[node] or layout.ids[node] in reclaim:
                wrong.append(f"{layout.ids[node]} takes no work")
        if jobs.memory_mib[job] > layout.pools.gpu_memory_mib[pool]:
            wrong.append("its memory does not fit")
        if jobs.affinity[job, pool] <= 0:
            wrong.append("it cannot run there")
        if layout.rooms[pool].kind == Kind.EDGE:
            if not jobs.edge_allowed[job]:
                wrong.append("it may not leave the cloud")
            if len(placement) > 1:
                wrong.append("a gang has one edge server")
        if wrong:
            raise RuntimeError(
                f"{self._policy}: it placed {jobs.ids[job]} wrongly in {target.pool}: "
                + ", ".join(wrong)
            )
