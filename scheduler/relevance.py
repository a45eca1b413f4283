"""From messages to stimuli: pass on what a decision depends on.

Most messages say what was expected: a job is where its rate said it would be, an owner needs what
it needed. Those are folded and end here. The engine sees only changes.
"""

from scheduler.core.lenders import agent_of, lender_id
from scheduler.core.state import SLOT_S, ClusterState, slot_s
from scheduler.core.stimuli import Input
from scheduler.core.transitions import TERMINAL, NodeState
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CommandAcknowledged,
    EventData,
    InferenceLoad,
    JobCancelled,
    JobProgressed,
    LinkLost,
    LinkOpened,
    NodeDied,
    NodeMeasured,
    OutputsKept,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)

#: A rate that differs less than this share from the last one passed on is the same rate.
RATE_CHANGE = 0.05
#: Progress is passed on at least this often, so that extrapolation stays honest.
PROGRESS_S = 900.0
#: What a job reports of itself is passed on oftener, as long as the job is young: no more often
#: than this, and for about a hundred points of a curve by its present age.
METRICS_S = 10.0
METRICS_SHARE = 0.01


def stimulus_of(
    state: ClusterState, data: EventData, at_s: float, source: str = ""
) -> Input | None:
    """Give what the engine must know of an event; None if nothing that it does not know yet.

    A pure function of the state and the event, so that it needs no memory that a crash could lose.
    """
    if isinstance(data, NodeMeasured | LinkOpened | LinkLost):
        return None  # the first is folded, the others are the contact's
    if isinstance(data, JobProgressed):
        return data if _progress_matters(state, data, at_s) else None
    if isinstance(data, CommandAcknowledged):
        # Renewals of leases are acknowledged too; only the engine's own commands are open.
        return data if data.command in state.commands else None
    if isinstance(data, CheckpointCommitted | CheckpointFailed | OutputsKept):
        job = state.jobs.get(data.job)
        return data if job is not None and data.epoch == job.epoch else None
    if isinstance(data, InferenceLoad):
        return data if _load_matters(state, data, at_s, source) else None
    return data if _is_of_something(state, data) else None


def _is_of_something(state: ClusterState, data: EventData) -> bool:
    """Whether the engine knows what an event is about: of what is unknown nothing is journalled."""
    if isinstance(data, JobCancelled):
        job = state.jobs.get(data.job)
        return job is not None and job.state not in TERMINAL and not job.cancel_requested
    if isinstance(data, NodeDied):
        node = state.nodes.get(data.node)
        return node is not None and node.state is not NodeState.DEAD
    if isinstance(data, WorkerStarted):
        return data.job in state.jobs
    if isinstance(data, WorkerStopped | WorkerFailed):
        node = state.nodes.get(data.node)
        return node is not None and (data.job in state.jobs or data.job in node.holder)
    return True


def _progress_matters(state: ClusterState, data: JobProgressed, at_s: float) -> bool:
    job = state.jobs.get(data.job)
    if job is None or data.epoch != job.epoch:
        return job is not None and data.epoch > job.epoch  # the journal has lost its start
    if job.samples_per_s == 0.0 or data.checkpoint_step > job.checkpoint_step:
        return True
    if abs(data.samples_per_s - job.samples_per_s) > RATE_CHANGE * job.samples_per_s:
        return True
    # What waited in a spool comes all at once: of hours, a word for each stretch of work is taken.
    quiet_s, steps_per_s = at_s - job.step_at_s, job.samples_per_s / job.samples_per_step
    held_s = job.held_s + at_s - job.attained_at_s
    # Simulated figures are not worth an entry of their own.
    if data.metrics and job.program is not None and data.metrics != job.metrics:
        if quiet_s >= max(METRICS_S, METRICS_SHARE * held_s):
            return True
    if held_s > 0.0:  # one that says less than it does is ahead of its word all the time
        steps_per_s = max(steps_per_s, data.step / held_s)
    if data.step > job.step + steps_per_s * (quiet_s + PROGRESS_S):
        return True
    return quiet_s >= PROGRESS_S


def _load_matters(state: ClusterState, data: InferenceLoad, at_s: float, source: str) -> bool:
    name = data.node or lender_id(state, data.pool, agent_of(source))
    lender = state.lenders.get(name)  # one that will have another name has none by this one
    if lender is None or lender.at_s is None:
        return True
    if data.gpus_needed != lender.gpus_needed or int(at_s // slot_s(state)) != lender.slot:
        return True
    if at_s - lender.at_s >= SLOT_S:  # slots may be long: what is said again is known anew
        return True
    return data.shortfall_gpu_s > lender.shortfall_gpu_s
