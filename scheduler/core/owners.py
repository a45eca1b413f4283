"""Owners of nodes on loan, as far as the core holds them itself: those that are not heard.

Policies believe a report for a while, and then neither lend nor call anything back, since both
would be a guess. An owner whose load stays unheard while its agent is in contact may long need what
it lent: its meter, or what carries its word, has failed. So it all goes back.
"""

from scheduler.core import facts
from scheduler.core.lenders import known_of, lender_of
from scheduler.core.state import ClusterState, Node
from scheduler.core.transitions import LoanState, NodeState
from scheduler.core.turn import Turn


def unheard(turn: Turn) -> list[Node]:
    """List the nodes that are to go back since their owner is not heard; note who is not.

    After that was noted its agent has a while to say its load: when a scheduler begins again, or a
    link is up again, an old word is no sign that something is wrong.
    """
    state, silence_s = turn.state, turn.settings.owner_silence_s
    if silence_s is None:
        return []
    theirs: dict[tuple[str, str], list[Node]] = {}
    for name in state.on_loan:
        node = state.nodes[name]
        if node.loan_state is not LoanState.LENT or node.state is not NodeState.ALIVE:
            continue
        if name not in state.standing.recalls:
            part = node.id if state.pools[node.pool].kind == "edge" else node.agent
            theirs.setdefault((node.pool, part), []).append(node)
    found: list[Node] = []
    for nodes in theirs.values():
        lender, heard_s = lender_of(state, nodes[0]), heard_of_s(state, nodes[0])
        if state.now_s - heard_s < silence_s:
            continue
        since_s = state.standing.unheard.get(lender)
        if since_s is None:
            turn.emit(facts.OwnerUnheard(lender))
        elif state.now_s - since_s >= turn.settings.silence_s:
            found += nodes
    return sorted(found, key=lambda node: node.id)


def heard_of_s(state: ClusterState, node: Node) -> float:
    """Give when the load of a node's owner was heard; if never, when it lent the node."""
    lender = known_of(state, node)
    return node.loan_since_s if lender is None or lender.at_s is None else lender.at_s
