"""What people keep policies from, whatever those plan: holds, set sizes, and pauses of the cell.

A policy is shown what it may decide on: a held job that waits is not shown to it, in a paused cell
no job that waits is, and of sizes only those that a job may have now (`jobrows`). What a plan says
in spite of that is refused here.
"""

from scheduler.core import facts
from scheduler.core.leave import UP, drop_claim
from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import JobState
from scheduler.core.turn import Turn


def due_s(state: ClusterState) -> float | None:
    """Say when the next pause ends by itself; None if none does."""
    ends_s = (pause.until_s for pause in state.standing.pauses.values())
    return min((end_s for end_s in ends_s if end_s is not None), default=None)


def end_pauses(turn: Turn) -> None:
    """End pauses whose time is up."""
    for what, pause in sorted(turn.state.standing.pauses.items()):
        if pause.until_s is not None and pause.until_s <= turn.state.now_s:
            turn.emit(facts.CellResumed(what, ""))


def barred(state: ClusterState, job: Job, size: int) -> str:
    """Name the rule by which a job may not have so many GPUs now; empty if it may.

    To keep its size elsewhere, and to have less, is neither a start nor growth.
    """
    standing = state.standing
    if job.id in standing.holds:
        return "operator.hold"
    if "starts" in standing.pauses and size > job.size:
        return "operator.pause"
    only = standing.sizes.get(job.id)
    if only is not None and size not in (only.gpus, job.size):
        return "operator.scale"
    return ""


def drop_barred(turn: Turn) -> None:
    """Give up claims that may not be carried out any more, and say why.

    A gang between two allocations goes on to the second.
    """
    for name in list(turn.state.claimants):
        job = turn.state.jobs[name]
        if job.state is not JobState.QUEUED and job.state not in UP:
            continue
        rule = barred(turn.state, job, sum(map(len, (job.target or {}).values())))
        if rule:
            drop_claim(turn, job, rule)
            turn.because(job.id, "keeps" if job.allocation else "waits", rule)
