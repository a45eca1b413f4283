"""Folds of facts about people's requests."""

from typing import Any

from scheduler.core import facts
from scheduler.core.registry import folds, job_of, lift, node_of
from scheduler.core.standing import Accepted, Cordon, Drain, Hold, Pause, SetSize
from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import TERMINAL, InvalidTransition


@folds(facts.RequestDone)
@folds(facts.RequestRefused)
def _request_taken(state: ClusterState, fact: facts.RequestDone | facts.RequestRefused) -> None:
    if fact.request in state.standing.taken:
        raise InvalidTransition(fact.request, "taken", type(fact).__name__)
    state.standing.take(fact.request, fact.expires_s, state.now_s)


@folds(facts.RequestKeptLonger)
def _request_kept_longer(state: ClusterState, fact: facts.RequestKeptLonger) -> None:
    if fact.request not in state.standing.taken:
        raise InvalidTransition(fact.request, "not taken", "RequestKeptLonger")
    state.standing.taken[fact.request] += fact.ahead_s


@folds(facts.RequestCounted)
def _request_counted(state: ClusterState, fact: facts.RequestCounted) -> None:
    if fact.request not in state.standing.taken:
        raise InvalidTransition(fact.request, "not taken", "RequestCounted")
    state.standing.count(fact.request, fact.counted_as)


@folds(facts.NodeCordoned)
def _node_cordoned(state: ClusterState, fact: facts.NodeCordoned) -> None:
    node = node_of(state, fact)
    if node.id in state.standing.cordons:
        raise InvalidTransition(node.id, "cordoned", "NodeCordoned")
    cordon = Cordon(fact.request, fact.by, fact.reason, state.now_s)
    state.standing.cordons[node.id] = cordon
    state.dirty = True


@folds(facts.NodeUncordoned)
def _node_uncordoned(state: ClusterState, fact: facts.NodeUncordoned) -> None:
    node = node_of(state, fact)
    if node.id not in state.standing.cordons or node.id in state.standing.drains:
        where = "being drained" if node.id in state.standing.drains else "not cordoned"
        raise InvalidTransition(node.id, where, "NodeUncordoned")
    del state.standing.cordons[node.id]
    state.dirty = True


@folds(facts.DrainStarted)
def _drain_started(state: ClusterState, fact: facts.DrainStarted) -> None:
    node = node_of(state, fact)
    if node.id not in state.standing.cordons:
        raise InvalidTransition(node.id, "not cordoned", "DrainStarted")
    drain = Drain(fact.request, fact.by, fact.by_s, fact.force, state.number)
    state.standing.drains[node.id] = drain
    state.dirty = True


@folds(facts.DrainEnded)
def _drain_ended(state: ClusterState, fact: facts.DrainEnded) -> None:
    node = node_of(state, fact)
    lift(state, state.standing.drains, node.id, fact, "not being drained")


@folds(facts.NodeAccepted)
def _node_accepted(state: ClusterState, fact: facts.NodeAccepted) -> None:
    state.standing.accepted[fact.joins or fact.agent] = Accepted(
        agent=fact.agent,
        node=fact.joins,
        pool=fact.pool,
        pool_kind=fact.pool_kind,
        gpu_count=fact.gpu_count,
        speed_factor=fact.speed_factor,
        request=fact.request,
        by=fact.by,
        reason=fact.reason,
        since_s=state.now_s,
    )


@folds(facts.NodeRefused)
def _node_refused(state: ClusterState, fact: facts.NodeRefused) -> None:
    if fact.joins not in state.standing.accepted:
        raise InvalidTransition(fact.joins, "not accepted", "NodeRefused")
    del state.standing.accepted[fact.joins]


# --- jobs --------------------------------------------------------------------------------------


def _live(state: ClusterState, fact: Any) -> Job:
    job = job_of(state, fact)
    if job.state in TERMINAL:
        raise InvalidTransition(job.id, job.state, type(fact).__name__)
    return job


@folds(facts.JobHeld)
def _job_held(state: ClusterState, fact: facts.JobHeld) -> None:
    job = _live(state, fact)
    if job.id in state.standing.holds:
        raise InvalidTransition(job.id, "held", "JobHeld")
    hold = Hold(fact.request, fact.by, fact.role, fact.reason, state.now_s)
    state.standing.holds[job.id] = hold
    state.dirty = True


@folds(facts.JobReleased)
def _job_released(state: ClusterState, fact: facts.JobReleased) -> None:
    lift(state, state.standing.holds, fact.job, fact, "not held")


@folds(facts.JobRequeued)
def _job_requeued(state: ClusterState, fact: facts.JobRequeued) -> None:
    _live(state, fact)  # what follows from it has facts of its own


@folds(facts.JobPrioritised)
def _job_prioritised(state: ClusterState, fact: facts.JobPrioritised) -> None:
    job = _live(state, fact)
    state.standing.priorities.setdefault(job.id, job.priority)
    job.priority = fact.priority
    state.dirty = True


@folds(facts.JobSizeSet)
def _job_size_set(state: ClusterState, fact: facts.JobSizeSet) -> None:
    job = _live(state, fact)
    state.standing.sizes[job.id] = SetSize(
        fact.gpus, fact.request, fact.by, fact.reason, state.now_s
    )
    state.dirty = True


@folds(facts.JobSizeFreed)
def _job_size_freed(state: ClusterState, fact: facts.JobSizeFreed) -> None:
    lift(state, state.standing.sizes, fact.job, fact, "not of a set size")


# --- the cell ----------------------------------------------------------------------------------


@folds(facts.CellPaused)
def _cell_paused(state: ClusterState, fact: facts.CellPaused) -> None:
    pause = Pause(fact.request, fact.by, fact.reason, state.now_s, fact.until_s)
    state.standing.pauses[fact.what] = pause
    state.dirty = True


@folds(facts.CellResumed)
def _cell_resumed(state: ClusterState, fact: facts.CellResumed) -> None:
    lift(state, state.standing.pauses, fact.what, fact, "not paused")
