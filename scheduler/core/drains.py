"""Drains: what runs on a node leaves it, moved by the policy or saved and queued; then it is over.

A node that is being drained is shown to the policy as one that may not be used, with its gangs, so
that a policy moves them as it does those on a node that goes back to its owner. What the policy
has not moved once it was asked is told to save its work and leave. A gang that waits for GPUs
elsewhere may stay until a grace before the end.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from scheduler.core import facts
from scheduler.core.leave import UP, end_gang, stop
from scheduler.core.standing import Drain
from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import JobState, LoanState, NodeState
from scheduler.core.turn import Turn
from scheduler.policies.interface import Figure, Reason


def due_s(state: ClusterState) -> float | None:
    """Say when the time of the next drain is up; None if there is none, or it was up before."""
    ends_s = (drain.by_s for drain in state.standing.drains.values())
    return min((end_s for end_s in ends_s if end_s > state.now_s), default=None)


def advance(turn: Turn) -> None:
    """Have gangs leave nodes that are being drained; end drains that are done or out of time."""
    for name, drain in sorted(turn.state.standing.drains.items()):
        node = turn.state.nodes[name]
        late = drain.by_s <= turn.state.now_s
        there = sorted({holder for holder in node.holder if holder is not None})
        for job in [turn.state.jobs[name] for name in there if name in turn.state.jobs]:
            if node.id not in job.allocation or node.state is not NodeState.ALIVE:
                continue  # it leaves already, or nobody can tell it to
            if late and drain.force:
                _kill(turn, job, drain)
            elif _must_go(turn, job, drain):
                turn.because(job.id, "preempts", "operator.drain", drain_by_s=drain.by_s)
                stop(turn, job, "preempted")
        if not any(node.holder):
            turn.emit(facts.DrainEnded(name, "empty"))
        elif late and not drain.force:
            turn.emit(facts.DrainEnded(name, "deadline"))


def attributed(state: ClusterState, reasons: Iterable[Reason]) -> Iterator[Reason]:
    """Say `operator.drain` of gangs that a policy moves for a drain.

    A policy sees a node that may not be used, as is one that goes back to its owner, and says so.
    """
    for reason in reasons:
        job = state.jobs.get(reason.subject) if reason.rule == "loans.reclaim" else None
        nodes = [] if job is None else sorted(job.allocation)
        ends_s = [state.standing.drains[n].by_s for n in nodes if n in state.standing.drains]
        if ends_s and not any(state.nodes[n].loan_state is LoanState.RECLAIMING for n in nodes):
            figures = (Figure("drain_by_s", min(ends_s)), *reason.figures)
            reason = replace(reason, rule="operator.drain", figures=figures, lost_to=())
        yield reason


def _must_go(turn: Turn, job: Job, drain: Drain) -> bool:
    """Whether a gang is to save its work and leave now."""
    if job.state not in (JobState.STARTING, JobState.RUNNING):
        return False  # it is on its way, or changes its size and is looked at again
    pressing = turn.state.now_s + turn.settings.grace_s >= drain.by_s
    asked = turn.state.cycle_number > drain.since_number
    return pressing or (asked and job.target is None)


def _kill(turn: Turn, job: Job, drain: Drain) -> None:
    """Stop a gang without a save, once."""
    if job.state in UP or job.state is JobState.CHECKPOINTING:
        turn.because(job.id, "preempts", "operator.drain", drain_by_s=drain.by_s)
        end_gang(turn, job, job.stop_reason or "preempted")
