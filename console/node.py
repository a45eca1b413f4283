"""`tidegate node`: what operators ask of nodes."""

from typing import Annotated

import typer

from console.forms import asks, moves
from console.output import fail
from console.source import Source, Wish, already
from explain.job_file import after_s
from explain.rows import NodeRow
from explain.shares import counted
from schemas.events import PoolKind
from schemas.requests import AcceptNode, CordonNode, DrainNode, RefuseNode, UncordonNode
from schemas.values import MAX_GPUS_PER_NODE

app = typer.Typer(
    no_args_is_help=True,
    help="Close a node to new work, empty it, open it; let one join that is not listed.",
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
        return already(f"{node} is not cordoned; there is nothing to do.", {"node": node})
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
    said = f"{node}: to be empty in {by}; `tidegate nodes` says when it is."
    return Wish(DrainNode(node=node, by_s=at.now_s + in_s, force=force), said, {"node": node})


@app.command()
@asks
def accept(
    at: Source,
    name: Annotated[
        str, typer.Argument(metavar="NODE|AGENT", help="A node; with --every-node, an agent.")
    ],
    pool: Annotated[str, typer.Option(help="The pool that it joins.")],
    kind: Annotated[PoolKind, typer.Option(help="Of that pool.")],
    gpus: Annotated[
        int, typer.Option(min=1, max=MAX_GPUS_PER_NODE, help="That it may have, at most.")
    ],
    speed: Annotated[
        float, typer.Option(min=1e-6, max=100.0, help="Of its GPUs, as its agent says.")
    ] = 1.0,
    agent: Annotated[
        str | None, typer.Option(help="Who speaks for it. If not given: an agent of its name.")
    ] = None,
    every_node: Annotated[
        bool, typer.Option("--every-node", help="Accept any node of the agent, each as this.")
    ] = False,
) -> Wish:
    """Let a node join that the scheduler's list of pools does not have; as this, nothing else.

    The dead letter of a birth that was refused ends with the command that accepts it as it is.
    What is accepted outlives restarts, until it is refused again; `tidegate nodes` lists it.

    Example: tidegate node accept edge-9 --pool edge --kind edge --gpus 2 --speed 0.4 --log run.db
    """
    if every_node and agent is not None:
        fail("--agent: with --every-node the agent is named in place of a node; leave it out.")
    args = AcceptNode(
        agent=agent or name,
        node=None if every_node else name,
        pool=pool,
        pool_kind=kind,
        gpu_count=gpus,
        speed_factor=speed,
    )
    who = f"any node of agent {name}" if every_node else name
    of = f", spoken for by {agent}" if agent is not None else ""
    most = f"at most {counted(gpus, 'GPU')} of speed {speed:g}"
    said = f"{who}{of}: accepted in {pool} ({kind}), with {most}."
    note = "Its agent is asked who it is; `tidegate nodes` shows the node once it has answered."
    known = any(name in (row.node, row.agent) for row in at.nodes().it.nodes)
    return Wish(args, said, {"node": name}, noted="" if known else note)


@app.command()
@asks
def refuse(
    at: Source,
    name: Annotated[str, typer.Argument(metavar="NODE|AGENT", help="As it was accepted.")],
) -> Wish:
    """Accept a node, or an agent's nodes, no longer; what has joined stays until its next birth.

    Drain it first to have it empty.

    Example: tidegate node refuse edge-9 --log run.db
    """
    if name not in at.rules().it.accepted:
        said = f"{name} was not accepted; `tidegate nodes` lists what was."
        if all(name not in (row.node, row.agent) for row in at.nodes().it.nodes):
            fail(said)
        return already(said, {"node": name})
    return Wish(RefuseNode(node=name), f"{name}: accepted no longer, from its next birth on.",
                {"node": name})  # fmt: skip


def from_now(option: str, text: str) -> float:
    """Read how long from now, in seconds; say so and end if it cannot be read, or has no unit."""
    try:
        return after_s(text, option)
    except ValueError as error:
        fail(f"{error}")


def _known(at: Source, node: str) -> NodeRow:
    known = next((row for row in at.nodes().it.nodes if row.node == node), None)
    if known is None:
        fail(f"{node}: no such node in {at.name}; `tidegate nodes` lists those there are.")
    return known
