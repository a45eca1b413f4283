"""Nodes, leases, strays and loans through the engine."""

import pytest

from scheduler.core.settings import Settings
from scheduler.core.stimuli import Cause, NodeHeard, NodeSilent
from scheduler.core.transitions import LoanState, NodeState
from schemas.commands import LendNode, Rebirth, ReturnNode, StartGang, StopGang
from schemas.events import CommandAcknowledged, GangHeld, NodeDied, WorkerFailed
from tests.builders import Cell, load, node_born, target, two_jobs

#: From the last word of a node until its workers have surely ended.
LEASE_S = Settings().lease_s + Settings().lease_margin_s


INFER = node_born("i0", pool="infer", kind="inference")


@pytest.fixture
def cell() -> Cell:
    return two_jobs(INFER)


def lent(cell: Cell) -> None:
    cell.plan(lend=["i0"])
    cell.acks(kind="LendNode")
    assert cell.state.nodes["i0"].loan_state is LoanState.LENT


# --- leases ------------------------------------------------------------------------------------


def test_a_silent_node_keeps_its_work_until_its_lease_ends(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    cell.feed(NodeSilent("n0", cell.now_s - 180.0))
    node = cell.state.nodes["n0"]
    assert (node.state, job.state) == (NodeState.UNKNOWN, "running")
    cell.plan({"j1": target(n0=1)})
    assert cell.job("j1").state == "queued", "nothing new is placed there"
    cell.plan({"j0": target(n1=1)})
    assert job.state == "running", "and nothing is taken from it"
    cell.feed(NodeHeard("n0"))
    assert (node.state, node.lease_end_s) == (NodeState.ALIVE, None)
    assert job.state == "running"


def test_when_the_lease_ends_the_job_goes_on_from_its_checkpoint(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    cell.save("j0", 40)
    cell.feed(NodeSilent("n0", cell.now_s))
    cell.wait(LEASE_S - 60.0)
    assert job.state == "running", "its workers may be running still"
    cell.wait(60.0)
    assert cell.state.nodes["n0"].state is NodeState.DEAD
    assert (job.state, job.step, job.failures, cell.state.gpus_held) == ("queued", 40, 1, 0)
    cell.plan({"j0": target(n1=2)})
    (start,) = cell.sent(StartGang)
    assert start.step == 40


def test_a_given_up_node_that_speaks_is_asked_and_its_gangs_are_strays(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    old = job.epoch
    cell.feed(NodeSilent("n0", cell.now_s))
    cell.wait(LEASE_S)
    cell.run("j0", n1=2)
    cell.feed(NodeHeard("n0"))
    assert cell.sent(Rebirth)
    cell.feed(NodeHeard("n0"))
    assert not cell.sent(Rebirth), "once is enough"
    cell.feed(node_born("n0", held=[GangHeld(job="j0", epoch=old, gpus=[0, 1], step=9)]))
    (stop,) = cell.sent(StopGang)
    assert (stop.epoch, job.state) == (old, "running"), "the new gang is left alone"
    assert cell.state.nodes["n0"].holder[:2] == ["j0", "j0"]
    cell.plan({"j1": target(n0=3)})
    assert cell.job("j1").state == "queued", "a stray's GPUs are not free"
    cell.leave("j0", "n0", [0, 1], old, "superseded", 9)
    assert (job.state, cell.state.nodes["n0"].holder) == ("running", [None] * 4)


@pytest.mark.parametrize("how", ["restart", "death"])
def test_the_end_of_a_stray_ends_no_other_gang(cell: Cell, how: str) -> None:
    stray = GangHeld(job="j1", epoch=0, gpus=[3], step=0)
    cell.run("j1", n1=2)
    cell.feed(node_born("n0", held=[stray]))
    assert cell.state.totals.strays == 1
    cell.feed(node_born("n0", held=[stray]))
    assert (cell.state.totals.strays, cell.sent(StopGang)) == (1, []), "told once"
    if how == "death":
        cell.feed(NodeDied(node="n0"))
    else:
        cell.reborn(node_born("n0"))
    assert cell.job("j1").state == "running"
    assert cell.state.gpus_held == 2


def test_strays_of_unknown_jobs(cell: Cell) -> None:
    held = [GangHeld(job="old", epoch=3, gpus=[0], step=0)]
    cell.feed(node_born("n9", held=held))
    (stop,) = cell.sent(StopGang)
    assert (stop.job, stop.epoch) == ("old", 3)
    cell.feed(WorkerFailed(job="old", epoch=3, node="n9", gpus=[0], error="e", step=0))
    assert cell.state.gpus_held == 0


def test_no_agent_makes_epochs_so_high_that_no_order_can_name_the_next(cell: Cell) -> None:
    held = [GangHeld(job="j0", epoch=2**53, gpus=[0], step=0)]
    cell.feed(node_born("n1", held=held))
    cell.plan({"j0": target(n0=2)})
    (order,) = cell.sent(StartGang)
    assert order.epoch < 2**53
    cell.wait(2 * cell.settings.resend_s)  # to be sent again it is read again
    assert cell.job().state == "starting"


def test_a_restart_that_lost_its_gangs(cell: Cell) -> None:
    job = cell.run("j0", n0=2, n1=2)
    cell.reborn(node_born("n0"))
    assert (job.state, job.leaving, list(job.allocation)) == ("stopping", {}, ["n1"])
    cell.feed(node_born("n1"))
    assert (job.state, job.failures) == ("queued", 1)
    cell.feed(node_born("n0"), Cause("/agents/agent-train", 0, 0))
    assert cell.last.facts == (), "a birth of an earlier boot is stale"


def test_a_death_of_an_earlier_boot_is_old_news(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    held = [GangHeld(job="j0", epoch=job.epoch, gpus=[0, 1], step=0)]
    before_s, cell.now_s = cell.now_s, cell.now_s + 3600.0
    cell.feed(node_born("n0", held=held), Cause("/agents/agent-train", 3, 0, cell.now_s))
    cell.feed(NodeDied(node="n0"), Cause("/agents/agent-train", 1, 99, before_s))
    assert (cell.last.facts, job.state) == ((), "running")
    cell.feed(NodeDied(node="n0"), Cause("/agents/agent-train", 3, 1, cell.now_s))
    assert (cell.state.nodes["n0"].state, job.state) == ("dead", "queued")


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
    cell.feed(INFER.model_copy(update={"loan": "x"}), Cause(agent, 6, 0, 0.0))
    assert cell.sent(ReturnNode), "the later boot was heard, though it takes it for 1970"


def test_a_restart_before_the_start_was_heard(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2)})
    cell.reborn(node_born("n0"))
    assert cell.job().state == "starting", "the order is still on its way"
    cell.acks()
    cell.feed(node_born("n0"))
    assert cell.job().state == "queued", "it was taken on, and is not there"


def test_a_rebirth_during_a_change_of_size(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    held = [GangHeld(job="j0", epoch=job.epoch, gpus=[0, 1], step=0)]
    cell.plan({"j0": target(n0=1, n1=1)})
    cell.told(node_born("n0", held=held), node_born("n1"))
    assert (job.state, cell.state.totals.strays) == ("scaling", 0)


def test_a_dead_node_voids_the_orders_on_their_way_to_it(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2)})
    epoch = cell.job().epoch
    cell.feed(NodeDied(node="n0", reason="off"))
    (stop,) = cell.sent(StopGang)
    assert stop.epoch == epoch, "fences the start if the node is back before it expires"
    assert not any(c.kind == "StartGang" for c in cell.state.commands.values())
    assert cell.job().state == "queued"
    assert cell.feed(NodeDied(node="n0")).facts == ()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_job_begins_nowhere_while_an_order_to_begin_it_may_be_obeyed(
    cell: Cell, stopped: bool
) -> None:
    cell.plan({"j0": target(n0=2)})
    cell.feed(NodeDied(node="n0", reason="off"))
    cell.plan({"j0": target(n1=2)})
    assert (cell.job().state, cell.job().refused) == ("queued", True), "n0 may be back with it"
    if stopped:
        cell.acks(kind="StopGang")
    else:
        cell.wait(cell.settings.start_ttl_s)
    cell.plan({"j0": target(n1=2)})
    assert cell.job().state == "starting"


def test_no_other_agent_says_that_an_order_to_begin_a_job_is_void(cell: Cell) -> None:
    cell.plan({"j0": target(n0=2)})
    cell.feed(NodeDied(node="n0", reason="off"))
    held = [GangHeld(job="j0", epoch=cell.job().epoch, gpus=[0], step=0)]
    cell.feed(node_born("x0", agent="other", pool="edge", kind="edge", held=held))
    (stop,) = [c for c in cell.state.commands.values() if c.agent == "other"]
    cell.feed(CommandAcknowledged(command=stop.id, outcome="done"))
    cell.plan({"j0": target(n1=2)})
    assert (cell.job().state, cell.job().refused) == ("queued", True), "n0 may be back with it"


def test_a_node_with_another_inventory(cell: Cell) -> None:
    cell.run("j0", n0=2)
    cell.reborn(node_born("n0", gpus=2))
    assert (cell.job().state, cell.state.nodes["n0"].gpu_count) == ("queued", 2)


def test_a_node_is_what_its_agent_says_now_and_its_gang_goes_on(cell: Cell) -> None:
    # An agent of an earlier release said what it took for granted, and was never given up since.
    job = cell.run("j0", n0=2)
    assert cell.seen().pools.gpu_memory_mib.min() == 80_000.0
    held = [GangHeld(job="j0", epoch=job.epoch, gpus=[0, 1], step=0)]
    asked_of_driver = {"gpu_type": "L4", "gpu_memory_mib": 23_034}
    cell.reborn(node_born("n0", held=held).model_copy(update=asked_of_driver))
    node = cell.state.nodes["n0"]
    assert (node.gpu_type, node.gpu_memory_mib, job.state) == ("L4", 23_034, "running")
    assert cell.seen().pools.gpu_memory_mib.min() == 23_034.0


def test_losing_gpus_that_were_being_left_ends_no_gang(cell: Cell) -> None:
    job = cell.run("j0", n0=2, n1=2)
    cell.plan({"j0": target(n0=2)})
    cell.acks()
    cell.start_workers()
    assert (job.state, job.leaving) == ("running", {"n1": [0, 1]})
    cell.feed(NodeDied(node="n1"))
    assert (job.state, job.leaving) == ("running", {})


def test_what_a_gang_has_left_of_a_node_ends_none_of_it_there(cell: Cell) -> None:
    """The word that the GPUs are free was lost; the agent says all again."""
    job = cell.run("j0", n0=4)
    cell.plan({"j0": target(n0=2)})
    cell.acks()
    cell.start_workers()
    assert (job.state, job.leaving) == ("running", {"n0": [2, 3]})
    cell.feed(node_born("n0", held=[GangHeld(job="j0", epoch=job.epoch, gpus=[0, 1], step=0)]))
    assert (job.state, job.allocation, job.leaving) == ("running", {"n0": [0, 1]}, {})


def test_claims_on_a_node_that_falls_silent_end(cell: Cell) -> None:
    cell.run("j0", n0=4)
    cell.plan({"j0": None, "j1": target(n0=2, n1=2)})
    cell.feed(NodeSilent("n1", cell.now_s))
    assert (cell.job("j1").target, cell.job("j1").refused) == (None, True)
    assert cell.last.reasons[0].rule == "plan.refused"
    cell.stop_workers("j0")
    cell.plan({"j1": target(n0=2)})
    assert (cell.job("j1").state, cell.job("j1").refused) == ("starting", False)


# --- loans -------------------------------------------------------------------------------------


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
    (ask,) = [c for c in cell.state.commands.values() if c.kind == "Rebirth"]
    assert ask.agent == "agent-infer"
    cell.acks()
    cell.feed(INFER.model_copy(update={"loan": "loan-old"}))
    (back,) = cell.sent(ReturnNode)
    assert back.loan == "loan-old", "a loan that nobody here knows goes back"


def test_a_loan_that_was_never_answered_is_called_back(cell: Cell) -> None:
    cell.plan(lend=["i0"])
    name = next(c.id for c in cell.state.commands.values() if c.kind == "LendNode")
    cell.wait(cell.settings.command_ttl_s + 60.0)
    assert cell.state.nodes["i0"].loan is None
    assert name not in cell.state.commands
    assert any(c.kind == "ReturnNode" for c in cell.state.commands.values())


def test_a_node_is_called_back_from_a_loan_that_was_given_up_until_its_agent_answers(
    cell: Cell,
) -> None:
    cell.plan(lend=["i0"])
    cell.wait(cell.settings.command_ttl_s + 60.0)
    assert cell.state.nodes["i0"].loan is None
    cell.feed(NodeSilent("i0", cell.now_s))
    cell.wait(cell.settings.command_ttl_s + 60.0)
    cell.feed(NodeHeard("i0"))  # it heard nothing, and has left its node to training
    (back,) = [c for c in cell.state.commands.values() if c.kind == "ReturnNode"]
    assert back.data["loan"].startswith("loan-")
    cell.acks()
    cell.wait(2 * cell.settings.command_ttl_s)
    assert cell.state.commands == {}


def test_a_loan_that_dies(cell: Cell) -> None:
    lent(cell)
    cell.run("j0", "infer", i0=2)
    cell.feed(NodeDied(node="i0"))
    assert (cell.job().state, cell.state.gpus_loaned) == ("queued", 0)
    cell.reborn(INFER.model_copy(update={"loan": "loan-0"}))
    assert cell.sent(ReturnNode)


def test_a_node_on_a_loan_that_the_log_has_lost_goes_back_when_its_gangs_have_left(
    cell: Cell,
) -> None:
    held = [GangHeld(job="old", epoch=3, gpus=[0, 1], step=0)]
    cell.reborn(INFER.model_copy(update={"loan": "loan-old", "held": held}))
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
    cell.reborn(INFER.model_copy(update={"loan": "later", "held": held}))
    assert not cell.sent(ReturnNode), "its agent would refuse"
    cell.leave("old", "i0", [0], 3, "superseded")
    cell.acks("refused", kind="ReturnNode")
    cell.feed(INFER.model_copy(update={"loan": "later"}))
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
    assert any(c.kind == "Rebirth" for c in cell.state.commands.values())
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
