"""Requests about jobs: what each does."""

from scheduler.core import facts, observe, pauses
from scheduler.core.leave import UP, drop_claim, stop
from scheduler.core.rights import Wrong
from scheduler.core.set_sizes import sizes_of
from scheduler.core.state import Job, policy_name
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.core.turn import Turn
from scheduler.policies.interface import promised
from schemas.events import JobCancelled
from schemas.requests import (
    CancelJob,
    HoldJob,
    PrioritiseJob,
    ReadLog,
    ReleaseJob,
    Request,
    RequeueJob,
    ScaleJob,
    SubmitJob,
)


def submit(turn: Turn, _: Request, args: SubmitJob) -> Wrong | None:
    """Put a job into the queue; the same job submitted again counts as done."""
    begun = len(turn.facts)
    observe.submitted(turn, args.spec)
    for fact in turn.facts[begun:]:
        if isinstance(fact, facts.SubmissionRefused):
            about = "job" if args.spec.job in turn.state.jobs else "tenant"
            return f"args.spec.{about}", fact.reason
    return None


def cancel(turn: Turn, request: Request, args: CancelJob) -> Wrong | None:
    """Cancel a job; one that is being cancelled already counts as done."""
    job = _not_ended(turn, args.job)
    if not isinstance(job, Job):
        return job
    observe.cancelled(turn, JobCancelled(job=job.id, reason=request.reason))
    return None


def hold(turn: Turn, request: Request, args: HoldJob) -> Wrong | None:
    """Keep a job from starting, and take it off its GPUs; one that is held already stays held."""
    job = _not_ending(turn, args.job)
    if not isinstance(job, Job):
        return job
    if job.id in turn.state.standing.holds:
        return None
    by = request.subject
    turn.emit(facts.JobHeld(job.id, request.id, by, request.role, request.reason))
    figures = {}
    if job.note:
        # A held job cannot be promised its deadline, so what the policy noted of it goes.
        if job.deadline_s is not None and promised(job.note, job.note_by):
            figures["unpromised_s"] = job.deadline_s
        turn.emit(facts.JobsNoted({job.id: []}, policy_name(turn.state)))
    turn.because(job.id, "preempts" if job.allocation else "waits", "operator.hold", **figures)
    _take_off_gpus(turn, job, "held")
    return None


def release(turn: Turn, request: Request, args: ReleaseJob) -> Wrong | None:
    """Let the policy decide again whether a job runs, and at which size."""
    job, standing = _not_ended(turn, args.job), turn.state.standing
    if not isinstance(job, Job):
        return job
    if job.id not in standing.holds and job.id not in standing.sizes:
        return "args.job", f"{job.id} is not held, and nobody set its size"
    if job.id in standing.holds:
        turn.emit(facts.JobReleased(job.id, request.id, request.subject))
    # Sizes are set by operators: a tenant that releases its own hold leaves them.
    if job.id in standing.sizes and request.role != "tenant":
        turn.emit(facts.JobSizeFreed(job.id, request.id, request.subject))
    return None


def requeue(turn: Turn, request: Request, args: RequeueJob) -> Wrong | None:
    """Take a job off its GPUs, its work saved, and let it wait for its turn."""
    job = _not_ending(turn, args.job)
    if not isinstance(job, Job):
        return job
    if job.state is JobState.QUEUED and job.target is None:
        return "args.job", f"{job.id} waits already"
    if job.state not in UP and job.target is None:
        return "args.job", f"{job.id} is on its way to the queue already"
    turn.emit(facts.JobRequeued(job.id, request.id, request.subject, request.reason))
    turn.because(job.id, "preempts" if job.allocation else "waits", "operator.requeue")
    _take_off_gpus(turn, job, "requeued")
    return None


def prioritise(turn: Turn, request: Request, args: PrioritiseJob) -> Wrong | None:
    """Give a job another priority."""
    job = _not_ended(turn, args.job)
    if not isinstance(job, Job):
        return job
    turn.emit(facts.JobPrioritised(job.id, request.id, request.subject, args.priority))
    return None


def scale(turn: Turn, request: Request, args: ScaleJob) -> Wrong | None:
    """Set the size that a job runs at, or leave it to the policy again."""
    job, by = _not_ending(turn, args.job), request.subject
    if not isinstance(job, Job):
        return job
    if args.gpus is None:
        if job.id not in turn.state.standing.sizes:
            return "args.gpus", f"the policy chooses the size of {job.id} already"
        turn.emit(facts.JobSizeFreed(job.id, request.id, by))
        return None
    sizes = sizes_of(job)
    if args.gpus not in sizes:
        listed = ", ".join(map(str, sizes))
        return "args.gpus", f"{args.gpus} is no size of {job.id}; it declares {listed or 'none'}"
    turn.emit(facts.JobSizeSet(job.id, request.id, by, request.reason, args.gpus))
    pauses.drop_barred(turn)
    return None


def _not_ended(turn: Turn, name: str) -> Job | Wrong:
    """Give a job that has not ended, or the reason why there is none."""
    job = turn.state.jobs.get(name)
    if job is None:
        return "args.job", f"there is no job {name}"
    if job.state in TERMINAL:
        return "args.job", f"{job.id} is {job.state.value} already"
    return job


def _not_ending(turn: Turn, name: str) -> Job | Wrong:
    """Give a job that is neither ended nor ending, or the reason why there is none."""
    job = _not_ended(turn, name)
    if isinstance(job, Job) and (job.cancel_requested or job.stop_reason == "completed"):
        ends = "was cancelled" if job.cancel_requested else "has done its work"
        return "args.job", f"{job.id} {ends}, and is leaving its GPUs"
    return job


def _take_off_gpus(turn: Turn, job: Job, reason: str) -> None:
    """Take a job off the GPUs that it has or claims."""
    if job.state in UP:
        stop(turn, job, reason)
    else:
        drop_claim(turn, job, reason)


def read_log(turn: Turn, _: Request, args: ReadLog) -> Wrong | None:
    """Allow a job's log to be read; `scheduler.log_readers` then has its agents send it."""
    job = turn.state.jobs.get(args.job)
    if job is None:
        return "args.job", f"there is no job {args.job}"
    if not job.agents:
        return "args.job", f"{job.id} has not run yet, so there is no log of it"
    return None
