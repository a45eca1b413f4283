"""Recalls: nodes on loan that go back whatever the policy plans.

Somebody asked for it, the policy never returns any, or their owner is not heard.

A recalled node takes the path of any reclaim (`loans`), but for one thing: its gangs stay until the
policy was asked, so that it may move them, unless the owner is to have the node too soon for that.
"""

from collections.abc import Iterable

from scheduler.core import facts, owners
from scheduler.core.lenders import lender_of
from scheduler.core.loans import clear, start_reclaims
from scheduler.core.state import ClusterState, policy_name
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
    for node in owners.unheard(turn) if state.on_loan else ():
        silent_s = state.now_s - owners.heard_of_s(state, node)
        turn.because(node.id, "reclaims", "loans.unheard", silent_s=silent_s)
        turn.emit(facts.LoanRecalled(node.id, "", lender_of(state, node), soon_s(turn)))
    start_reclaims(turn, {name: one.due_s for name, one in state.standing.recalls.items()})


def clear_recalled(turn: Turn) -> None:
    """Get gangs off recalled nodes, once the policy was asked."""
    for name in sorted(turn.state.standing.recalls):
        node = turn.state.nodes[name]
        if node.state is NodeState.ALIVE and node.loan_state is LoanState.RECLAIMING:
            clear(turn, node)
