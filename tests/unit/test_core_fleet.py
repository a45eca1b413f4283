"""Nodes through the engine: silence and leases, deaths and restarts, strays."""

import pytest

from scheduler.core.settings import Settings
from scheduler.core.stimuli import Cause, NodeHeard, NodeSilent
from scheduler.core.transitions import NodeState
from schemas.commands import Rebirth, StartGang, StopGang
from schemas.events import CommandAcknowledged, GangHeld, NodeDied, WorkerFailed, WorkerStopped
from tests.builders import Cell, node_born, target, two_jobs

#: From the last word of a node until its workers have surely ended.
LEASE_S = Settings().lease_s + Settings().lease_margin_s


@pytest.fixture
def cell() -> Cell:
    return two_jobs()


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


def test_a_birth_that_was_said_before_an_order_was_void_does_not_say_that_nothing_began(
    cell: Cell,
) -> None:
    """The agent was out of contact: what it has begun since then it says later."""
    cell.plan({"j0": target(n0=2)})
    began_s, node = cell.now_s, cell.state.nodes["n0"]
    cell.wait(cell.settings.start_ttl_s)
    assert cell.job().stop_reason == "failed", "the order was never acknowledged"

    def says(bootid: int, said_s: float) -> list[str | None]:
        cell.feed(node_born("n0"), Cause("/agents/a", bootid, 0, said_s))
        return node.holder[:2]

    assert says(2, began_s + 1.0) == ["j0", "j0"], "it may be about to read the order"
    assert says(3, cell.now_s) == [None, None]


@pytest.mark.parametrize("began", [True, False])
def test_nobody_gets_gpus_on_which_the_next_agent_may_begin_what_was_void(
    cell: Cell, began: bool
) -> None:
    """One said goodbye and began again while nobody heard it; then it was given an order."""
    left_s = cell.now_s
    cell.wait(60.0)
    cell.plan({"j0": target(n0=2)})
    job, node = cell.job(), cell.state.nodes["n0"]
    cell.feed(NodeDied(node="n0", reason="off"), Cause("/agents/a", 1, 1, left_s))
    cell.feed(node_born("n0"), Cause("/agents/a", 2, 0, left_s + 5.0))
    assert (job.state, node.holder[:2], cell.state.totals.strays) == ("queued", ["j0", "j0"], 1)
    assert cell.seen().nodes.free[0] == node.gpu_count - 2
    cell.acks(kind="StopGang")
    place = {"job": "j0", "epoch": job.epoch, "node": "n0", "gpus": [0, 1]}
    if began:
        cell.feed(WorkerStopped.model_validate({**place, "reason": "superseded", "step": 0}))
    else:
        cell.wait(60.0)
        (asked,) = [one for one in cell.state.commands.values() if one.kind == "Rebirth"]
        cell.feed(node_born("n0"), Cause("/agents/a", 2, 1, cell.now_s))
        assert asked.agent == "agent-train"
    assert (node.holder[:2], cell.state.stray_nodes) == ([None, None], [])


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
