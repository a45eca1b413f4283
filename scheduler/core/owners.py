"""Owners of nodes on loan, as far as the core holds them itself: those that are not heard.

Policies believe a report for a while, and then neither lend nor call anything back, since both
would be a guess. An owner whose load stays unheard while its agent is in contact may long need what
it lent: its meter, or what carries its word, has failed. So it all goes back.
"""

from scheduler.core import facts
from scheduler.core.state import ClusterState, Node
from scheduler.core.transitions import LoanState, NodeState
from scheduler.core.turn import Turn


def owner_of(state: ClusterState, node: Node) -> str:
    """Name the lender that a node is of: its pool, at the edge the node itself."""
    return node.id if state.pools[node.pool].kind == "edge" else node.pool


def unheard(turn: Turn) -> list[Node]:
    """List the nodes that are to go back since their owner is not heard; note who is not.

    After that was noted its agent has a while to say its load: when a scheduler begins again, or a
    link is up again, an old word is no sign that something is wrong.
    """
    state, silence_s = turn.state, turn.settings.owner_silence_s
    if silence_s is None:
        return []
    found = []
    for name in state.on_loan:
        node = state.nodes[name]
        if node.loan_state is not LoanState.LENT or node.state is not NodeState.ALIVE:
            continue
        if name in state.standing.recalls:
            continue
        owner = owner_of(state, node)
        if state.now_s - _heard_s(state, owner, node) < silence_s:
            continue
        since_s = state.standing.unheard.get(owner)
        if since_s is None:
            turn.emit(facts.OwnerUnheard(owner))
        elif state.now_s - since_s >= turn.settings.silence_s:
            found.append(node)
    return found


def silent_s(state: ClusterState, node: Node) -> float:
    """Give for how long nothing was heard of the load of a node's owner."""
    return state.now_s - _heard_s(state, owner_of(state, node), node)


def _heard_s(state: ClusterState, owner: str, node: Node) -> float:
    """Give when an owner's load was heard, or if never, when it lent this node."""
    lender = state.lenders.get(owner)
    return node.loan_since_s if lender is None or lender.at_s is None else lender.at_s
