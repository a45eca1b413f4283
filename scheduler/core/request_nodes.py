"""Requests about nodes: what each does."""

from scheduler.core import drains, facts
from scheduler.core.rights import Wrong
from scheduler.core.turn import Turn
from schemas.commands import Rebirth
from schemas.requests import (
    AcceptNode,
    CordonNode,
    DrainNode,
    RefuseNode,
    Request,
    UncordonNode,
)


def cordon(turn: Turn, request: Request, args: CordonNode) -> Wrong | None:
    """Cordon a node: it takes no new work. One that is cordoned already stays so."""
    if args.node not in turn.state.nodes:
        return _unknown(args.node)
    _cordon(turn, request, args.node)
    return None


def uncordon(turn: Turn, request: Request, args: UncordonNode) -> Wrong | None:
    """Let a node take work again; a drain of it is called off."""
    standing = turn.state.standing
    if args.node not in turn.state.nodes:
        return _unknown(args.node)
    if args.node not in standing.cordons:
        return "args.node", f"{args.node} is not cordoned"
    if args.node in standing.drains:
        turn.emit(facts.DrainEnded(args.node, "called_off"))
    turn.emit(facts.NodeUncordoned(args.node, request.id, request.subject))
    return None


def drain(turn: Turn, request: Request, args: DrainNode) -> Wrong | None:
    """Cordon a node and have what runs there leave; a drain under way gets the new deadline."""
    now_s = turn.state.now_s
    if args.node not in turn.state.nodes:
        return _unknown(args.node)
    if args.by_s <= now_s:
        return "args.by_s", f"is {now_s - args.by_s:.0f} s past; name a later time"
    _cordon(turn, request, args.node)
    begun = facts.DrainStarted(args.node, request.id, request.subject, args.by_s, args.force)
    turn.emit(begun)
    drains.advance(turn)
    return None


def accept(turn: Turn, request: Request, args: AcceptNode) -> Wrong | None:
    """Let a node join that is not listed; this replaces an earlier acceptance of the same name."""
    state = turn.state
    node, pool = state.nodes.get(args.node or ""), state.pools.get(args.pool)
    if node is not None and node.agent != args.agent:
        return "args.agent", f"is {args.agent}, but {node.id} is {node.agent}'s"
    if pool is not None and pool.kind != args.pool_kind:
        return "args.pool_kind", f"is {args.pool_kind}, but pool {pool.id} is {pool.kind}"
    fact = facts.NodeAccepted(
        joins=args.node,
        agent=args.agent,
        pool=args.pool,
        pool_kind=args.pool_kind,
        gpu_count=args.gpu_count,
        speed_factor=args.speed_factor,
        request=request.id,
        by=request.subject,
        reason=request.reason,
    )
    turn.emit(fact)
    if not state.is_open("Rebirth", args.agent):  # what it said before was not taken
        turn.command(args.agent, Rebirth(reason="accepted"), args.node or args.agent)
    return None


def refuse(turn: Turn, request: Request, args: RefuseNode) -> Wrong | None:
    """Take an acceptance back; a node that has joined stays until its agent announces it again."""
    if args.node not in turn.state.standing.accepted:
        return "args.node", f"{args.node} was not accepted; `tidegate nodes` lists what was"
    turn.emit(facts.NodeRefused(args.node, request.id, request.subject))
    return None


def _cordon(turn: Turn, request: Request, node: str) -> None:
    if node not in turn.state.standing.cordons:
        turn.emit(facts.NodeCordoned(node, request.id, request.subject, request.reason))


def _unknown(node: str) -> Wrong:
    return "args.node", f"there is no node {node}"
