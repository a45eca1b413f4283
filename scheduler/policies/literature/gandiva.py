"""Gandiva: everyone gets a slice of time at the size asked for, packed on few nodes."""

from dataclasses import dataclass, replace

import numpy as np

from scheduler.policies.interface import Figure, Floats, Ints, Phase, Plan, Reason, Snapshot, Target
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, sweep, write
from scheduler.policies.ranges import Amount, PositiveShare


@dataclass(frozen=True, slots=True)
class Gandiva:
    """Share GPUs by time slices, and gather gangs that are spread.

    As recalled from Xiao et al., OSDI '18, whose text was not at hand:

    - *Time slices.* A job that holds its gang keeps it for a slice. After that, those that have
      waited longest take turns with those that have run longest. While everyone fits nobody is
      suspended. A slice lasts `slice_s`, and longer where that would spend more than the part
      `overhead` of it on the job's switch, its checkpoint and its start. The paper switches
      between mini-batches, in a second at most, so its slices of a minute lose 2 % at most; a
      switch that goes by a checkpoint takes some 30 s, and slices of a minute would lose half of
      all time to it. Both defaults are the paper's.
    - *Packing.* Gangs go on the fewest nodes, the fullest that fits first.
    - *Migration.* A gang on more nodes than it needs moves, one per plan, to a node with room.

    Knows no lengths and no deadlines. Differences: two jobs never share a GPU (the paper packs
    those with little memory and compute); migration looks at nodes, not at measured slow-down; no
    job grows while nobody waits. Costs O(n log n).
    """

    name: str = "gandiva"
    slice_s: Amount = 60.0
    overhead: PositiveShare = 0.02  #: of a slice, that switching may take.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Give turns, then gather."""
        jobs = snapshot.jobs
        found = gangs(snapshot)
        pool = sweep(found, self._turns(found).tolist())
        since_s = np.where(jobs.phase == Phase.WAITING, jobs.waiting_since_s, jobs.changed_s)
        told = {"turn_s": np.where(np.isfinite(since_s), snapshot.now_s - since_s, 0.0)}
        plan = write(found, Verdict(pool, "gandiva.slice", figures=told))
        return _gather(found, plan)

    def _turns(self, found: Gangs) -> Ints:
        """Order jobs: in their slice; waiting, longest first; whose slice is over, longest last."""
        jobs, now_s = found.seen.jobs, found.seen.now_s
        takes_part = np.flatnonzero(found.runs | found.starts)
        switch_s = jobs.checkpoint_cost_s + jobs.start_cost_s
        slice_s = np.maximum(self.slice_s, switch_s / self.overhead)
        fresh = found.runs & (now_s - jobs.changed_s < slice_s)
        turn = np.where(found.runs & ~fresh, 2, np.where(fresh | found.ousted, 0, 1))
        since_s = np.where(turn == 1, jobs.waiting_since_s, -jobs.changed_s)
        order: Ints = takes_part[np.lexsort((takes_part, since_s[takes_part], turn[takes_part]))]
        return order


def _gather(found: Gangs, plan: Plan) -> Plan:
    """Move one gang that is spread to a node that holds all of it, if the plan leaves one."""
    seen = found.seen
    jobs, nodes, held = seen.jobs, seen.nodes, seen.holdings
    free: Floats = np.where(nodes.usable, nodes.free, 0).astype(np.float64)
    at = {name: i for i, name in enumerate(nodes.ids)}
    named = np.array([name in plan.targets for name in jobs.ids], dtype=np.bool_)
    gives = named[held.job]
    np.add.at(free, held.node[gives], held.gpus[gives])
    for target in plan.targets.values():
        for name, gpus in target.placement if target is not None else ():
            free[at[name]] -= gpus
    spread = np.bincount(held.job, minlength=len(jobs.ids)) > 1
    for job in np.flatnonzero(spread & found.runs & ~named).tolist():
        mine = held.job == job
        room = free.copy()
        room[held.node[mine]] += held.gpus[mine]
        fits = np.flatnonzero(
            (room >= jobs.size[job]) & (nodes.pool == jobs.pool[job]) & nodes.usable
        )
        if len(fits):
            node = int(fits[room[fits].argmin()])
            placement = ((nodes.ids[node], int(jobs.size[job])),)
            figures = (Figure("nodes_before", float(mine.sum())), Figure("nodes_after", 1.0))
            reason = Reason(jobs.ids[job], "migrates", "gandiva.gather", figures)
            target = Target(found.seen.pools.ids[int(found.pool[job])], placement)
            targets = {**plan.targets, jobs.ids[job]: target}
            return replace(plan, targets=targets, reasons=(*plan.reasons, reason))
    return plan
