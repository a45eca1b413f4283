"""`tidegate fetch JOB`: the newest checkpoint of a job, as the files that the job wrote."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from console.forms import Found, looks
from console.output import fail, out
from console.source import Source

if TYPE_CHECKING:  # the store's libraries take a while to import
    from runtime.checkpoints.transfer import Progress, Transfer

_MIB = 2**20


@looks
def fetch(
    at: Source,
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
    to: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where to; it is made if there is none.")
    ] = Path(),
) -> Found:
    """Copy a job's newest checkpoint here: the files as the job wrote them, each verified.

    It reads the store itself, so the store must be reachable from this machine: a folder that is
    mounted here, or an address such as s3://, with your own credentials. A copy that was broken off
    goes on when it is asked for again.

    Example: tidegate fetch job-0042 --to result --log run.db
    """
    from runtime.checkpoints.by_address import fetch as fetched
    from runtime.checkpoints.errors import CheckpointError

    told = at.why(job, out().width)
    stored = told.document.checkpoint
    if stored is None:
        fail(f"{job} has no checkpoint in a store; tidegate why {job} says how far it is.", code=1)
    try:
        with _progress(job) as progress:
            path = fetched(stored.uri, to, progress)
    except CheckpointError as error:
        fail(f"{error}.", code=1)
    said = f"Step {stored.step:,} of {job} is in {path}: {stored.size_mib:,} MiB, verified."
    document = {"job": job, "step": stored.step, "uri": stored.uri, "path": str(path)}
    # A path that is wrapped cannot be copied.
    return Found(document, [Text(said, no_wrap=True, overflow="ignore")], told.age)


@contextmanager
def _progress(job: str) -> Iterator["Progress | None"]:
    """Show how far it is, if somebody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True).status(f"{job}…") as status:

        def show(done: "Transfer") -> None:
            of = f"{done.done_bytes / _MIB:,.0f} of {done.total_bytes / _MIB:,.0f} MiB"
            status.update(f"{job}… {of}")

        yield show
