"""`tidegate node`: what operators ask of nodes."""

from typing import Annotated

import typer

from console.forms import asks, moves
from console.output import fail
from console.source import Source, Wish
from explain.moments import seconds_of
from explain.rows import NodeRow
from schemas.requests import CordonNode, DrainNode, UncordonNode

app = typer.Typer(
    no_args_is_help=True,
    help="Close a node to new work, empty it, open it: cordon, drain, uncordon.",
)
#: What an option takes that says when.
TIME_FROM_NOW = "From now, such as 30m or 2h."
NodeName = Annotated[str, typer.Argument(help="The node's id, as `tidegate nodes` shows it.")]


@app.command()
@asks
def cordon(at: Source, node: NodeName) -> Wish:
    """Let no new work onto a node; what runs there goes on.

    Example: tidegate node cordon train-3 --reason "its fan is loud" --log run.db
    """
    _known(at, node)
    return Wish(CordonNode(node=node), f"{node}: cordoned: it takes no new work.", {"node": node})


@app.command()
@asks
def uncordon(at: Source, node: NodeName) -> Wish:
    """Let a node take work again; a drain of it is called off.

    Example: tidegate node uncordon train-3 --log run.db
    """
    if _known(at, node).cordon is None:
        fail(f"{node} is not cordoned; there is nothing to do.")
    return Wish(UncordonNode(node=node), f"{node}: uncordoned: it takes work again.",
                {"node": node})  # fmt: skip


@app.command()
@moves
def drain(
    at: Source,
    node: NodeName,
    by: Annotated[str, typer.Option("--by", metavar="TIME", help=TIME_FROM_NOW)] = "30m",
    force: Annotated[
        bool, typer.Option("--force", help="Stop what is left there by then, without a save.")
    ] = False,
) -> Wish:
    """Empty a node: its gangs move, or save their work and wait; then it stays cordoned.

    Example: tidegate node drain train-3 --by 30m --reason "new power supply" --log run.db
    """
    in_s = from_now("--by", by)
    _known(at, node)
    said = f"{node}: to be empty in {by}; `tidegate nodes` shows how far it is."
    return Wish(DrainNode(node=node, by_s=at.now_s + in_s, force=force), said, {"node": node})


def from_now(option: str, text: str) -> float:
    """Read how long from now, in seconds; say so and end if it cannot be read."""
    try:
        return seconds_of(text)
    except ValueError as error:
        fail(f"{option}: {error}; write 30m, 2h or 1h30m, counted from now.")


def _known(at: Source, node: str) -> NodeRow:
    known = next((row for row in at.nodes().it.nodes if row.node == node), None)
    if known is None:
        fail(f"{node}: no such node in this log; `tidegate nodes` lists those there are.")
    return known
