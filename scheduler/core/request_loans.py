"""Requests about loans: what each does."""

from scheduler.core import facts, recalls
from scheduler.core.freezes import EVERY
from scheduler.core.rights import Wrong
from scheduler.core.state import ClusterState
from scheduler.core.turn import Turn
from schemas.requests import FreezeLoans, RecallLoans, Request, UnfreezeLoans

_FIELD = "args.lender"


def freeze(turn: Turn, request: Request, args: FreezeLoans) -> Wrong | None:
    """Borrow nothing more from a lender, or from any; a freeze that holds gets the new end."""
    if args.lender is not None and (wrong := _no_lender(turn.state, args.lender)) is not None:
        return wrong
    if (wrong := _past(turn.state, "args.until_s", args.until_s)) is not None:
        return wrong
    name, by = args.lender or EVERY, request.subject
    turn.emit(facts.LoansFrozen(name, request.id, by, request.reason, args.until_s))
    return None


def unfreeze(turn: Turn, request: Request, args: UnfreezeLoans) -> Wrong | None:
    """Lift the freeze of a lender, or all freezes if none is named."""
    frozen = sorted(turn.state.standing.freezes)
    if not frozen:
        return _FIELD, "nothing is frozen"
    if args.lender is not None and args.lender not in frozen:
        names = ", ".join(name or "every lender" for name in frozen)
        return _FIELD, f"{args.lender} is not frozen by that name; frozen: {names}"
    for name in frozen if args.lender is None else [args.lender]:
        turn.emit(facts.LoansUnfrozen(name, request.id, request.subject))
    return None


def recall(turn: Turn, request: Request, args: RecallLoans) -> Wrong | None:
    """Call the nodes of a lender back that are on loan."""
    state, name = turn.state, args.lender
    if (wrong := _no_lender(state, name) or _past(state, "args.by_s", args.by_s)) is not None:
        return wrong
    theirs = [name] if name in state.nodes else state.pools[name].nodes
    there = [node for node in theirs if state.nodes[node].loan is not None]
    if not there:
        return _FIELD, f"no node of {name} is on loan"
    back = set(recalls.outstanding(state)).intersection(there)
    if not back:
        return _FIELD, f"what is on loan of {name} goes back already"
    recalls.recall(turn, sorted(back), request.id, request.subject, args.by_s)
    return None


def _no_lender(state: ClusterState, name: str) -> Wrong | None:
    """Find why this name is no lender's; None if it is one."""
    node = state.nodes.get(name)
    pool = state.pools.get(name if node is None else node.pool)
    if pool is None:
        return _FIELD, f"there is no node or pool {name}"
    if pool.kind == "training":
        return _FIELD, f"{name} is training's own: nothing is borrowed there"
    return None


def _past(state: ClusterState, field: str, moment_s: float | None) -> Wrong | None:
    if moment_s is None or moment_s > state.now_s:
        return None
    return field, f"is {state.now_s - moment_s:.0f} s past; name a later time"
