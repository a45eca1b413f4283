"""Loans: nodes are asked for, called back, emptied and handed over to their owners."""

from collections.abc import Mapping

from scheduler.core import facts
from scheduler.core.freezes import freeze_of
from scheduler.core.leave import stop
from scheduler.core.standing import Recall
from scheduler.core.state import Node
from scheduler.core.transitions import JobState, LoanState, NodeState
from scheduler.core.turn import Turn
from schemas.commands import LendNode, ReturnNode


def lend(turn: Turn, name: str) -> None:
    """Ask an owner for a node; not for training's own, nor one on loan, closed to it, or silent."""
    state = turn.state
    node = state.nodes.get(name)
    if node is None or node.loan is not None or node.state is not NodeState.ALIVE:
        return
    if name in state.standing.cordons or freeze_of(state, node) is not None:
        return
    if state.pools[node.pool].kind == "training":
        return
    loan = f"loan-{state.leader.epoch}-{state.loans}"
    turn.emit(facts.LoanRequested(loan, name))
    turn.command(node.agent, LendNode(node=name, loan=loan), name)


def start_reclaims(turn: Turn, reclaim: Mapping[str, float]) -> None:
    """Begin to call lent nodes back: node -> when its owner is expected to need it.

    One that its owner was asked for, and has not left yet, is not asked for any more.
    """
    state = turn.state
    for name in sorted(reclaim):
        node = state.nodes.get(name)
        if node is None:
            continue
        if node.loan_state is LoanState.LENT:
            turn.emit(facts.ReclaimStarted(name, max(reclaim[name], state.now_s)))
        elif node.loan_state is LoanState.LENDING:
            _withdraw(turn, node, "called back before its owner had left it")


def call_back(turn: Turn, node: Node, loan: str) -> None:
    """Enter a loan that the log has lost or given up, and reclaim the node as from any loan."""
    if turn.state.pools[node.pool].kind == "training":
        return
    turn.emit(facts.LoanRequested(loan, node.id))
    turn.emit(facts.LoanGranted(node.id))
    turn.emit(facts.ReclaimStarted(node.id, turn.state.now_s))


def clear_reclaimed(turn: Turn, *, anew: bool = True) -> None:
    """Get gangs that nobody moved off nodes that go back; hand empty nodes over.

    All are looked at, or unless `anew` those alone that this turn has touched: without a fact about
    it, or about a job there, nothing but time gives a node more to do.
    """
    for node in turn.state.changing_loans(None if anew else _touched(turn)):
        if node.loan is None or node.state is not NodeState.ALIVE:
            continue
        if node.loan_state is LoanState.RECLAIMING:
            clear(turn, node)
        elif node.loan_state is LoanState.RETURNING:
            if not any(node.holder) and not turn.state.is_open("ReturnNode", node.id):
                turn.command(node.agent, ReturnNode(node=node.id, loan=node.loan), node.id)
        elif node.loan_state is LoanState.LENDING and not turn.state.is_open("LendNode", node.id):
            _withdraw(turn, node, "never acknowledged")


def _withdraw(turn: Turn, node: Node, why: str) -> None:
    """Ask for a node no longer. Its agent may have heard, so it is told to give the node back."""
    assert node.loan is not None
    order = ReturnNode(node=node.id, loan=node.loan)
    turn.emit(facts.LoanRefused(node.id, why))
    turn.command(node.agent, order, node.id)


def _touched(turn: Turn) -> set[str]:
    """Name the nodes that the facts of this turn are about, and those of their jobs."""
    found = set[str]()
    for fact in turn.facts:
        if (node := getattr(fact, "node", None)) is not None:
            found.add(node)
        job = turn.state.jobs.get(getattr(fact, "job", ""))
        if job is not None:
            found.update(job.allocation, job.leaving)
    return found


def clear(turn: Turn, node: Node) -> None:
    """Get gangs that nobody moved off a node that goes back; hand it over once it is empty."""
    state = turn.state
    holders = sorted({holder for holder in node.holder if holder is not None})
    # One that waits for GPUs elsewhere may wait until a grace before the owner needs the node.
    pressing = state.now_s + turn.settings.grace_s >= (node.due_s or 0.0)
    recall = state.standing.recalls.get(node.id)
    # The policy may move them: it is asked first.
    asked = recall is None or state.cycle_number > recall.since_number
    for job in (state.jobs[name] for name in holders if name in state.jobs):
        here = node.id in job.allocation and (pressing or (asked and job.target is None))
        if here and job.state in (JobState.STARTING, JobState.RUNNING):
            turn.because(job.id, "preempts", _why(recall), due_s=node.due_s or 0.0)
            stop(turn, job, "preempted")
    if not holders and node.loan is not None:
        turn.emit(facts.ReturnOrdered(node.id))
        turn.command(node.agent, ReturnNode(node=node.id, loan=node.loan), node.id)


def _why(recall: Recall | None) -> str:
    """Give the rule by which a node goes back."""
    if recall is None:
        return "loan.reclaimed"
    if recall.request:
        return "operator.recall"
    return "loans.unheard" if recall.by else "policy.recall"
