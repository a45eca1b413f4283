"""`tidegate why JOB`: what a job waits for or why it was moved, in words, with the figures used."""

from typing import Annotated

import typer

from console.forms import Found, looks
from console.output import out
from console.source import Source


@looks
def why(
    at: Source,
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
) -> Found:
    """Explain a job: what it waits for, or why it was started, moved, resized or preempted.

    Every figure is the one that the decision used, with its age. Nothing is recomputed. Worth and
    price, by which the policy tide decides, have no unit: they are only to be compared with each
    other.

    Example: tidegate why job-0042 --log run.db
    """
    told = at.why(job, out().width)
    return Found(told.document, [told.text], told.age)
