"""Nodes on loan through the engine, what their owner's agent says of them, and its load."""

from collections.abc import Sequence

import pytest

from scheduler.core.state import OpenCommand
from scheduler.core.stimuli import Cause, NodeHeard, NodeSilent
from scheduler.core.transitions import LoanState
from schemas.commands import LendNode, ReturnNode, StopGang
from schemas.events import GangHeld, NodeBorn, NodeDied
from tests.builders import Cell, load, node_born, target, two_jobs

INFER = node_born("i0", pool="infer", kind="inference")


@pytest.fixture
def cell() -> Cell:
    return two_jobs(INFER)


def on_loan(loan: str, held: Sequence[GangHeld] = ()) -> NodeBorn:
    """The node's agent says that it is on this loan."""
    return INFER.model_copy(update={"loan": loan, "held": list(held)})


def unanswered(cell: Cell, kind: str) -> list[OpenCommand]:
    """Give the commands of a kind that are not answered yet."""
    return [command for command in cell.state.commands.values() if command.kind == kind]


def lent(cell: Cell) -> None:
    cell.plan(lend=["i0"])
    cell.acks(kind="LendNode")
    assert cell.state.nodes["i0"].loan_state is LoanState.LENT


def test_a_birth_with_a_high_boot_id_makes_nothing_old_that_is_said_after_it(cell: Cell) -> None:
    agent, high = "/agents/agent-infer", 2**31 - 1
    cell.feed(INFER, Cause(agent, high, 0, cell.now_s))
    cell.feed(load(3, "infer"), Cause(agent, high, 1, cell.now_s))
    cell.now_s += 60.0
    cell.feed(NodeDied(node="i0"), Cause(agent, 5, 7, cell.now_s))
    assert cell.state.nodes["i0"].state == "dead"
    cell.feed(INFER, Cause(agent, 6, 0, cell.now_s))
    cell.feed(load(1, "infer"), Cause(agent, 6, 1, cell.now_s))
    assert (cell.state.nodes["i0"].state, cell.state.nodes["i0"].bootid) == ("alive", 6)
    assert cell.state.lenders["infer"].gpus_needed == 1.0


def test_a_clock_that_was_ahead_or_lost_makes_nothing_old_that_a_later_boot_says(
    cell: Cell,
) -> None:
    agent = "/agents/agent-infer"
    cell.feed(INFER, Cause(agent, 5, 0, cell.now_s))
    cell.feed(on_loan("x"), Cause(agent, 6, 0, 0.0))
    assert cell.sent(ReturnNode), "the later boot was heard, though it takes it for 1970"


def test_loan_and_return(cell: Cell) -> None:
    cell.plan(lend=["i0", "n0"])
    (lend,) = cell.sent(LendNode)
    cell.plan({"j0": target("infer", i0=2)})
    assert cell.job().state == "queued", "asked for is not lent"
    cell.acks()
    assert (cell.state.gpus_loaned, cell.state.totals.loans_granted) == (4, 1)
    cell.run("j0", "infer", i0=2)
    due_s = cell.now_s + 300.0
    cell.plan(reclaim={"i0": due_s})
    assert cell.job().state == "checkpointing"
    cell.plan({"j1": target("infer", i0=1)})
    assert cell.job("j1").state == "queued", "takes no new work"
    cell.stop_workers("j0")
    (back,) = cell.sent(ReturnNode)
    assert back.loan == lend.loan
    cell.acks(kind="ReturnNode")
    totals = cell.state.totals
    assert (totals.loans_reclaimed, totals.reclaims_late, cell.state.gpus_loaned) == (1, 0, 0)
    assert cell.state.nodes["i0"].returned_s == cell.now_s


def test_a_late_reclaim_is_counted(cell: Cell) -> None:
    lent(cell)
    cell.run("j0", "infer", i0=2)
    cell.plan(reclaim={"i0": cell.now_s})
    cell.wait(60.0)
    cell.stop_workers("j0")
    cell.acks(kind="ReturnNode")
    assert cell.state.totals.reclaims_late == 1


def test_a_refused_loan(cell: Cell) -> None:
    cell.plan(lend=["i0"])
    cell.acks("refused", kind="LendNode")
    assert cell.state.nodes["i0"].loan is None
    (ask,) = unanswered(cell, "Rebirth")
    assert ask.agent == "agent-infer"
    cell.acks()
    cell.feed(on_loan("loan-old"))
    (back,) = cell.sent(ReturnNode)
    assert back.loan == "loan-old", "a loan that nobody here knows goes back"


def test_a_loan_that_was_never_answered_is_called_back(cell: Cell) -> None:
    cell.plan(lend=["i0"])
    (lend,) = unanswered(cell, "LendNode")
    cell.wait(cell.settings.command_ttl_s + 60.0)
    assert cell.state.nodes["i0"].loan is None
    assert lend.id not in cell.state.commands
    assert unanswered(cell, "ReturnNode")


def test_a_node_is_called_back_from_a_loan_that_was_given_up_until_its_agent_answers(
    cell: Cell,
) -> None:
    cell.plan(lend=["i0"])
    cell.wait(cell.settings.command_ttl_s + 60.0)
    assert cell.state.nodes["i0"].loan is None
    cell.feed(NodeSilent("i0", cell.now_s))
    cell.wait(cell.settings.command_ttl_s + 60.0)
    cell.feed(NodeHeard("i0"))  # it heard nothing, and has left its node to training
    (back,) = unanswered(cell, "ReturnNode")
    assert back.data["loan"].startswith("loan-")
    cell.acks()
    cell.wait(2 * cell.settings.command_ttl_s)
    assert cell.state.commands == {}


def test_a_loan_that_dies(cell: Cell) -> None:
    lent(cell)
    cell.run("j0", "infer", i0=2)
    cell.feed(NodeDied(node="i0"))
    assert (cell.job().state, cell.state.gpus_loaned) == ("queued", 0)
    cell.reborn(on_loan("loan-0"))
    assert cell.sent(ReturnNode)


def test_a_node_on_a_loan_that_the_log_has_lost_goes_back_when_its_gangs_have_left(
    cell: Cell,
) -> None:
    held = [GangHeld(job="old", epoch=3, gpus=[0, 1], step=0)]
    cell.reborn(on_loan("loan-old", held))
    assert cell.sent(StopGang)
    assert not cell.sent(ReturnNode), "its agent would refuse"
    cell.leave("old", "i0", [0, 1], 3, "superseded")
    (back,) = cell.sent(ReturnNode)
    assert back.loan == "loan-old"
    cell.acks("refused", kind="ReturnNode")
    cell.wait(60.0)
    assert cell.state.is_open("ReturnNode", "i0"), "and is told again"
    cell.acks()
    assert (cell.state.nodes["i0"].loan, cell.state.gpus_loaned) == (None, 0)


def test_a_node_that_is_on_a_later_loan_than_the_one_it_returns_from_goes_back(cell: Cell) -> None:
    lent(cell)
    cell.plan(reclaim={"i0": cell.now_s})
    cell.feed(INFER)
    assert cell.state.nodes["i0"].loan_state is LoanState.RETURNING, "the answer is on its way"
    cell.acks("refused", kind="ReturnNode")
    held = [GangHeld(job="old", epoch=3, gpus=[0], step=0)]
    cell.reborn(on_loan("later", held))
    assert not cell.sent(ReturnNode), "its agent would refuse"
    cell.leave("old", "i0", [0], 3, "superseded")
    cell.acks("refused", kind="ReturnNode")
    cell.feed(on_loan("later"))
    (back,) = cell.sent(ReturnNode)
    assert back.loan == "later"


def test_a_training_node_goes_back_to_nobody(cell: Cell) -> None:
    cell.reborn(node_born("n0", loan="odd"))
    assert cell.state.nodes["n0"].loan is None
    assert not cell.sent(ReturnNode)


def test_an_owner_that_lost_the_loan(cell: Cell) -> None:
    lent(cell)
    cell.reborn(INFER)
    assert (cell.state.nodes["i0"].loan, cell.state.gpus_loaned) == (None, 0)


def test_a_lost_node_that_its_owner_was_asked_for_is_called_back(cell: Cell) -> None:
    cell.plan(lend=["i0"])
    (lend,) = cell.sent(LendNode)
    cell.feed(NodeDied(node="i0", reason="maintenance"))
    (back,) = cell.sent(ReturnNode)
    assert (back.node, back.loan) == ("i0", lend.loan), "its agent may be about to read the order"
    cell.wait(61.0)
    assert not unanswered(cell, "LendNode")
    assert unanswered(cell, "ReturnNode")


def test_a_reclaimed_node_is_cleared_even_of_those_that_wait_to_move(cell: Cell) -> None:
    lent(cell)
    cell.run("j0", "infer", i0=2)
    cell.run("j1", n0=4, n1=4)
    cell.plan({"j0": target(n0=2), "j1": target(n0=2, n1=4)}, reclaim={"i0": cell.now_s + 400.0})
    cell.acks()
    job = cell.job()
    assert (job.state, job.target_pool) == ("running", "train"), "it moves when the GPUs are free"
    cell.wait(300.0)
    assert (job.state, job.stop_reason, job.target) == ("checkpointing", "preempted", None)


def test_a_refused_return_is_looked_into(cell: Cell) -> None:
    lent(cell)
    cell.plan(reclaim={"i0": cell.now_s})
    cell.acks("refused", kind="ReturnNode")
    assert unanswered(cell, "Rebirth")
    cell.wait(60.0)
    cell.acks()
    assert cell.state.nodes["i0"].loan is None


def test_reclaiming_the_target_of_a_migration(cell: Cell) -> None:
    lent(cell)
    cell.run("j0", n0=2)
    cell.plan({"j0": target("infer", i0=2)})
    assert cell.job().state == "checkpointing"
    cell.plan(reclaim={"i0": cell.now_s})
    cell.stop_workers("j0", "migrated", step=5)
    assert (cell.job().state, cell.job().target) == ("queued", None)


def test_load_is_remembered_by_slot_and_shortfall_by_boot(cell: Cell) -> None:
    def says(needed: int, shortfall: float, boot: int = 0) -> None:
        said = load(needed, "infer").model_copy(update={"shortfall_gpu_s": shortfall})
        cell.feed(said, Cause("/agents/agent-infer", boot, 1))

    says(2, 10.0)
    says(3, 10.0)
    says(1, 12.0)
    cell.now_s += 900.0
    says(4, 5.0, boot=1)
    lender = cell.state.lenders["infer"]
    assert lender.history == [3.0, None, None, 4.0]
    assert cell.state.totals.inference_shortfall_gpu_s == 17.0
    assert cell.state.gpus_serving == 4.0
