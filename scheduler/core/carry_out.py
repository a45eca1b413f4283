"""Claims are carried out: gangs start, change their size, or leave for another place.

A claim is carried out only when every GPU in it is free or already the job's own: so no gang starts
half, nobody is evicted for a job that then does not fit, and what was freed for a job is not given
to another. That each ends: `claims`.
"""

from collections.abc import Sequence

from scheduler.core import claims, facts
from scheduler.core.claims import may_have, still_there
from scheduler.core.facts import Allocation
from scheduler.core.leave import stop
from scheduler.core.orders import gang_spec
from scheduler.core.state import Job
from scheduler.core.stimuli import next_epoch
from scheduler.core.transitions import JobState
from scheduler.core.turn import Turn
from schemas.commands import ScaleGang, StartGang
from schemas.values import NodeGpus

#: The longest time a command can name.
TEN_YEARS_S = 315_360_000.0


def advance(turn: Turn, *, anew: bool = True) -> None:
    """Carry out every claim whose GPUs are all free, oldest claim first; see that others end.

    All are looked at, or unless `anew` those alone that may have changed: the outcome is the same.
    """
    if not turn.state.claimants and not turn.state.starts_deferred:
        return
    turn.changed_claims.note(turn.facts)
    _carry_out(turn, turn.changed_claims.begin_look(turn.state, anew=anew))
    for job, kept in claims.leave_now(turn, claims.end_hopeless(turn)):
        if kept:
            _scale(turn, job, kept, keeps_claim=True)
        else:
            stop(turn, job, "migrated")


def _carry_out(turn: Turn, names: Sequence[str]) -> None:
    state, deferred = turn.state, False
    left_behind: set[str] | None = None  # looked for when a gang could start: there may be many
    for name in names:
        job = state.jobs[name]
        starts = job.state in (JobState.QUEUED, JobState.MIGRATING)
        if job.target is None or (starts and deferred):
            continue
        if not all(may_have(state, job, state.nodes[n], gpus) for n, gpus in job.target.items()):
            continue
        holders = {state.nodes[n].holder[gpu] for n, gpus in job.target.items() for gpu in gpus}
        if starts:
            if holders == {None}:
                left_behind = still_there(state) if left_behind is None else left_behind
                if name in left_behind:
                    continue
                # One entry of the journal holds all that a turn decides.
                deferred = turn.starts >= turn.settings.starts_per_cycle
                if not deferred:
                    _start(turn, job, job.target)
        elif job.state is JobState.RUNNING and not job.leaving:
            agents = {state.nodes[n].agent for n in (*job.target, *job.allocation)}
            if len(agents) == 1 and job.pool == job.target_pool:
                if holders <= {None, job.id}:
                    _scale(turn, job, job.target)
            elif holders == {None}:
                stop(turn, job, "migrated")
    if deferred != state.starts_deferred:
        turn.emit(facts.StartsDeferred(deferred))


def _placement(allocation: Allocation) -> list[NodeGpus]:
    return [
        NodeGpus.model_construct(node=name, gpus=list(gpus))
        for name, gpus in sorted(allocation.items())
    ]


def _epoch(turn: Turn, job: Job) -> int:
    """Give the epoch of the job's next allocation: agents may know some that the log has lost."""
    return next_epoch(job.epoch, turn.state.now_s)


def _start(turn: Turn, job: Job, allocation: Allocation) -> None:
    node = turn.state.nodes[next(iter(allocation))]
    epoch, first = _epoch(turn, job), job.checkpoint_step == 0
    transfer_s = 0.0 if first else job.checkpoint_mib / node.transfer_mib_per_s
    transfer_s = min(transfer_s, TEN_YEARS_S)
    order = StartGang.model_construct(
        job=job.id,
        epoch=epoch,
        placement=_placement(allocation),
        spec=gang_spec(job),
        step=job.checkpoint_step,
        transfer_s=transfer_s,
    )
    copied = {name: list(gpus) for name, gpus in sorted(allocation.items())}
    turn.starts += 1
    turn.emit(facts.GangStarting(job.id, epoch, node.pool, copied, job.checkpoint_step))
    turn.command(node.agent, order, job.id)


def _scale(turn: Turn, job: Job, allocation: Allocation, *, keeps_claim: bool = False) -> None:
    copied = {name: list(gpus) for name, gpus in sorted(allocation.items())}
    agent = turn.state.nodes[next(iter(copied))].agent
    epoch = _epoch(turn, job)
    order = ScaleGang.model_construct(job=job.id, epoch=epoch, placement=_placement(copied))
    turn.emit(facts.GangScaling(job.id, epoch, copied, keeps_claim))
    turn.command(agent, order, job.id)
