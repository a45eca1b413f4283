"""Which waiting jobs could start if nobody else were there."""

from collections.abc import Mapping

import numpy as np

from scheduler.core.standing import Quota
from scheduler.policies.interface import WAITING, Bools, Jobs, Kind, Nodes, Pools


def could_start(jobs: Jobs, pools: Pools, nodes: Nodes, quotas: Mapping[str, Quota]) -> Bools:
    """Say of each job whether it waits, and could start in a cell where nobody else is.

    It counts all GPUs that a policy is shown, also those held by gangs on closed nodes, and those
    that owners could lend. So no policy plans GPUs for a job of which this says no.

    Args:
        jobs: As they are shown; of those that wait, the phase.
        pools: Where they may live.
        nodes: What there is of each.
        quotas: By tenant, those that people set.
    """
    found: Bools = jobs.phase == WAITING
    rows = found.nonzero()[0]
    edge = pools.kind == Kind.EDGE
    room = np.bincount(nodes.pool, nodes.gpus, len(pools.ids))
    largest = np.zeros(len(pools.ids))  # a gang at the edge lives on one node
    np.maximum.at(largest, nodes.pool, nodes.gpus)
    runs = jobs.affinity[rows] > 0
    runs &= jobs.memory_mib[rows, None] <= pools.gpu_memory_mib
    runs &= jobs.edge_allowed[rows, None] | ~edge
    most = np.where(runs, np.where(edge, largest, room), 0.0).max(axis=1, initial=0.0)
    if quotas:
        left = {name: 0 if quota.jobs == 0 else quota.gpus for name, quota in quotas.items()}
        tenants = [jobs.tenants[row] for row in rows.tolist()]
        most = np.minimum(most, [left.get(tenant, np.inf) for tenant in tenants])
    found[rows] = ((jobs.rate[rows] > 0) & (jobs.sizes <= most[:, None])).any(axis=1)
    return found
