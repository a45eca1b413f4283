"""Freezes: of a frozen node, pool, or of every lender, nothing is newly borrowed.

A node that may not be borrowed is shown to policies as one that goes back to its owner: the owner
has it, and nobody plans to borrow it. What is on loan stays so; `recalls` is about that.
"""

from scheduler.core import facts
from scheduler.core.standing import Freeze
from scheduler.core.state import ClusterState, Node
from scheduler.core.turn import Turn

#: The name of a freeze of every lender.
EVERY = ""


def freeze_of(state: ClusterState, node: Node) -> Freeze | None:
    """Find a freeze that keeps a node from being borrowed."""
    freezes = state.standing.freezes
    if not freezes or state.pools[node.pool].kind == "training":
        return None
    return freezes.get(EVERY) or freezes.get(node.pool) or freezes.get(node.id)


def due_s(state: ClusterState) -> float | None:
    """Say when the next freeze ends by itself; None if none does."""
    ends_s = (freeze.until_s for freeze in state.standing.freezes.values())
    return min((end_s for end_s in ends_s if end_s is not None), default=None)


def advance(turn: Turn) -> None:
    """End the freezes whose time is up."""
    for name, freeze in sorted(turn.state.standing.freezes.items()):
        if freeze.until_s is not None and freeze.until_s <= turn.state.now_s:
            turn.emit(facts.LoansUnfrozen(name, "", ""))
