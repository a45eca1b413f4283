"""Folds of facts about jobs, and the ledger of who holds which GPU."""

from scheduler.core import facts
from scheduler.core.job_work import declared_rate
from scheduler.core.registry import (
    check_allocation,
    check_gone,
    check_gpus,
    check_holding,
    check_placement,
    folds,
    job_of,
    move,
    node_of,
    settled,
)
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.transitions import JOB, TERMINAL, InvalidTransition, JobState, step

# --- jobs --------------------------------------------------------------------------------------


@folds(facts.JobAccepted)
def _job_accepted(state: ClusterState, fact: facts.JobAccepted) -> None:
    if fact.job in state.jobs:
        raise InvalidTransition(fact.job, state.jobs[fact.job].state, "JobAccepted")
    job = Job(
        id=fact.job,
        number=state.totals.jobs_submitted,
        # Above all epochs of a forgotten job of this name, which agents still fence by: an
        # epoch rises at most once with each stimulus.
        epoch=state.number,
        submit_s=state.now_s,
        waiting_since_s=state.now_s,
        **fact.spec,
    )
    state.keep(job)
    state.totals.jobs_submitted += 1
    state.totals.deadlines_total += fact.spec["deadline_s"] is not None
    state.dirty = True


@folds(facts.SubmissionRefused)
def _submission_refused(state: ClusterState, _: facts.SubmissionRefused) -> None:
    state.totals.submissions_refused += 1


@folds(facts.JobAdvanced)
def _job_advanced(state: ClusterState, fact: facts.JobAdvanced) -> None:
    job = job_of(state, fact)
    check_holding(job, fact)
    job.step, job.step_at_s = fact.step, state.now_s
    _saved(job, fact.checkpoint_step)
    job.checkpoint_cost_s = fact.checkpoint_cost_s
    if fact.samples_per_s > 0:
        job.samples_per_s, job.rate_at_s = fact.samples_per_s, state.now_s
        declared = declared_rate(job, job.size)
        if declared > 0 and job.allocation:
            speed = min(state.nodes[name].speed_factor for name in job.allocation)
            job.rate_factor = fact.samples_per_s / (declared * speed)


@folds(facts.CurvesReplaced)
def _curves_replaced(state: ClusterState, fact: facts.CurvesReplaced) -> None:
    for name, curve in fact.curves.items():
        job = state.jobs[name]
        job.curve, job.curve_step, job.curve_at_s = curve, job.step, state.now_s


@folds(facts.LengthsReplaced)
def _lengths_replaced(state: ClusterState, fact: facts.LengthsReplaced) -> None:
    for name, length in fact.lengths.items():
        job = state.jobs[name]
        job.length, job.length_step = length, job.step


@folds(facts.JobExplained)
def _job_explained(state: ClusterState, fact: facts.JobExplained) -> None:
    job = job_of(state, fact)
    job.why, job.why_at_s = fact.reason, state.now_s


@folds(facts.JobsNoted)
def _jobs_noted(state: ClusterState, fact: facts.JobsNoted) -> None:
    for name, note in fact.notes.items():
        state.jobs[name].note, state.jobs[name].note_by = list(note), fact.policy


@folds(facts.TargetSet)
def _target_set(state: ClusterState, fact: facts.TargetSet) -> None:
    job = job_of(state, fact)
    if job.state not in (JobState.QUEUED, JobState.RUNNING):
        raise InvalidTransition(job.id, job.state, "TargetSet")
    check_placement(state, job, fact.allocation, fact)
    _unclaim(state, job)
    for name, gpus in fact.allocation.items():
        own, claim = job.allocation.get(name, ()), state.nodes[name].claim
        for gpu in gpus:
            if gpu not in own:
                claim[gpu] = job.id
    state.claimants.append(job.id)
    state.totals.claims += 1
    job.target, job.target_pool = {n: list(g) for n, g in fact.allocation.items()}, fact.pool
    job.target_verb, job.target_since_s = fact.verb, state.now_s


@folds(facts.TargetDropped)
def _target_dropped(state: ClusterState, fact: facts.TargetDropped) -> None:
    job = job_of(state, fact)
    if job.target is None:
        raise InvalidTransition(job.id, "without a target", "TargetDropped")
    _unclaim(state, job)
    job.refused = job.refused or fact.refused
    state.totals.claims_timed_out += fact.timed_out
    state.dirty = True


@folds(facts.RefusalsNoted)
def _refusals_noted(state: ClusterState, fact: facts.RefusalsNoted) -> None:
    for name, refused in fact.jobs.items():
        state.jobs[name].refused = refused


@folds(facts.StartsDeferred)
def _starts_deferred(state: ClusterState, fact: facts.StartsDeferred) -> None:
    state.starts_deferred = fact.waiting


@folds(facts.GangStarting)
def _gang_starting(state: ClusterState, fact: facts.GangStarting) -> None:
    check_allocation(state, job_of(state, fact), fact)
    job = move(state, fact)
    job.ordered_number = state.number
    if job.first_start_s is None:
        job.first_start_s = state.now_s
        state.totals.jobs_started += 1
        state.totals.queueing_s += state.now_s - job.submit_s
    else:
        job.restarts += 1
    _unclaim(state, job)
    job.attained_at_s = state.now_s
    job.pool, job.epoch, job.start_epoch = fact.pool, fact.epoch, fact.epoch
    job.step, job.step_at_s = fact.step, state.now_s
    job.agents = []
    state.note_unsure(job, None)
    _occupy(state, job, fact.allocation)


@folds(facts.GangScaling)
def _gang_scaling(state: ClusterState, fact: facts.GangScaling) -> None:
    check_allocation(state, job_of(state, fact), fact)
    job = move(state, fact)
    job.ordered_number = state.number
    job.restarts += 1
    _attain(state, job)
    before = job.size
    if not fact.keeps_claim:
        _unclaim(state, job)
    job.epoch = fact.epoch
    for name, gpus in job.allocation.items():
        kept = fact.allocation.get(name, [])
        if left := [gpu for gpu in gpus if gpu not in kept]:
            job.leaving[name] = sorted([*job.leaving.get(name, []), *left])
    _occupy(state, job, fact.allocation)
    if job.size > before:
        state.totals.scale_outs += 1
    elif job.size < before:
        state.totals.scale_ins += 1
    else:
        job.migrations += 1


@folds(facts.WorkerReady)
def _worker_ready(state: ClusterState, fact: facts.WorkerReady) -> None:
    job = job_of(state, fact)
    check_holding(job, fact)
    if fact.epoch != job.epoch or fact.node not in job.allocation:
        raise InvalidTransition(job.id, f"not on {fact.node} at {fact.epoch}", "WorkerReady")
    if fact.node not in job.ready:
        job.ready = sorted([*job.ready, fact.node])


@folds(facts.GangRunning)
def _gang_running(state: ClusterState, fact: facts.GangRunning) -> None:
    job = move(state, fact)
    job.step_at_s = state.now_s
    settled(state, job)


@folds(facts.GangCheckpointing)
@folds(facts.GangStopping)
def _gang_leaving(state: ClusterState, fact: facts.GangCheckpointing | facts.GangStopping) -> None:
    job = move(state, fact)
    job.ordered_number = state.number
    _attain(state, job)
    if fact.reason != "migrated":  # that is how a claim is carried out, by a plan
        state.dirty = True
    if not job.stop_reason:
        job.stop_since_s = state.now_s
    job.stop_reason = fact.reason
    job.samples_per_s = 0.0


@folds(facts.CheckpointSaved)
def _checkpoint_saved(state: ClusterState, fact: facts.CheckpointSaved) -> None:
    job = job_of(state, fact)
    job.state = step(JOB, job.id, job.state, "CheckpointSaved")
    _saved(job, fact.step)
    job.checkpoint_cost_s = fact.cost_s
    if job.state is JobState.QUEUED:
        job.step = max(job.step, job.checkpoint_step)


@folds(facts.OutputsKept)
def _outputs_kept(state: ClusterState, fact: facts.OutputsKept) -> None:
    job_of(state, fact)  # nothing is decided by it, and `why` reads the journal


@folds(facts.CheckpointMissed)
def _checkpoint_missed(state: ClusterState, fact: facts.CheckpointMissed) -> None:
    job = job_of(state, fact)
    job.state = step(JOB, job.id, job.state, "CheckpointMissed")


@folds(facts.GpusReleased)
def _gpus_released(state: ClusterState, fact: facts.GpusReleased) -> None:
    node = node_of(state, fact)
    check_gpus(node, fact.gpus, fact)
    job = state.jobs.get(fact.job)
    if job is not None and job.allocation:
        _attain(state, job)
    for gpu in fact.gpus:
        if node.holder[gpu] == fact.job:
            node.holder[gpu] = None
            state.gpus_held -= 1
            if job is not None and gpu in (job.target or {}).get(fact.node, ()):
                node.claim[gpu] = job.id  # it leaves it, and will be back
    if job is not None:
        for allocation in (job.allocation, job.leaving):
            left = [gpu for gpu in allocation.get(fact.node, []) if gpu not in fact.gpus]
            if left:
                allocation[fact.node] = left
            else:
                allocation.pop(fact.node, None)
        if not job.allocation:
            job.pool = None
    if node.id in state.stray_nodes and not _has_stray(state, node):
        state.stray_nodes.remove(node.id)
        state.dirty = True
    if job is None:
        state.dirty = True
    else:
        settled(state, job)


def _has_stray(state: ClusterState, node: Node) -> bool:
    for gpu, holder in enumerate(node.holder):
        if holder is None:
            continue
        job = state.jobs.get(holder)
        if job is None or gpu not in (
            *job.allocation.get(node.id, ()),
            *job.leaving.get(node.id, ()),
        ):
            return True
    return False


@folds(facts.JobQueued)
def _job_queued(state: ClusterState, fact: facts.JobQueued) -> None:
    check_gone(state, fact)
    job = move(state, fact)
    _rest(state, job, fact.step)
    job.backoff_until_s = fact.backoff_until_s
    if fact.reason in ("preempted", "migrated"):
        settled(state, job)
    else:
        state.dirty = True
    if fact.reason == "preempted":
        job.preemptions += 1
        state.totals.preemptions += 1
    elif fact.reason == "failed":
        job.failures += 1
        state.totals.failures += 1


@folds(facts.JobMigrating)
def _job_migrating(state: ClusterState, fact: facts.JobMigrating) -> None:
    check_gone(state, fact)
    if job_of(state, fact).target is None:
        raise InvalidTransition(fact.job, "without a target", "JobMigrating")
    job = move(state, fact)
    _rest(state, job, fact.step)
    settled(state, job)
    job.migrations += 1
    state.totals.migrations += 1


@folds(facts.JobCompleted)
def _job_completed(state: ClusterState, fact: facts.JobCompleted) -> None:
    check_gone(state, fact)
    job = move(state, fact)
    _end(state, job)
    job.step = max(job.step, job.checkpoint_step) if job.total_steps is None else job.total_steps
    state.totals.jobs_completed += 1
    state.totals.jct_s += state.now_s - job.submit_s
    state.totals.deadlines_met += job.deadline_s is not None and state.now_s <= job.deadline_s


@folds(facts.JobFailed)
def _job_failed(state: ClusterState, fact: facts.JobFailed) -> None:
    check_gone(state, fact)
    _end(state, move(state, fact))
    state.totals.jobs_failed += 1


@folds(facts.JobCancelled)
def _job_cancelled(state: ClusterState, fact: facts.JobCancelled) -> None:
    check_gone(state, fact)
    _end(state, move(state, fact))
    state.totals.jobs_cancelled += 1


@folds(facts.JobDeclined)
def _job_declined(state: ClusterState, fact: facts.JobDeclined) -> None:
    check_gone(state, fact)
    _end(state, move(state, fact))
    state.totals.jobs_failed += 1
    state.totals.jobs_declined += 1


@folds(facts.CancelRequested)
def _cancel_requested(state: ClusterState, fact: facts.CancelRequested) -> None:
    job = job_of(state, fact)
    check_holding(job, fact)
    job.cancel_requested = True


@folds(facts.JobForgotten)
def _job_forgotten(state: ClusterState, fact: facts.JobForgotten) -> None:
    job = job_of(state, fact)
    if job.state not in TERMINAL:
        raise InvalidTransition(job.id, job.state, "JobForgotten")
    state.forget(job)
    state.standing.priorities.pop(fact.job, None)


# --- the ledger of GPUs ------------------------------------------------------------------------


def _occupy(state: ClusterState, job: Job, allocation: facts.Allocation) -> None:
    for name, gpus in allocation.items():
        node = state.nodes[name]
        holder, epoch = node.holder, node.epoch
        for gpu in gpus:
            state.gpus_held += holder[gpu] is None
            holder[gpu], epoch[gpu] = job.id, job.epoch
    job.allocation = {name: list(gpus) for name, gpus in allocation.items()}
    job.agents = sorted({*job.agents, *(state.nodes[name].agent for name in allocation)})
    job.ready = []
    job.changed_s = state.now_s
    job.samples_per_s = 0.0


def _unclaim(state: ClusterState, job: Job) -> None:
    if job.target is None:
        return
    state.claimants.remove(job.id)
    for name, gpus in job.target.items():
        claim = state.nodes[name].claim
        for gpu in gpus:
            if claim[gpu] == job.id:
                claim[gpu] = None
    job.target, job.target_pool, job.target_verb = None, None, ""


def _attain(state: ClusterState, job: Job) -> None:
    job.attained_gpu_s += job.size * (state.now_s - job.attained_at_s)
    job.held_s += state.now_s - job.attained_at_s if job.allocation else 0.0
    job.attained_at_s = state.now_s


def _saved(job: Job, step: int) -> None:
    if step > job.checkpoint_step:
        # Whatever ended it, it gets on: a long job on many nodes lives through many failures.
        job.checkpoint_step, job.failures = step, 0


def _rest(state: ClusterState, job: Job, from_step: int) -> None:
    job.step, job.step_at_s = from_step, state.now_s
    job.waiting_since_s = state.now_s
    job.changed_s = state.now_s
    job.samples_per_s, job.ready, job.stop_reason = 0.0, [], ""


def _end(state: ClusterState, job: Job) -> None:
    _unclaim(state, job)
    job.end_s, job.samples_per_s, job.ready = state.now_s, 0.0, []
    state.standing.forget(job.id)
    state.dirty = True
