"""Conservation laws: what must hold of every state, whatever happened."""

from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import HOLDING, TERMINAL, JobState, LoanState, NodeState


def violations(state: ClusterState) -> list[str]:
    """List what is wrong with the state, one sentence each; empty when all is well."""
    found: list[str] = []
    claimants = set(state.claimants)
    for job in state.jobs.values():
        found += _job(state, job, job.id in claimants)
    found += _ledger(state)
    found += _standing(state)
    found += _counts(state)
    return found


def _job(state: ClusterState, job: Job, claims: bool) -> list[str]:
    found = []
    if job.state not in HOLDING and (job.allocation or job.leaving):
        found.append(f"{job.id}: {job.state} but holds GPUs")
    if job.state is JobState.MIGRATING and job.target is None:
        found.append(f"{job.id}: migrating to nowhere")
    if job.state in TERMINAL and job.target is not None:
        found.append(f"{job.id}: {job.state} but claims GPUs")
    if job.state in (JobState.STARTING, JobState.RUNNING, JobState.SCALING):
        if not job.allocation:
            found.append(f"{job.id}: {job.state} without a GPU")
        elif not job.gpus_min <= job.size <= job.gpus_max:
            found.append(f"{job.id}: {job.size} GPUs, allowed {job.gpus_min} to {job.gpus_max}")
    pools = {state.nodes[name].pool for name in job.allocation}
    if len(pools) > 1 or (job.allocation and pools != {job.pool}):
        found.append(f"{job.id}: a gang over pools {sorted(pools)}, recorded as {job.pool}")
    if len({state.nodes[name].agent for name in job.allocation}) > 1:
        found.append(f"{job.id}: a gang over several agents")
    if (job.target is not None) != claims:
        found.append(f"{job.id}: target and list of claimants disagree")
    for name, gpus in (job.target or {}).items():
        held_for = state.nodes[name].claim
        own = job.allocation.get(name, ())
        lost = [gpu for gpu in gpus if gpu not in own and held_for[gpu] != job.id]
        found += [f"{job.id}: its target {name}/{gpu} is not held for it" for gpu in lost]
    for name, gpus in job.allocation.items():
        for gpu in gpus:
            node = state.nodes[name]
            if node.holder[gpu] != job.id or node.epoch[gpu] != job.epoch:
                found.append(f"{job.id}: {name}/{gpu} is not its own in the ledger")
    return found


def _ledger(state: ClusterState) -> list[str]:
    found = []
    for node in state.nodes.values():
        lent = node.loan_state in (LoanState.LENT, LoanState.RECLAIMING)
        owned = state.pools[node.pool].kind == "training"
        for gpu, holder in enumerate(node.holder):
            if holder is None:
                continue
            if node.state is NodeState.DEAD:
                found.append(f"{node.id}/{gpu}: held by {holder} on a dead node")
            job = state.jobs.get(holder)
            mine = job is not None and (
                gpu in job.allocation.get(node.id, ()) or gpu in job.leaving.get(node.id, ())
            )
            if job is not None and mine and node.epoch[gpu] > job.epoch:
                found.append(f"{node.id}/{gpu}: epoch above that of {holder}")
            if mine and not (owned or lent):
                found.append(f"{node.id}/{gpu}: held by {holder} without a loan")
        for gpu, claimant in enumerate(node.claim):
            if claimant is None:
                continue
            job = state.jobs.get(claimant)
            if job is None or gpu not in (job.target or {}).get(node.id, ()):
                found.append(f"{node.id}/{gpu}: held for {claimant}, which does not claim it")
        if (node.loan is None) != (node.loan_state is None):
            found.append(f"{node.id}: loan and its state disagree")
    return found


def _standing(state: ClusterState) -> list[str]:
    standing, nodes = state.standing, state.nodes
    found = [f"{name}: cordoned but unknown" for name in standing.cordons if name not in nodes]
    drained = [name for name in standing.drains if name not in standing.cordons]
    found += [f"{name}: drained but not cordoned" for name in drained]
    for node in (nodes[name] for name in standing.cordons if name in nodes):
        pairs = zip(node.holder, node.claim, strict=True)
        held_for = [who for holder, who in pairs if who is not None and who != holder]
        found += [f"{node.id}: cordoned but held for {who}" for who in held_for]
    for name in (*standing.holds, *standing.sizes):
        if name not in state.jobs or state.jobs[name].state in TERMINAL:
            found.append(f"{name}: held, or of a set size, but it is no live job")
        elif name in standing.holds and state.jobs[name].target is not None:
            found.append(f"{name}: held but claims GPUs")
    starts = (state.jobs[name] for name in state.claimants if "starts" in standing.pauses)
    queued = (job for job in starts if job.state is JobState.QUEUED)
    found += [f"{job.id}: claims GPUs to start while starts are paused" for job in queued]
    return found


def _counts(state: ClusterState) -> list[str]:
    nodes = state.nodes.values()
    counted = {
        "on_loan": sorted(n.id for n in nodes if n.loan is not None),
        "gpus_alive": sum(n.gpu_count for n in nodes if n.state is not NodeState.DEAD),
        "gpus_held": sum(holder is not None for n in nodes for holder in n.holder),
        "gpus_loaned": sum(
            n.gpu_count for n in nodes if n.loan_state not in (None, LoanState.LENDING)
        ),
    }
    return [
        f"{name}: counted {value}, kept {getattr(state, name)}"
        for name, value in counted.items()
        if value != getattr(state, name)
    ]
