"""Closes a fleet's accounts."""

import numpy as np

from scheduler.policies.interface import Kind
from simulator.fleet import Fleet
from simulator.jobtable import JobTable
from simulator.outcome import FleetRecord


def record(fleet: Fleet, jobs: JobTable, reclaim_preemptions: int, now_s: float) -> FleetRecord:
    """Return what became of a fleet until now, its end."""
    fleet.close(now_s)
    usage, count = fleet.usage, jobs.count
    pools = [owner for owner in fleet.owners if owner.kind == Kind.INFERENCE]
    edges = [owner for owner in fleet.owners if owner.kind == Kind.EDGE]
    line = np.array(usage.line).reshape(-1, 3)
    return FleetRecord(
        gpus=fleet.layout.total,
        ready_gpu_s=sum(usage.open_gpu_s),
        loans=usage.loans,
        lent_gpu_s=usage.open_gpu_s[Kind.INFERENCE],
        lent_used_gpu_s=usage.held_gpu_s[Kind.INFERENCE],
        edge_gpu_s=usage.open_gpu_s[Kind.EDGE],
        edge_used_gpu_s=usage.held_gpu_s[Kind.EDGE],
        reclaim_batch=np.array(usage.batch, dtype=np.int64),
        reclaim_asked_s=np.array(usage.asked_s),
        reclaim_due_s=np.array(usage.due_s),
        reclaim_back_s=np.array(usage.back_s),
        reclaim_preemptions=reclaim_preemptions,
        needed_gpu_s=sum(owner.needed_gpu_s for owner in pools),
        short_gpu_s=sum(owner.short_gpu_s for owner in pools),
        owned_gpu_s=sum(owner.gpus for owner in pools) * now_s,
        edge_needed_gpu_s=sum(owner.needed_gpu_s for owner in edges),
        edge_short_gpu_s=sum(owner.short_gpu_s for owner in edges),
        failures=usage.failures,
        migrated=count.migrated,
        crossed=count.crossed,
        killed=count.killed,
        lost_gpu_s=jobs.lost_gpu_s,
        line_s=line[:, 0],
        line_lent=line[:, 1].astype(np.int64),
        line_used=line[:, 2].astype(np.int64),
    )
