"""What each report of jobs means: of tenants, workers and estimators, and acknowledgements.

Reports may come twice, late, or about allocations long gone; those change nothing.
"""

from collections.abc import Mapping
from typing import Any

from scheduler.core import facts
from scheduler.core.leave import (
    UP,
    ask,
    drop_claim,
    end_gang,
    finish_leaving,
    gang_died,
    node_lost,
    release,
    stop,
)
from scheduler.core.state import ClusterState, Job, Node, OpenCommand
from scheduler.core.stimuli import Cause, CurvesLearned, LengthsLearned, SubmittedAhead
from scheduler.core.tenant_bytes import bytes_of
from scheduler.core.transitions import (
    HOLDING,
    JOB,
    TERMINAL,
    JobState,
    LoanState,
    NodeState,
)
from scheduler.core.turn import Turn
from schemas import commands, events

#: Why a submission is refused whose tenant has given the name already.
OWN_TAKEN = "another job of this tenant has this id"


def submitted(turn: Turn, job: events.JobSubmitted) -> None:
    """Take a job into the queue, once."""
    spec: dict[str, Any] = {
        "tenant": job.tenant,
        "model": job.model,
        "gpus_min": job.gpus_min,
        "gpus_max": job.gpus_max,
        "total_steps": job.total_steps,
        "samples_per_step": job.samples_per_step,
        "rates": [[point.gpus, point.samples_per_s] for point in job.rates],
        "deadline_s": job.deadline_s,
        "memory_mib": job.memory_mib,
        "checkpoint_mib": job.checkpoint_mib,
        "checkpoint_cost_s": job.checkpoint_cost_s,
        "start_cost_s": job.start_cost_s,
        "priority": job.priority,
        "edge_allowed": job.edge_allowed,
    }
    if job.gpus is not None:
        spec["gpus"] = job.gpus
    if job.program is not None:
        spec["program"] = job.program.model_dump(exclude_defaults=True)
    if isinstance(job, SubmittedAhead):
        spec["deadline_said_s"] = job.deadline_said_s
    known = turn.state.jobs.get(job.job)
    if known is None and (full := _full(turn, job.tenant, spec.get("program"))) is not None:
        turn.emit(facts.SubmissionRefused(job.job, full))
    elif known is None:
        turn.emit(facts.JobAccepted(job.job, spec))
    elif known.tenant != job.tenant:
        turn.emit(facts.SubmissionRefused(job.job, f"{job.job} is {known.tenant}'s"))
    elif not _is_as_submitted(known, spec, turn.state.standing.priorities):
        turn.emit(facts.SubmissionRefused(job.job, OWN_TAKEN))


def _full(turn: Turn, tenant: str, program: dict[str, Any] | None) -> str | None:
    """Say why a tenant's further job is refused; None: there is room for it."""
    most_mib = turn.settings.tenant_jobs_mib
    taken = turn.state.bytes_taken(tenant) + bytes_of(program)
    if most_mib is None or taken <= most_mib * 2**20:
        return None
    hours = turn.settings.forget_s / 3600.0
    return (
        f"{tenant}'s jobs take the {most_mib:g} MiB that a tenant's may "
        "(scheduler.settings.tenant_jobs_mib): 4 KiB each, and what their commands take; those "
        f"that ended count for {hours:g} h"
    )


def _is_as_submitted(job: Job, spec: dict[str, Any], priorities: Mapping[str, int]) -> bool:
    """Whether a submission says again what the job's own said, before operators changed it."""
    asked = {"gpus": None, "program": None, **spec}
    del asked["checkpoint_cost_s"]  # reports have replaced it
    priority, due_s = asked.pop("priority"), asked.pop("deadline_s")
    known_s = job.deadline_s if job.deadline_said_s is None else job.deadline_said_s
    on_time = asked.pop("deadline_said_s", due_s) == known_s
    same = on_time and all(getattr(job, name) == value for name, value in asked.items())
    return same and priorities.get(job.id, job.priority) == priority


def cancelled(turn: Turn, request: events.JobCancelled) -> None:
    """Let a job go: at once if it holds nothing, else after its gang has left."""
    job = turn.state.jobs.get(request.job)
    if job is None or job.state in TERMINAL or job.cancel_requested:
        return
    if job.state in (JobState.QUEUED, JobState.MIGRATING):
        turn.emit(facts.JobCancelled(job.id))
        return
    turn.emit(facts.CancelRequested(job.id))
    if job.state in UP:
        end_gang(turn, job, "cancelled")
    else:
        drop_claim(turn, job, "cancelled")


def progressed(turn: Turn, report: events.JobProgressed, cause: Cause) -> None:
    """Remember how far a job is."""
    known = turn.state.jobs.get(report.job)
    if known is not None and report.epoch > known.epoch:
        _runs_unknown(turn, report, cause)
    job = _current(turn, report.job, report.epoch)
    if job is None or report.step < job.step:
        return
    step = _within(job, report.step)
    turn.emit(
        facts.JobAdvanced(
            job.id,
            step,
            report.samples_per_s,
            min(report.checkpoint_step, step),
            report.checkpoint_cost_s,
        )
    )
    if report.metrics:
        turn.emit(facts.JobMeasured(job.id, step, report.metrics))


def _runs_unknown(turn: Turn, report: events.JobProgressed, cause: Cause) -> None:
    """Ask what an agent holds that runs a gang of which the journal, cut short, knows nothing."""
    agent = cause.source.rpartition("/")[2]
    if turn.state.is_open("Rebirth", agent):
        return
    for node in turn.state.nodes.values():
        if node.agent == agent and node.state is NodeState.ALIVE:
            ask(turn, node, f"what of {report.job}, epoch {report.epoch}, do you hold?")
            return


def learned(turn: Turn, report: CurvesLearned) -> None:
    """Take over what was learned of jobs that are still there."""
    jobs = turn.state.jobs
    known = {
        name: dict(curve)
        for name, curve in report.curves.items()
        if name in jobs and jobs[name].state not in TERMINAL
    }
    if known:
        turn.emit(facts.CurvesReplaced(known))


def lengths_learned(turn: Turn, report: LengthsLearned) -> None:
    """Take over what was learned of the lengths of jobs that are still there and declared none."""
    jobs = turn.state.jobs
    known = {
        name: dict(length)
        for name, length in report.lengths.items()
        if name in jobs and jobs[name].state not in TERMINAL and jobs[name].total_steps is None
    }
    if known:
        turn.emit(facts.LengthsReplaced(known))


def worker_started(turn: Turn, report: events.WorkerStarted) -> None:
    """Count a worker in; the gang runs when all are up."""
    job = _current(turn, report.job, report.epoch)
    if job is None or job.state not in UP:
        return
    if report.node in job.ready and report.step < job.step:
        # Its machine was down, and its agent resumed it from a checkpoint, under the same epoch.
        _goes_on_from(turn, job, report.step)
    if report.node not in job.allocation or report.node in job.ready:
        return
    turn.emit(facts.WorkerReady(job.id, report.epoch, report.node))
    if job.state is not JobState.RUNNING and all(name in job.ready for name in job.allocation):
        turn.emit(facts.GangRunning(job.id))
        # After a change of size it may be far ahead of its last report of progress.
        if (step := _within(job, report.step)) > job.step:
            _goes_on_from(turn, job, step)


def _goes_on_from(turn: Turn, job: Job, step: int) -> None:
    saved, cost_s = min(job.checkpoint_step, step), job.checkpoint_cost_s
    turn.emit(facts.JobAdvanced(job.id, step, 0.0, saved, cost_s))


def worker_left(turn: Turn, report: events.WorkerStopped | events.WorkerFailed) -> None:
    """Free the GPUs that a worker left; find out what that means for its gang.

    A gang may end before it hears of its new size: then it reports the epoch before.
    """
    node = turn.state.nodes.get(report.node)
    known = turn.state.jobs.get(report.job)
    if node is None or (known is not None and report.epoch > known.epoch):
        return  # nobody ever gave that allocation
    scaled_in = isinstance(report, events.WorkerStopped) and report.reason == "scaled_in"
    job = None if scaled_in else _gang(turn, report.job, report.epoch)
    gpus = [
        gpu
        for gpu in report.gpus
        if gpu < node.gpu_count
        and node.holder[gpu] == report.job
        and (node.epoch[gpu] <= report.epoch or job is not None)
    ]
    if job is not None and report.step > job.checkpoint_step:
        saved = _within(job, report.step)
        turn.emit(facts.CheckpointSaved(job.id, saved, job.checkpoint_cost_s))
    if not gpus:
        return
    job = _gang(turn, report.job, report.epoch)
    part = job is not None and any(gpu in job.allocation.get(node.id, ()) for gpu in gpus)
    release(turn, report.job, node.id, gpus)
    if job is not None:
        if part:
            _part_left(turn, job, report)
        finish_leaving(turn, job)


def _part_left(turn: Turn, job: Job, report: events.WorkerStopped | events.WorkerFailed) -> None:
    """A worker that the gang needs is gone: so is the gang."""
    completed = job.stop_reason == "completed"
    if isinstance(report, events.WorkerFailed):
        if not report.retriable and not completed:
            end_gang(turn, job, "not_retriable", report.error)
        gang_died(turn, job, report.error)
    elif report.reason == "completed":
        if not completed:
            drop_claim(turn, job, "completed")
            turn.emit(facts.GangStopping(job.id, "completed"))
    elif job.state in UP:
        end_gang(turn, job, report.reason)


def checkpoint_saved(turn: Turn, report: events.CheckpointCommitted) -> None:
    """Remember the step that a job can go on from."""
    job = _gang(turn, report.job, report.epoch) or _waiting(turn, report.job, report.epoch)
    if job is not None and (job.state, "CheckpointSaved") in JOB:
        step = _within(job, report.step)
        turn.emit(facts.CheckpointSaved(job.id, step, report.cost_s))


def outputs_kept(turn: Turn, report: events.OutputsKept) -> None:
    """Note where the outputs of a job are."""
    job = _gang(turn, report.job, report.epoch)
    if job is not None:
        about = (report.uri, report.files, report.size_mib, report.left_out)
        turn.emit(facts.OutputsKept(job.id, *about))


def checkpoint_missed(turn: Turn, report: events.CheckpointFailed) -> None:
    """Remember that a checkpoint failed."""
    job = _gang(turn, report.job, report.epoch)
    if job is not None and (job.state, "CheckpointMissed") in JOB:
        turn.emit(facts.CheckpointMissed(job.id, report.error))


def acknowledged(turn: Turn, ack: events.CommandAcknowledged, cause: Cause) -> None:
    """Close a command, and draw the consequence."""
    command = turn.state.commands.get(ack.command)
    if command is None:
        return
    done = ack.outcome == "done"
    turn.emit(
        facts.CommandDone(ack.command) if done else facts.CommandRefused(ack.command, ack.reason)
    )
    node = turn.state.nodes.get(command.subject)
    job = turn.state.jobs.get(command.subject)
    if command.kind == "Rebirth" and node is not None:
        if done and _is_left_out(turn.state, node, command.agent, cause):
            _end_left_out(turn, node)
    elif command.kind == "LendNode" and node is not None:
        _lend_answered(turn, node, command.data["loan"], ack)
    elif command.kind == "ReturnNode" and node is not None:
        if node.loan == command.data["loan"] and node.loan_state is LoanState.RETURNING:
            if done:
                turn.emit(facts.LoanReturned(node.id))
            else:
                ask(turn, node, "you refused to take your node back")
    elif not done and job is not None and command.data.get("epoch") == job.epoch:
        _order_refused(turn, command, job, ack.reason)


def _is_left_out(state: ClusterState, node: Node, agent: str, cause: Cause) -> bool:
    """Whether an agent that began anew has named others of its nodes, and not this one.

    It names all that it has when it is asked, and then, in the same moment, it answers. Of a node
    that it left out it says nothing where its state was lost, too, and the node would live as long
    as the agent is heard. Agents of earlier releases answer first, which says nothing: a birth
    that they said when they began may be lost.
    """
    if node.state is NodeState.DEAD or node.agent != agent or node.bootid >= cause.bootid:
        return False
    said = cause.bootid, cause.said_s
    return any(
        one.agent == agent and (one.bootid, one.said_s) == said for one in state.nodes.values()
    )


def _end_left_out(turn: Turn, node: Node) -> None:
    """Give up a node for which nobody speaks, and have what may run there end."""
    gangs = dict.fromkeys(zip(node.holder, node.epoch, strict=True))
    for job, epoch in gangs:
        if job is not None:
            order = commands.StopGang(
                job=job, epoch=epoch, reason="superseded", checkpoint=False, grace_s=0.0
            )
            turn.command(node.agent, order, job)
    node_lost(turn, node, "its agent began anew without it")


def _lend_answered(turn: Turn, node: Node, loan: str, ack: events.CommandAcknowledged) -> None:
    asked = node.loan == loan and node.loan_state is LoanState.LENDING
    if ack.outcome == "done":
        if asked:
            turn.emit(facts.LoanGranted(node.id))
        elif node.loan != loan:
            # Nobody waits for it any more; the owner would miss its node for good.
            turn.command(node.agent, commands.ReturnNode(node=node.id, loan=loan), node.id)
    elif asked:
        turn.emit(facts.LoanRefused(node.id, ack.reason))
        ask(turn, node, "you refused to lend; are you on another loan?")


def _order_refused(turn: Turn, command: OpenCommand, job: Job, reason: str) -> None:
    """Nothing of a refused start runs; of a refused change of size, only the agent knows."""
    if command.kind not in ("StartGang", "ScaleGang"):
        return
    nodes = [turn.state.nodes[name] for name in sorted({*job.allocation, *job.leaving})]
    if command.kind == "StartGang":
        parts = {node.id: list(job.allocation.get(node.id, ())) for node in nodes}
        for node in nodes:
            if parts[node.id]:
                release(turn, job.id, node.id, parts[node.id])
        gang_died(turn, job, f"{command.kind} refused: {reason}")
    elif job.state in UP:
        # It may run on as large as it was, with work that no checkpoint has yet.
        turn.because(job.id, "preempts", "gang.size_refused", step_kept=job.checkpoint_step)
        stop(turn, job, "failed")
    if nodes:
        ask(turn, nodes[0], f"you refused {command.kind}: what do you hold?")


def _within(job: Job, step: int) -> int:
    """Give a step, at most the job's last."""
    return step if job.total_steps is None else min(step, job.total_steps)


def of_gang(job: Job, epoch: int) -> bool:
    """Whether an epoch is of the job's present gang, before or after changes of its size."""
    return job.state in HOLDING and job.start_epoch <= epoch <= job.epoch


def _gang(turn: Turn, job_id: str, epoch: int) -> Job | None:
    """Give the job if the report is about its present gang."""
    job = turn.state.jobs.get(job_id)
    return job if job is not None and of_gang(job, epoch) else None


def _waiting(turn: Turn, job_id: str, epoch: int) -> Job | None:
    """Give the job if it waits since this allocation, whose agent may have been unheard."""
    job = turn.state.jobs.get(job_id)
    return job if job is not None and job.state is JobState.QUEUED and job.epoch == epoch else None


def _current(turn: Turn, job_id: str, epoch: int) -> Job | None:
    """Give the job if the report is about its present allocation."""
    job = turn.state.jobs.get(job_id)
    if job is None or job.epoch != epoch or job.state not in HOLDING:
        return None
    return job
