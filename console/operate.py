"""`tidegate submit` and `cancel`: what a tenant asks for, put on the log as a request."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from console.asked_before import asked_otherwise
from console.forms import asks, moves
from console.output import fail
from console.source import Source, Wish, already, job_of
from console.submission import (
    check_workdir,
    checked,
    complete,
    file_or_command,
    from_file,
    hints,
    rates_of,
    sizes_of,
    with_code,
    without_command,
)
from explain.job_file import NO_MODEL
from explain.moments import duration
from scheduler.core.transitions import TERMINAL, JobState
from schemas.events import JobCancelled, JobSubmitted
from schemas.requests import LIFE_MAX_S, CancelJob, SubmitJob


@asks
def submit(
    at: Source,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB.yaml|JOB.json|-|-- COMMAND...]",
            help="The job's file, or what its workers run; flags go before it.",
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Its id. If not given: one is made up.")] = None,
    model: Annotated[str | None, typer.Option(help="What it trains.")] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N|MIN..MAX", help="Sizes it may run at, such as 1..8.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimiser steps in all. If not given: until it ends.")
    ] = None,
    samples_per_step: Annotated[
        float | None, typer.Option(help="Samples that one step takes. If not given: 1.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N=RATE,...", help="Samples/s by GPUs, such as 1=120,2=220."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="From now, such as 90m or 2h.")
    ] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Needed on each GPU.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first.")] = None,
    edge: Annotated[
        bool | None, typer.Option("--edge/--no-edge", help="Whether edge servers may run it.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Whose it is. If not given: yours, or operator.")
    ] = None,
    workdir: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the command starts, on its machine.")
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            "--code",
            metavar="FOLDER|URL",
            help="Code to begin in: a folder, which is packed and stored, or an archive's address.",
        ),
    ] = None,
    code_store: Annotated[
        str | None,
        typer.Option(
            "--code-store",
            metavar="URL",
            envvar="TIDEGATE_CODE_STORE",
            help="Where packed folders go, such as s3://bucket/code; agents fetch them there.",
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="The command changes its size as it runs, on SIGUSR2."),
    ] = False,
    saves_on_signal: Annotated[
        bool,
        typer.Option("--saves-on-signal", help="The command saves and goes on, on SIGUSR1."),
    ] = False,
    key: Annotated[
        str | None, typer.Option(help="Of submits with one key, one is taken: for retries.")
    ] = None,
) -> Wish:
    """Submit a training job: a command that agents run, or one that they simulate.

    docs/jobs.md shows a whole file, whose fields say more than flags do.

    Example: tidegate submit --gpus 1..4 --steps 200 --samples-per-step 256
    --workdir "$PWD" --log run.db -- python examples/train_numpy.py

    Example: tidegate submit job.yaml --key nightly-17 --log run.db

    Example: tidegate submit job.yaml --dry-run --log run.db

    Example: tidegate submit --code . --code-store file:///shared/code --log run.db --
    python train.py

    Example: tidegate submit --model resnet50 --gpus 1..8 --steps 20000 --samples-per-step 256
    --rate 1=400,2=780,4=1500,8=2800 --deadline 2h --log run.db
    """
    file, command = file_or_command(what or [])
    fields = {} if file is None else from_file(file)
    given: dict[str, Any] = {
        "job": job,
        "model": model,
        "total_steps": steps,
        "samples_per_step": samples_per_step,
        "rates": None if rate is None else rates_of(rate),
        "memory_mib": memory_mib,
        "priority": priority,
        "edge_allowed": edge,
        "tenant": tenant,
    }
    if gpus is not None:
        given["gpus_min"], given["gpus_max"] = sizes_of(gpus)
    fields |= {name: value for name, value in given.items() if value is not None}
    asked = {
        "workdir": workdir,
        "resize": "in_place" if in_place else None,
        "saves": "on_signal" if saves_on_signal else None,
    }
    program = {name: value for name, value in asked.items() if value}
    check_workdir(workdir)
    if command:
        fields["program"] = {"argv": command, **program}
    elif program:
        without_command(next(iter(program)), has_file=file is not None)
    if code is not None and "program" not in fields:
        without_command("code", has_file=file is not None)
    archive = with_code(fields, code, file, code_store)
    own = "tenant" not in fields
    complete(fields, key)
    in_file = fields.pop("deadline", None)
    where = "--deadline" if deadline is not None else f"{file}: deadline"
    text = in_file if deadline is None else deadline
    until = None if text is None else (text, where)
    submission, deadline_after_s = checked(fields, until, has_file=file is not None)
    about = {"job": submission.job}
    before = None if key is None else at.taken(key)
    if before is not None:
        if before.about not in ("", submission.job):
            instead = "give another key, or this job"
            fail(f"--key: {key} was taken before, for {before.about}; {instead}.")
        if other := asked_otherwise(before, submission, deadline_after_s, own=own):
            fail(
                f"--key: {key} was taken before, for {submission.job}, from which this differs in "
                f"{other}; give another key, or ask for the same."
            )
        noted = f"{key} was taken before, so nothing more is asked for."
        return Wish(None, submission.job, about, noted)
    known = at.job(submission.job)
    if known is not None:
        fail(f"--job: {known.job} exists already ({known.state}); choose another id.")
    if deadline_after_s is not None:
        submission = submission.model_copy(update={"deadline_s": at.now_s + deadline_after_s})
    return Wish(
        SubmitJob(spec=submission),
        submission.job,
        about,
        f"Submitted to {at.name}.",
        [*hints(submission, at.nodes().it.nodes), *_of_length(submission)],
        as_event=submission,
        life_s=LIFE_MAX_S,
        key=key,
        own=own,
        first=None if archive is None else archive.told,
    )


def _of_length(submission: JobSubmitted) -> Iterator[str]:
    """Tell how the length of a job is known that declares none."""
    if submission.total_steps is not None:
        return
    if submission.model == NO_MODEL:
        yield "--steps is not given: how long it takes is guessed as it runs; with a --model,"
        yield "it is learned from jobs of that model, too."
    else:
        yield "--steps is not given: how long it takes is learned from jobs of its --model."
    if submission.deadline_s is not None:
        yield "So nobody can promise its deadline, and no policy is told of it."


@moves
def cancel(
    at: Source,
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
) -> Wish:
    """Cancel a job; if it runs, its gang is told to leave.

    Example: tidegate cancel job-0042 --log run.db
    """
    known = job_of(at, job)
    if known.state == JobState.CANCELLED:
        return already(f"{job} is cancelled already; there is nothing to do.", {"job": job})
    if known.state in TERMINAL:
        fail(f"{job} is {known.state}: it can be cancelled no more.", code=1)
    ran = duration(at.overview().it.now_s - known.submit_s)
    said = f"Asked to cancel {job} (submitted {ran} ago), in {at.name}."
    args, event = CancelJob(job=job), JobCancelled(job=job)
    return Wish(args, said, {"job": job}, as_event=event, life_s=LIFE_MAX_S)
