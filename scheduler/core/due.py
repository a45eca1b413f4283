"""What time alone brings: leases that end, commands unanswered, starts and claims overdue."""

from collections.abc import Callable

from scheduler.core import claims, facts
from scheduler.core.agenda import Agenda, start_limit_s
from scheduler.core.leave import ask, gang_died, node_lost, stop
from scheduler.core.orders import reissue
from scheduler.core.state import Job, OpenCommand, command_order
from scheduler.core.transitions import LEAVING, TERMINAL, JobState, NodeState
from scheduler.core.turn import Turn
from schemas.commands import ReturnNode


def overdue(turn: Turn, agenda: Agenda, see: Callable[[], None]) -> None:
    """Do whatever is due by now: of each kind in the order that the state has.

    What one kind brings may end what of the next was due: `see` shows the agenda the turn's facts.
    """
    state = turn.state
    _end_leases(turn, sorted(agenda.nodes.due(state.now_s)))
    see()
    _commands(turn, sorted(agenda.commands.due(state.now_s), key=command_order))
    see()
    _jobs(turn, agenda.jobs.due(state.now_s))
    claims.give_up(turn)
    _strays(turn)


def _end_leases(turn: Turn, names: list[str]) -> None:
    """Give up nodes that were silent until their lease ended: their agents have ended their gangs.

    The jobs that ran there wait again, to be started elsewhere from their newest checkpoint.
    """
    for name in names:
        node_lost(turn, turn.state.nodes[name], "silent until its lease ended")


def _commands(turn: Turn, names: list[str]) -> None:
    state = turn.state
    for name in names:
        command = state.commands.get(name)
        if command is None:
            continue
        if command.expires_s <= state.now_s:
            turn.emit(facts.CommandExpired(command.id))
            job = state.jobs.get(command.subject)
            if job is not None and command.data.get("epoch") == job.epoch:
                if command.kind in ("StartGang", "ScaleGang"):
                    gang_died(turn, job, f"{command.kind} was never acknowledged")
                elif command.kind == "StopGang" and job.state in LEAVING:
                    turn.stop_gang(job, job.stop_reason, checkpoint=False)
            elif command.kind == "ReturnNode":
                _return_again(turn, command)
        else:
            again = reissue(state, command)
            if again is None:
                turn.emit(facts.CommandExpired(command.id))
                continue
            turn.emit(facts.CommandRepeated(command.id))
            turn.commands.append(again)


def _return_again(turn: Turn, command: OpenCommand) -> None:
    """Go on calling a node back from a loan that was given up: its agent may be on it still.

    One that is returning is called back anyway (`loans`), and one that was dead says its loan.
    """
    node = turn.state.nodes[command.subject]
    if node.loan is None and node.state is not NodeState.DEAD:
        turn.command(node.agent, ReturnNode(node=node.id, loan=command.data["loan"]), node.id)


def _jobs(turn: Turn, names: list[str]) -> None:
    state = turn.state
    for job in sorted((state.jobs[name] for name in names), key=lambda job: job.number):
        if job.state in TERMINAL:
            turn.emit(facts.JobForgotten(job.id))
        elif job.state in (JobState.STARTING, JobState.SCALING):
            if _in_contact(turn, job):
                limit_s = start_limit_s(state, turn.settings, job)
                turn.because(job.id, "preempts", "gang.start_timeout", limit_s=limit_s)
                stop(turn, job, "start_timeout")
        elif job.state is not JobState.RUNNING or _asks(turn, job):
            # A gang that never was leaves without a word: its agent must be asked.
            _ask_about(turn, job)


def _asks(turn: Turn, job: Job) -> bool:
    """Whether to ask about a running gang: if it only is not heard of, now and then."""
    now_s, changed_s = turn.state.now_s, job.changed_s or 0.0
    if job.leaving and changed_s + turn.settings.start_timeout_s <= now_s:
        return True
    quiet_s = now_s - max(job.step_at_s, changed_s)
    return quiet_s % (turn.settings.unheard_s / 2.0) < turn.settings.cycle_s


def _strays(turn: Turn) -> None:
    """Ask about gangs that were told to go long ago and still hold GPUs."""
    for name in turn.state.stray_nodes:
        node = turn.state.nodes[name]
        holders = [holder for holder in node.holder if holder is not None]
        told = any(turn.state.is_open("StopGang", holder) for holder in holders)
        if node.state is NodeState.ALIVE and not told:
            ask(turn, node, "does what should be gone still run?")


def _ask_about(turn: Turn, job: Job) -> None:
    for name in sorted({*job.allocation, *job.leaving}):
        node = turn.state.nodes[name]
        if node.state is NodeState.ALIVE:
            ask(turn, node, f"what is left of {job.id}?")


def _in_contact(turn: Turn, job: Job) -> bool:
    return all(turn.state.nodes[name].state is NodeState.ALIVE for name in job.allocation)
