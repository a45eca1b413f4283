"""What a cell's state and telemetry say on the metrics page."""

from collections import Counter
from collections.abc import Iterable

from scheduler.core.lenders import lenders_in
from scheduler.core.state import ClusterState
from scheduler.core.transitions import JobState, LoanState, NodeState
from scheduler.telemetry import Telemetry
from services.metrics import Sample

#: States that a node on loan can be in; the others end the loan.
_ON_LOAN = (LoanState.LENDING, LoanState.LENT, LoanState.RECLAIMING, LoanState.RETURNING)
#: Of more, the first by name are shown one by one: each is a series that Prometheus keeps.
NODES_MAX = 2_000
TENANTS_MAX = 500


def state_samples(cell: str, state: ClusterState) -> Iterable[Sample]:
    """Give what the state holds, by pool, tenant and state."""
    yield Sample("tidegate_leader_epoch", state.leader.epoch, (cell,))
    for name in ("commands", "claims", "claims_timed_out", "policy_failures"):
        yield Sample(f"tidegate_{name}_total", getattr(state.totals, name), (cell,))
    # Copies: the event loop changes the state while this thread counts.
    jobs = Counter(job.state for job in list(state.jobs.values()))
    for job_state in JobState:
        yield Sample("tidegate_jobs", jobs[job_state], (cell, job_state.value))
    loans = Counter(node.loan_state for node in list(state.nodes.values()))
    for loan_state in _ON_LOAN:
        yield Sample("tidegate_loans", loans[loan_state], (cell, loan_state.value))
    for (pool, use), gpus in count_gpus(state).items():
        yield Sample("tidegate_gpus", gpus, (cell, pool, use))
    yield from _tenant_samples(cell, state)


def _tenant_samples(cell: str, state: ClusterState) -> Iterable[Sample]:
    jobs = list(state.jobs.values())
    shown = set(sorted({job.tenant for job in jobs})[:TENANTS_MAX])
    counts = Counter((job.tenant, job.state) for job in jobs if job.tenant in shown)
    for (tenant, job_state), count in sorted(counts.items()):
        yield Sample("tidegate_tenant_jobs", count, (cell, tenant, job_state.value))
    held = dict.fromkeys(sorted(shown), 0)
    for node in list(state.nodes.values()):
        for holder in node.holder:
            job = None if holder is None else state.jobs.get(holder)
            if job is not None and job.tenant in held:
                held[job.tenant] += 1
    for tenant, gpus in held.items():
        yield Sample("tidegate_tenant_gpus", gpus, (cell, tenant))


def use_samples(
    cell: str, state: ClusterState, telemetry: Telemetry, since_s: float
) -> Iterable[Sample]:
    """Give what the GPUs of each pool and node do, as measured since a moment."""
    for pool in list(state.pools.values()):
        use = telemetry.over(list(pool.nodes), since_s)
        if use is not None:
            yield Sample("tidegate_gpu_utilisation", use.utilisation, (cell, pool.id))
            memory = use.memory_used_mib * 2**20
            yield Sample("tidegate_gpu_memory_used_bytes", memory, (cell, pool.id))
            yield Sample("tidegate_gpu_power_watts", use.power_w, (cell, pool.id))
    for node in sorted(state.nodes.values(), key=lambda one: one.id)[:NODES_MAX]:
        use = telemetry.over([node.id], since_s)
        if use is not None:
            labels = (cell, node.pool, node.id)
            yield Sample("tidegate_node_gpu_utilisation", use.utilisation, labels)
            memory = use.memory_used_mib * 2**20
            yield Sample("tidegate_node_gpu_memory_used_bytes", memory, labels)


def count_gpus(state: ClusterState) -> dict[tuple[str, str], float]:
    """Count GPUs by (pool, use). Each GPU of a node that is not dead has exactly one use."""
    found: dict[tuple[str, str], float] = {}
    for pool in list(state.pools.values()):
        uses = dict.fromkeys(("serving", "training", "loaned", "idle", "unknown"), 0.0)
        for name in list(pool.nodes):
            node = state.nodes[name]
            if node.state is NodeState.DEAD:
                continue
            if node.state is NodeState.UNKNOWN:
                uses["unknown"] += node.gpu_count
                continue
            held = sum(holder is not None for holder in node.holder)
            lent = node.loan_state in _ON_LOAN[1:]
            uses["training"] += held
            uses["loaned" if lent else "idle"] += node.gpu_count - held
        served = sum(lender.served for lender in lenders_in(state, pool.id))
        # What an owner reports and what the scheduler knows may be a moment apart.
        uses["serving"] = min(served, uses["idle"])
        uses["idle"] -= uses["serving"]
        found |= {(pool.id, use): gpus for use, gpus in uses.items()}
    return found
