"""`tidegate job`: what operators, and tenants of their own jobs, ask of jobs."""

from typing import Annotated

import typer

from console.forms import asks, moves
from console.operate import cancel
from console.output import fail
from console.source import Source, Wish, already, job_of
from explain.rows import JobRow
from explain.shares import counted
from scheduler.core.transitions import TERMINAL, JobState
from schemas.requests import HoldJob, PrioritiseJob, ReleaseJob, RequeueJob, ScaleJob, VerbData

app = typer.Typer(
    no_args_is_help=True,
    help="Hold a job, release it, requeue it, set its priority or its size, cancel it.",
)
JobName = Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")]


@app.command()
@moves
def hold(at: Source, job: JobName) -> Wish:
    """Keep a job from its start; one that runs saves its work, leaves its GPUs and waits.

    A promise that it ends by its deadline is called off.

    Example: tidegate job hold job-0042 --reason "its data is wrong" --log run.db
    """
    known = _known(at, job)
    if known.hold is not None:
        return already(f"{job} is held already, by {known.hold.by}.", {"job": job})
    waits = known.state == JobState.QUEUED
    what = "it is not started" if waits else "it saves its work, leaves its GPUs and waits"
    return _wish(HoldJob(job=job), job, f"held: {what} until `tidegate job release {job}`")


@app.command()
@asks
def release(at: Source, job: JobName) -> Wish:
    """Leave a job to the policy again: one that was held, or whose size was set.

    Example: tidegate job release job-0042 --log run.db
    """
    known = _known(at, job)
    if known.hold is None and known.set_size is None:
        said = f"{job} is not held, and nobody set its size; there is nothing to do."
        return already(said, {"job": job})
    return _wish(ReleaseJob(job=job), job, "released: the policy decides on it again")


@app.command()
@moves
def requeue(at: Source, job: JobName) -> Wish:
    """Have a job save its work and leave its GPUs; it waits for its turn, and may start at once.

    Example: tidegate job requeue job-0042 --log run.db
    """
    if _known(at, job).state == JobState.QUEUED and not _claims(at, job):
        return already(f"{job} waits already; there is nothing to do.", {"job": job})
    said = "it saves its work, leaves its GPUs, and waits for its turn"
    return _wish(RequeueJob(job=job), job, said)


@app.command(context_settings={"ignore_unknown_options": True})  # -5 is a number
@asks
def priority(
    at: Source,
    job: JobName,
    number: Annotated[
        int, typer.Argument(min=-1000, max=1000, help="A job of a higher one goes first.")
    ],
) -> Wish:
    """Give a job another priority.

    Example: tidegate job priority job-0042 10 --log run.db
    """
    said = f"priority {number}, it was {_known(at, job).priority}"
    return _wish(PrioritiseJob(job=job, priority=number), job, said)


@app.command()
@moves
def scale(
    at: Source,
    job: JobName,
    gpus: Annotated[
        str, typer.Argument(metavar="GPUS|auto", help="A size that it declares, or auto.")
    ],
) -> Wish:
    """Have a job run on so many GPUs, and on no other number; auto: as the policy chooses.

    One that runs gets them where it runs, once they are free there; until then it keeps what it
    has. It may still be preempted or moved, and starts again at this size.

    Example: tidegate job scale job-0042 8 --log run.db
    """
    if gpus != "auto" and not (gpus.isascii() and gpus.isdigit() and 0 < int(gpus) <= 1_000_000):
        fail(f"GPUS: {gpus!r} is no number of GPUs; write one that the job declares, or auto.")
    known = _known(at, job)
    if gpus == "auto":
        if known.set_size is None:
            said = f"The policy chooses the size of {job} already; there is nothing to do."
            return already(said, {"job": job})
        return _wish(ScaleJob(job=job, gpus=None), job, "the policy chooses its size again")
    size = int(gpus)
    now = f"; it has {counted(known.gpus, 'GPU')} now" if known.gpus else ""
    said = f"to run on {counted(size, 'GPU')} until `tidegate job scale {job} auto`{now}"
    return _wish(ScaleJob(job=job, gpus=size), job, said)


# The same verb under its other name, which its example says.
app.command(help=(cancel.__doc__ or "").replace("tidegate cancel", "tidegate job cancel"))(cancel)


def _known(at: Source, job: str) -> JobRow:
    known = job_of(at, job)
    if known.state in TERMINAL:
        fail(f"{job} is {known.state}: nothing can be asked of it any more.", code=1)
    return known


def _claims(at: Source, job: str) -> bool:
    """Whether GPUs are held for a job that has none."""
    return any(job in node.claims for node in at.nodes().it.nodes)


def _wish(args: VerbData, job: str, said: str) -> Wish:
    return Wish(args, f"{job}: {said}.", {"job": job})
