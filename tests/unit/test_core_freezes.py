"""Loans frozen and recalled: held by the core, whatever the policy wants."""

from typing import Any, Literal

import pytest

from scheduler.core import facts
from scheduler.core.canonical import state_to_json
from scheduler.policies.interface import LoanPhase
from schemas.commands import LendNode, ReturnNode, StopGang
from schemas.requests import FreezeLoans, RecallLoans, UnfreezeLoans, VerbData
from tests.asked import ask
from tests.builders import Cell, load, node_born, submitted, target


@pytest.fixture
def cell() -> Cell:
    """A training node, two nodes of an inference pool, an edge server, and two jobs."""
    return Cell().told(
        node_born("n0"),
        node_born("i0", pool="infer", kind="inference"),
        node_born("i1", pool="infer", kind="inference"),
        node_born("e0", pool="edge", kind="edge"),
        load(pool="infer"),
        submitted("j0"),
        submitted("j1"),
    )


def refused(cell: Cell) -> tuple[str, str]:
    (fact,) = [fact for fact in cell.last.facts if isinstance(fact, facts.RequestRefused)]
    assert len(cell.last.facts) == 1, "a refused request changes nothing else"
    return fact.field, fact.reason


def lent(cell: Cell, *nodes: str) -> None:
    cell.plan(lend=nodes)
    cell.acks(kind="LendNode")


def phases(cell: Cell) -> dict[str, LoanPhase]:
    nodes = cell.seen().nodes
    return {name: LoanPhase(loan) for name, loan in zip(nodes.ids, nodes.loan, strict=True)}


def rules(cell: Cell) -> list[str]:
    return [reason.rule for reason in cell.last.reasons]


@pytest.mark.parametrize(
    ("lender", "frozen"),
    [("i0", {"i0"}), ("infer", {"i0", "i1"}), ("e0", {"e0"}), (None, {"i0", "i1", "e0"})],
)
def test_nothing_is_newly_borrowed_from_what_is_frozen(
    cell: Cell, lender: str | None, frozen: set[str]
) -> None:
    ask(cell, FreezeLoans(lender=lender), reason="launch day")
    shown = phases(cell)
    assert {name for name, phase in shown.items() if phase is LoanPhase.RECLAIMING} == frozen
    cell.plan(lend=["i0", "i1", "e0"])
    assert {one.node for one in cell.sent(LendNode)} == {"i0", "i1", "e0"} - frozen
    ask(cell, UnfreezeLoans(lender=lender))
    assert cell.state.standing.freezes == {}
    cell.plan(lend=sorted(frozen))
    assert {one.node for one in cell.sent(LendNode)} == frozen


def test_what_is_on_loan_stays_so_when_its_lender_is_frozen(cell: Cell) -> None:
    lent(cell, "i0")
    cell.run("j0", "infer", i0=2)
    ask(cell, FreezeLoans(lender="infer"))
    assert phases(cell)["i0"] is LoanPhase.LENT
    cell.plan({"j1": target("infer", i0=2)})
    assert cell.job("j1").allocation == {"i0": [2, 3]}


def test_a_freeze_ends_when_its_time_is_up_and_a_node_that_comes_later_is_frozen_too(
    cell: Cell,
) -> None:
    ask(cell, FreezeLoans(lender="infer", until_s=cell.now_s + 47.0))
    cell.feed(node_born("i2", pool="infer", kind="inference"))
    assert phases(cell)["i2"] is LoanPhase.RECLAIMING
    cell.wait(20.0, 20.0)
    assert cell.last.wake_s == cell.state.standing.freezes["infer"].until_s
    cell.wait(27.0, 27.0)
    assert cell.state.standing.freezes == {}
    ended = [fact for fact in cell.last.facts if isinstance(fact, facts.LoansUnfrozen)]
    assert ended == [facts.LoansUnfrozen("infer", "", "")]
    assert phases(cell)["i2"] is LoanPhase.OWNED


def test_a_freeze_of_one_name_gets_a_new_end(cell: Cell) -> None:
    ask(cell, FreezeLoans(lender="infer", until_s=cell.now_s + 47.0))
    ask(cell, FreezeLoans(lender="infer"), subject="bob")
    freeze = cell.state.standing.freezes["infer"]
    assert (freeze.until_s, freeze.by) == (None, "bob")
    ask(cell, FreezeLoans(lender="e0"))
    ask(cell, UnfreezeLoans())
    assert cell.state.standing.freezes == {}, "without a name, all are lifted"


def test_a_recalled_node_goes_back_once_the_policy_could_move_its_gangs(cell: Cell) -> None:
    lent(cell, "i0", "i1")
    cell.run("j0", "infer", i0=2)
    cell.run("j1", "infer", i1=2)
    by_s = cell.now_s + 600.0
    ask(cell, RecallLoans(lender="infer", by_s=by_s), reason="launch day")
    assert [n.due_s for n in map(cell.state.nodes.get, ("i0", "i1")) if n] == [by_s, by_s]
    assert not cell.sent(StopGang), "the policy is asked first"
    cell.plan({"j0": target("train", n0=2)})
    assert (cell.job("j0").state, cell.job("j0").target) == ("migrating", {"n0": [0, 1]}) or (
        cell.job("j0").target == {"n0": [0, 1]}
    )
    assert cell.job("j1").state == "checkpointing", "nobody moved it"
    assert [r.subject for r in cell.last.reasons if r.rule == "operator.recall"] == ["j1"]
    cell.stop_workers("j1")
    cell.wait(60.0)
    cell.acks(kind="ReturnNode")
    assert cell.state.nodes["i1"].loan is None
    assert cell.state.totals.reclaims_late == 0


def test_a_recall_that_presses_does_not_wait_for_the_policy(cell: Cell) -> None:
    lent(cell, "i0")
    cell.run("j0", "infer", i0=2)
    ask(cell, RecallLoans(lender="i0", by_s=cell.now_s + 30.0))
    cell.wait(1.0)
    assert cell.job("j0").state == "checkpointing"
    assert cell.sent(StopGang)
    cell.stop_workers("j0")
    cell.acks(kind="ReturnNode")
    assert cell.state.standing.recalls == {}, "it is its owner's again"


@pytest.mark.parametrize("outcome", ["done", "refused"])
def test_an_empty_node_goes_back_at_once_and_one_is_asked_for_no_longer(
    cell: Cell, outcome: Literal["done", "refused"]
) -> None:
    lent(cell, "i0")
    cell.plan(lend=["i1"])
    (asked,) = cell.sent(LendNode)
    ask(cell, RecallLoans(lender="infer", by_s=cell.now_s + 600.0))
    (back,) = cell.sent(ReturnNode)
    assert (back.node, back.loan) == ("i1", asked.loan), "its agent may have heard of the loan"
    assert (cell.state.nodes["i1"].loan, list(cell.state.standing.recalls)) == (None, ["i0"])
    cell.wait(1.0)
    assert [one.node for one in cell.sent(ReturnNode)] == ["i0"]
    cell.acks(kind="LendNode", outcome=outcome)
    again = [one.loan for one in cell.sent(ReturnNode) if one.node == "i1"]
    assert again == ([asked.loan] if outcome == "done" else []), (
        "what it did all the same is undone"
    )
    cell.wait(60.0)
    cell.acks(kind="ReturnNode")
    assert (cell.state.on_loan, cell.state.standing.recalls) == ([], {})


def test_a_node_that_its_owner_needs_again_is_asked_for_no_longer(cell: Cell) -> None:
    cell.plan(lend=["i1"])
    cell.plan(reclaim={"i1": cell.now_s + 600.0})
    assert [one.node for one in cell.sent(ReturnNode)] == ["i1"]
    assert cell.state.on_loan == []
    for _ in range(8):
        cell.wait(60.0)
        assert not cell.sent(LendNode), "the order to lend is not repeated"
    cell.plan(lend=["i1"])
    assert [one.node for one in cell.sent(LendNode)] == ["i1"]
    cell.acks(kind="LendNode")
    assert cell.state.nodes["i1"].loan_state == "lent"


def test_a_recalled_node_that_dies_is_forgotten(cell: Cell) -> None:
    lent(cell, "i0")
    ask(cell, RecallLoans(lender="i0", by_s=cell.now_s + 600.0))
    cell.reborn(node_born("i0", pool="infer", kind="inference"))
    assert (cell.state.on_loan, cell.state.standing.recalls) == ([], {})


#: What is refused: what is asked, how, and the field and a part of the reason.
REFUSED: list[tuple[VerbData, dict[str, Any], str, str]] = [
    (FreezeLoans(lender="no"), {}, "args.lender", "there is no node or pool no"),
    (FreezeLoans(lender="n0"), {}, "args.lender", "n0 is training's own"),
    (FreezeLoans(lender="train"), {}, "args.lender", "train is training's own"),
    (FreezeLoans(until_s=5.0), {}, "args.until_s", "past; name a later time"),
    (FreezeLoans(), {"role": "tenant"}, "role", "is tenant, but loans.freeze is for operator"),
    (UnfreezeLoans(), {}, "args.lender", "nothing is frozen"),
    (UnfreezeLoans(), {"role": "viewer"}, "role", "is viewer"),
    (RecallLoans(lender="no", by_s=1e10), {}, "args.lender", "there is no node or pool no"),
    (RecallLoans(lender="train", by_s=1e10), {}, "args.lender", "training's own"),
    (RecallLoans(lender="infer", by_s=1e10), {}, "args.lender", "no node of infer is on loan"),
    (RecallLoans(lender="infer", by_s=5.0), {}, "args.by_s", "past; name a later time"),
    (RecallLoans(lender="infer", by_s=1e10), {"role": "tenant"}, "role", "for operator or admin"),
]


@pytest.mark.parametrize(("args", "how", "field", "part"), REFUSED)
def test_what_may_not_be_is_refused(
    cell: Cell, args: VerbData, how: dict[str, Any], field: str, part: str
) -> None:
    before = cell.state.standing.freezes.copy()
    ask(cell, args, **how)
    said, why = refused(cell)
    assert (said, cell.state.standing.freezes) == (field, before)
    assert part in why


def test_what_is_not_frozen_by_that_name_or_goes_back_already_is_refused(cell: Cell) -> None:
    ask(cell, FreezeLoans())
    ask(cell, UnfreezeLoans(lender="infer"))
    assert refused(cell) == (
        "args.lender",
        "infer is not frozen by that name; frozen: every lender",
    )
    ask(cell, UnfreezeLoans())
    lent(cell, "i0")
    cell.run("j0", "infer", i0=2)
    ask(cell, RecallLoans(lender="i0", by_s=cell.now_s + 600.0))
    ask(cell, RecallLoans(lender="infer", by_s=cell.now_s + 60.0))
    assert refused(cell) == ("args.lender", "what is on loan of infer goes back already")


def test_a_state_that_nothing_is_left_standing_in_has_the_form_that_it_had(cell: Cell) -> None:
    ask(cell, FreezeLoans())
    assert b"freezes" in state_to_json(cell.state)
    ask(cell, UnfreezeLoans())
    assert b"freezes" not in state_to_json(cell.state)
