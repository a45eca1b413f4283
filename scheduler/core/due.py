"""What time alone brings: leases that end, commands unanswered, starts and claims overdue."""

from scheduler.core import claims, facts
from scheduler.core.leave import ask, gang_died, is_overdue, node_lost, stop, transfer_s
from scheduler.core.orders import reissue
from scheduler.core.state import Job
from scheduler.core.transitions import TERMINAL, JobState, NodeState
from scheduler.core.turn import Turn

_LEAVING = (JobState.CHECKPOINTING, JobState.STOPPING)


def overdue(turn: Turn) -> None:
    """Do whatever is due by now."""
    _leases(turn)
    _commands(turn)
    _jobs(turn)
    claims.give_up(turn)
    _strays(turn)


def _leases(turn: Turn) -> None:
    state = turn.state
    for node in list(state.nodes.values()):
        if node.state is NodeState.UNKNOWN and (node.lease_end_s or 0.0) <= state.now_s:
            node_lost(turn, node, "silent until its lease ended")


def _commands(turn: Turn) -> None:
    state, settings = turn.state, turn.settings
    for command in list(state.commands.values()):
        if command.id not in state.commands:
            continue
        if command.expires_s <= state.now_s:
            turn.emit(facts.CommandExpired(command.id))
            job = state.jobs.get(command.subject)
            if job is not None and command.data.get("epoch") == job.epoch:
                if command.kind in ("StartGang", "ScaleGang"):
                    gang_died(turn, job, f"{command.kind} was never acknowledged")
                elif command.kind == "StopGang" and job.state in _LEAVING:
                    turn.stop_gang(job, job.stop_reason, checkpoint=False)
        elif command.sent_s + settings.resend_s * 2.0 ** (command.tries - 1) <= state.now_s:
            again = reissue(state, command)
            if again is None:
                turn.emit(facts.CommandExpired(command.id))
                continue
            turn.emit(facts.CommandRepeated(command.id))
            turn.commands.append(again)


def _jobs(turn: Turn) -> None:
    state, settings = turn.state, turn.settings
    for job in list(state.jobs.values()):
        if job.state is JobState.QUEUED:
            continue
        if job.state in TERMINAL:
            if (job.end_s or 0.0) + settings.forget_s <= state.now_s:
                turn.emit(facts.JobForgotten(job.id))
        elif job.state in (JobState.STARTING, JobState.SCALING):
            begins_s = transfer_s(turn, job) if job.checkpoint_step else 0.0
            limit_s = settings.start_timeout_s + 2.0 * job.start_cost_s + begins_s
            if (job.changed_s or 0.0) + limit_s <= state.now_s and _in_contact(turn, job):
                turn.because(job.id, "preempts", "gang.start_timeout", limit_s=limit_s)
                stop(turn, job, "start_timeout")
        elif job.state in _LEAVING:
            # A gang that never was leaves without a word: its agent must be asked.
            if is_overdue(turn, job):
                _ask_about(turn, job)
        else:
            late = (job.changed_s or 0.0) + settings.start_timeout_s <= state.now_s
            if (job.leaving and late) or _unheard(turn, job):
                _ask_about(turn, job)


def _unheard(turn: Turn, job: Job) -> bool:
    """Whether nothing was said of a running gang for long; now and then, while that lasts."""
    if job.state is not JobState.RUNNING:
        return False
    quiet_s = turn.state.now_s - max(job.step_at_s, job.changed_s or 0.0)
    limit_s = turn.settings.unheard_s
    return quiet_s >= limit_s and quiet_s % (limit_s / 2.0) < turn.settings.cycle_s


def _strays(turn: Turn) -> None:
    """Ask about gangs that were told to go long ago and still hold GPUs."""
    for name in turn.state.stray_nodes:
        node = turn.state.nodes[name]
        told = any(
            command.kind == "StopGang" and command.subject in node.holder
            for command in turn.state.commands.values()
        )
        if node.state is NodeState.ALIVE and not told:
            ask(turn, node, "does what should be gone still run?")


def _ask_about(turn: Turn, job: Job) -> None:
    for name in sorted({*job.cells, *job.leaving}):
        node = turn.state.nodes[name]
        if node.state is NodeState.ALIVE:
            ask(turn, node, f"what is left of {job.id}?")


def _in_contact(turn: Turn, job: Job) -> bool:
    return all(turn.state.nodes[name].state is NodeState.ALIVE for name in job.cells)
