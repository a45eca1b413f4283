"""How gangs leave their GPUs: released, ended, died, or lost with their node."""

from scheduler.core import facts
from scheduler.core.grace import longest_s
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job, Node, command_order
from scheduler.core.transitions import HOLDING, JobState, LoanState, NodeState
from scheduler.core.turn import Turn
from schemas.commands import Rebirth, ReturnNode, StopGang

UP = (JobState.STARTING, JobState.RUNNING, JobState.SCALING)
_ORDERS = ("StartGang", "ScaleGang")


def ask(turn: Turn, node: Node, reason: str) -> None:
    """Have a node's agent say what it holds, unless it was asked and has not answered."""
    if not turn.state.is_open("Rebirth", node.agent):
        turn.command(node.agent, Rebirth(reason=reason), node.id)


def release(turn: Turn, job_id: str, node: str, gpus: list[int]) -> None:
    """Free GPUs that a job held on a node."""
    turn.emit(facts.GpusReleased(job_id, node, sorted(gpus)))


def drop_claim(
    turn: Turn, job: Job, reason: str, *, refused: bool = False, timed_out: bool = False
) -> None:
    """Give up what a job claims, if anything; one between two allocations queues again."""
    if job.target is None:
        return
    turn.emit(facts.TargetDropped(job.id, reason, timed_out, refused))
    if job.state is JobState.MIGRATING:
        turn.emit(facts.JobQueued(job.id, "migrated", job.checkpoint_step, None))


def stop(turn: Turn, job: Job, reason: str) -> None:
    """Take a gang off its GPUs, saving its work first if it has any."""
    if reason != "migrated":
        drop_claim(turn, job, reason)
    if job.state is JobState.STARTING:
        turn.emit(facts.GangStopping(job.id, reason))
        turn.stop_gang(job, reason, checkpoint=False)
    elif job.state in UP:
        turn.emit(facts.GangCheckpointing(job.id, reason))
        turn.stop_gang(job, reason, checkpoint=True)


def transfer_s(state: ClusterState, job: Job) -> float:
    """Give how long a checkpoint of the job takes to or from where its gang is."""
    if not job.allocation:
        return 0.0
    return job.checkpoint_mib / state.nodes[next(iter(job.allocation))].transfer_mib_per_s


def gone_by_s(state: ClusterState, settings: Settings, job: Job) -> float:
    """Give when a gang that was told to leave should be gone, its last checkpoint stored."""
    time_s = longest_s(settings, job) + settings.resend_s
    if saves(job):
        time_s += transfer_s(state, job)
    return job.stop_since_s + time_s


def saves(job: Job) -> bool:
    """Whether a gang that leaves may be saving: a checkpoint from before is not the last one."""
    kept = ("preempted", "migrated", "held", "requeued")
    return job.state is JobState.CHECKPOINTING or (
        job.state is JobState.STOPPING and job.stop_reason in kept
    )


def is_overdue(turn: Turn, job: Job) -> bool:
    """Whether a gang that was told to leave should be gone."""
    return gone_by_s(turn.state, turn.settings, job) <= turn.state.now_s


def end_gang(turn: Turn, job: Job, reason: str, detail: str = "") -> None:
    """A gang goes for good, without saving: what is left of it is told to leave."""
    drop_claim(turn, job, reason)
    turn.emit(facts.GangStopping(job.id, reason, detail[:200]))
    if job.allocation or job.leaving:
        turn.stop_gang(job, reason, checkpoint=False)


def gang_died(turn: Turn, job: Job, error: str) -> None:
    """A part of the gang is gone: the rest cannot go on without it."""
    if job.state in UP:
        turn.because(job.id, "preempts", "gang.died", step_kept=job.checkpoint_step)
        end_gang(turn, job, "failed", error)
    finish_leaving(turn, job)


def finish_leaving(turn: Turn, job: Job) -> None:
    """A job that was leaving and holds nothing any more takes its next state."""
    if job.state not in HOLDING or job.allocation or job.leaving:
        return
    reason = job.stop_reason
    if reason == "completed":
        turn.emit(facts.JobCompleted(job.id))
    elif job.cancel_requested:
        turn.emit(facts.JobCancelled(job.id))
    elif reason == "not_retriable":
        turn.emit(facts.JobFailed(job.id, reason))
    elif reason == "migrated" and job.target is not None:
        turn.emit(facts.JobMigrating(job.id, job.checkpoint_step))
    else:
        _queue_again(turn, job, reason)


def _queue_again(turn: Turn, job: Job, reason: str) -> None:
    settings = turn.settings
    failed = reason in ("failed", "start_timeout")
    backoff_until_s = None
    if failed:
        if job.failures + 1 >= settings.failures_max:
            turn.emit(facts.JobFailed(job.id, "failed too often"))
            return
        pause_s = min(3600.0, settings.backoff_s * 2.0 ** min(job.failures, 10))
        backoff_until_s = turn.state.now_s + pause_s
    drop_claim(turn, job, reason)
    turn.emit(
        facts.JobQueued(
            job.id, "failed" if failed else reason, job.checkpoint_step, backoff_until_s
        )
    )


def release_parts(turn: Turn, node: Node, parts: dict[str, list[int]], error: str) -> None:
    """Free what jobs held on a node; gangs that had a part there have died."""
    jobs = turn.state.jobs
    # Of a stray, or of GPUs that were being left anyway, no gang dies.
    died = [
        holder
        for holder in parts
        if holder in jobs
        and not {*jobs[holder].allocation.get(node.id, ())}.isdisjoint(parts[holder])
    ]
    for holder in parts:
        release(turn, holder, node.id, parts[holder])
    for holder in parts:
        if holder in died:
            gang_died(turn, jobs[holder], error)
        elif holder in jobs:
            finish_leaving(turn, jobs[holder])


def claimants_of(state: ClusterState, node: Node) -> list[Job]:
    """List who claims a part of a node, oldest claim first. One may hold there what it claims."""
    there = dict.fromkeys((*node.claim, *node.holder))
    jobs = [job for name in there if name is not None and (job := state.jobs.get(name)) is not None]
    found = {job.id: job for job in jobs if job.target is not None and node.id in job.target}
    if len(found) < 2:
        return list(found.values())
    return [found[name] for name in state.claimants if name in found]


def node_lost(turn: Turn, node: Node, reason: str) -> None:
    """A node is gone: what it ran has ended, what was planned on it is off."""
    state = turn.state
    _void_orders(turn, node)
    for job in claimants_of(state, node):
        drop_claim(turn, job, f"{node.id}: {reason}")
    parts: dict[str, list[int]] = {}
    for gpu, holder in enumerate(node.holder):
        if holder is not None:
            parts.setdefault(holder, []).append(gpu)
    release_parts(turn, node, parts, f"{node.id}: {reason}")
    if node.loan is not None:
        asked, order = node.loan_state, ReturnNode(node=node.id, loan=node.loan)
        turn.emit(facts.LoanLost(node.id))
        if asked is LoanState.LENDING:
            # Its agent may be about to read that it shall lend, and its owner would miss the node.
            turn.command(node.agent, order, node.id)
    if node.state is not NodeState.DEAD:
        turn.emit(facts.NodeLost(node.id, reason))


def _void_orders(turn: Turn, node: Node) -> None:
    """Orders on their way to the node must not begin what will be begun elsewhere."""
    state = turn.state
    holders = [name for name in dict.fromkeys(node.holder) if name in state.jobs]
    orders = [order for name in holders for kind in _ORDERS for order in state.opened(kind, name)]
    for command in sorted(orders, key=lambda order: command_order(order.id)):
        job = state.jobs[command.subject]
        if command.agent != node.agent or node.id not in job.allocation:
            continue
        if command.data["epoch"] == job.epoch:
            turn.emit(facts.CommandExpired(command.id))
            order = StopGang(
                job=job.id,
                epoch=job.epoch,
                reason="superseded",
                checkpoint=False,
                grace_s=turn.settings.grace_s,
            )
            turn.command(node.agent, order, job.id)
