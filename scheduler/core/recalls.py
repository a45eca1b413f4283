"""Recalls: nodes on loan that go back whatever the policy plans.

Somebody asked for it, the policy never returns any, or their owner is not heard.

A recalled node takes the path of any reclaim (`loans`), but for one thing: its gangs stay until the
policy was asked, so that it may move them, unless the owner is to have the node too soon for that.

Policies believe an owner's report for a while, and then neither lend nor call anything back, since
both would be a guess. An owner whose load stays unheard while its agent is in contact may long need
what it lent: its meter, or what carries its word, has failed. So it all goes back.
"""

from collections.abc import Iterable

from scheduler.core import facts
from scheduler.core.lenders import known_of, lender_of
from scheduler.core.loans import clear, start_reclaims
from scheduler.core.state import ClusterState, Node, policy_name
from scheduler.core.transitions import LoanState, NodeState
from scheduler.core.turn import Turn
from scheduler.policies.registry import gives_back


def outstanding(state: ClusterState) -> list[str]:
    """List the nodes that are on loan, or about to be, and do not go back yet."""
    there = (LoanState.LENDING, LoanState.LENT)
    names = (name for name in state.on_loan if name not in state.standing.recalls)
    return [name for name in names if state.nodes[name].loan_state in there]


def soon_s(turn: Turn) -> float:
    """Say by when nodes can be back, so that the policy is asked and gangs can save their work."""
    return turn.state.now_s + turn.settings.cycle_s + turn.settings.grace_s


def recall(turn: Turn, names: Iterable[str], request: str, by: str, due_s: float) -> None:
    """Call back nodes that are on loan, or that their owners were asked for."""
    for name in names:
        turn.emit(facts.LoanRecalled(name, request, by, due_s))
    advance(turn)


def advance(turn: Turn) -> None:
    """Begin the reclaims that are called for.

    Where the policy in force never gives nodes back, that is all that are lent; where an owner is
    not heard, all that it lent.
    """
    state = turn.state
    if state.on_loan and not gives_back(policy_name(state)):
        for name in outstanding(state):
            if state.nodes[name].loan_state is LoanState.LENT:
                turn.emit(facts.LoanRecalled(name, "", "", soon_s(turn)))
    for node in _unheard(turn) if state.on_loan else ():
        silent_s = state.now_s - _heard_of_s(state, node)
        turn.because(node.id, "reclaims", "loans.unheard", silent_s=silent_s)
        turn.emit(facts.LoanRecalled(node.id, "", lender_of(state, node), soon_s(turn)))
    start_reclaims(turn, {name: one.due_s for name, one in state.standing.recalls.items()})


def clear_recalled(turn: Turn) -> None:
    """Get gangs off recalled nodes, once the policy was asked."""
    for name in sorted(turn.state.standing.recalls):
        node = turn.state.nodes[name]
        if node.state is NodeState.ALIVE and node.loan_state is LoanState.RECLAIMING:
            clear(turn, node)


def _unheard(turn: Turn) -> list[Node]:
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
        if state.now_s - _heard_of_s(state, nodes[0]) < silence_s:
            continue
        lender = lender_of(state, nodes[0])
        since_s = state.standing.unheard.get(lender)
        if since_s is None:
            turn.emit(facts.OwnerUnheard(lender))
        elif state.now_s - since_s >= turn.settings.silence_s:
            found += nodes
    return sorted(found, key=lambda node: node.id)


def _heard_of_s(state: ClusterState, node: Node) -> float:
    """Give when the load of a node's owner was heard; if never, when it lent the node."""
    lender = known_of(state, node)
    return node.loan_since_s if lender is None or lender.at_s is None else lender.at_s
