"""`tidegate pause` and `resume`: a cell starts no job, or lends no node, for a time."""

from typing import Annotated

import typer

from console.forms import asks
from console.node import from_now
from console.source import Source, Wish, already
from schemas.requests import PauseCell, Paused, ResumeCell

What = Annotated[
    Paused,
    typer.Argument(help="starts: no job starts or grows. loans: no new loan. all: both."),
]
Ends = Annotated[
    Paused,
    typer.Argument(
        help="starts: jobs start and grow again. loans: nodes are lent again. all: both."
    ),
]
_SAYS: dict[Paused, str] = {
    "starts": "no job is started or grows",
    "loans": "no node is lent",
    "all": "no job is started or grows, and no node is lent",
}


@asks
def pause(
    at: Source,
    what: What = "all",
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Such as 2h; else until resume.")
    ] = None,
) -> Wish:
    """Start and grow no job, and lend no node, for a time.

    What runs goes on. Nodes still go back to their owners, jobs still shrink, move, end and are
    cancelled, and gangs that are lost wait.

    Example: tidegate pause starts --for 2h --reason "the chillers" --log run.db
    """
    until_s = None if for_ is None else from_now("--for", for_) + at.now_s
    until = f"until `tidegate resume {what}`" if for_ is None else f"for {for_}"
    said = f"Paused: {_SAYS[what]} {until}."
    return Wish(PauseCell(what=what, until_s=until_s), said, {"what": what})


@asks
def resume(at: Source, what: Ends = "all") -> Wish:
    """End a pause: jobs start, and nodes are lent again.

    Example: tidegate resume --log run.db
    """
    pauses = at.rules().it.pauses
    if not pauses or (what != "all" and what not in pauses):
        which = "Nothing is" if what == "all" else f"{what.capitalize()} are not"
        return already(f"{which} paused; there is nothing to do.", {"what": what})
    return Wish(ResumeCell(what=what), "Resumed.", {"what": what})
