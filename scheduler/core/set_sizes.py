"""Sizes that people set: a job that runs is brought to its size, as far as GPUs are free for it.

A job that waits starts at its size, since its policy is shown no other (`jobrows`). One that runs
at another is brought to it here, after each plan, unless the plan does it; it keeps what it has
until then.
"""

from collections.abc import Iterator, Mapping

from scheduler.core import facts
from scheduler.core.claims import usable
from scheduler.core.facts import Allocation
from scheduler.core.pauses import barred
from scheduler.core.quotas import Ledger
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.transitions import JobState, NodeState
from scheduler.core.turn import Turn
from scheduler.policies.interface import Figure, Need, Reason
from schemas.values import MAX_NODES_PER_GANG


def sizes_of(job: Job) -> list[int]:
    """List the sizes that a job has a rate for, ascending: those that a policy chooses from."""
    points = job.rates if job.curve is None else job.curve["points"]
    return [int(gpus) for gpus, rate in points if rate > 0 and job.gpus_min <= gpus <= job.gpus_max]


def resize(turn: Turn, limits: Mapping[str, int]) -> Iterator[Reason]:
    """Claim GPUs for jobs that run at another size than was set; say why of those that cannot.

    Args:
        turn: The turn in which a plan was adopted.
        limits: By tenant, the most GPUs that its jobs may hold together.
    """
    state = turn.state
    names = [name for name in state.standing.sizes if name in state.jobs]
    if not names:
        return
    ledger = Ledger(state)
    for job in sorted((state.jobs[name] for name in names), key=lambda job: job.number):
        gpus = state.standing.sizes[job.id].gpus
        if job.state is not JobState.RUNNING or job.target is not None or job.leaving:
            continue
        if job.size == gpus or barred(state, job, gpus):
            continue
        if not all(state.nodes[name].state is NodeState.ALIVE for name in job.allocation):
            continue
        if (why := ledger.refusal(job, gpus)) is not None:
            yield why
            continue
        limit, wanted = limits.get(job.tenant), Figure("gpus", float(gpus))
        if limit is not None and gpus > job.size and _held(state, job) + gpus > limit:
            bound = Figure("limit_gpus", float(limit))
            yield Reason(job.id, "keeps", "operator.scale", (wanted, bound))
            continue
        allocation, most = _less(state, job, gpus), gpus
        if gpus > job.size:
            allocation, most = _more(state, job, gpus)
        if most < gpus:
            need = Need("free_gpus", float(most - job.size), float(gpus - job.size))
            yield Reason(job.id, "keeps", "operator.scale", (wanted,), (), (need,))
            continue
        verb = "scales_out" if gpus > job.size else "scales_in"
        before = ledger.counts(job)
        turn.because(job.id, verb, "operator.scale", gpus=gpus)
        turn.emit(facts.TargetSet(job.id, job.pool or "", allocation, verb))
        ledger.take(job, before)


def _held(state: ClusterState, asks: Job) -> int:
    """Count the GPUs that the other jobs of a tenant have or claim, or are still to leave."""
    held = 0
    for job in state.jobs.values():
        if job.tenant == asks.tenant and job is not asks:
            claims = sum(map(len, (job.target or {}).values()))
            held += max(job.size, claims) + sum(map(len, job.leaving.values()))
    return held


def _less(state: ClusterState, job: Job, gpus: int) -> Allocation:
    """Choose what a job keeps of its GPUs: on few nodes, open ones with most first."""
    kept: Allocation = {}
    closed = {name: not usable(state, state.nodes[name]) for name in job.allocation}
    own_parts = job.allocation.items()
    for name, own in sorted(own_parts, key=lambda part: (closed[part[0]], -len(part[1]), part[0])):
        if gpus > 0:
            kept[name] = sorted(own)[:gpus]
            gpus -= len(kept[name])
    return dict(sorted(kept.items()))


def _more(state: ClusterState, job: Job, gpus: int) -> tuple[Allocation, int]:
    """Add free GPUs of the job's site to what it has: the allocation, and how many it is."""
    allocation = {name: sorted(own) for name, own in job.allocation.items()}
    left = gpus - job.size
    first = state.nodes[min(allocation)]
    alone = state.pools[first.pool].kind == "edge"
    free = {
        name: found
        for name in state.pools[first.pool].nodes
        if name in allocation or not alone
        if (found := _free(state, state.nodes[name], first, job))
    }
    for name in sorted(free, key=lambda name: (name not in allocation, -len(free[name]), name)):
        if name not in allocation and len(allocation) == MAX_NODES_PER_GANG:
            break
        taken = free[name][:left]
        left -= len(taken)
        if taken:
            allocation[name] = sorted([*allocation.get(name, ()), *taken])
    return dict(sorted(allocation.items())), gpus - left


def _free(state: ClusterState, node: Node, first: Node, job: Job) -> list[int]:
    """List the GPUs of a node that nobody holds or claims, and the job could have."""
    if not usable(state, node) or node.agent != first.agent or node.gpu_memory_mib < job.memory_mib:
        return []
    pairs = enumerate(zip(node.holder, node.claim, strict=True))
    return [gpu for gpu, (who, by) in pairs if who is None and by is None]
