"""A node whose agent is given another pool.

Workers outlive their agent: what ran on the node may run on. Until that has surely ended, its job
starts nowhere else, and nobody else gets its GPUs.
"""

import pytest

from scheduler.core.stimuli import NodeHeard, NodeSilent
from schemas.commands import Rebirth, ReturnNode, StartGang, StopGang
from schemas.events import GangHeld, NodeBorn
from tests.builders import Cell, node_born, submitted, target

MOVED = node_born("n0", agent="agent-train", pool="fast")


def held(epoch: int, gpus: int = 4, job: str = "j0") -> GangHeld:
    return GangHeld(job=job, epoch=epoch, gpus=list(range(gpus)), step=80)


def moved(*gangs: GangHeld, node: str = "n0") -> NodeBorn:
    return MOVED.model_copy(update={"node": node, "held": list(gangs)})


def starts(cell: Cell, **placement: int) -> bool:
    """Whether the job starts if the policy wants it to, once a failure's wait is over."""
    cell.wait(61.0, 61.0)
    cell.plan({"j0": target("other", **(placement or {"n9": 4}))})
    return bool(cell.sent(StartGang))


@pytest.fixture
def cell() -> Cell:
    """Where the job could go is another pool."""
    return Cell().told(node_born("n0"), node_born("n9", pool="other"), submitted("j0"))


def test_it_is_in_the_other_pool_once_its_agent_says_so() -> None:
    cell = Cell().told(node_born("n0"), node_born("n1"))
    cell.reborn(MOVED)
    assert (cell.state.nodes["n0"].state, cell.state.nodes["n0"].pool) == ("alive", "fast")
    assert cell.state.pools["train"].nodes == ["n1"]
    assert cell.state.pools["fast"].nodes == ["n0"]
    cell.feed(submitted("j0"))
    assert list(cell.run("j0", "fast", n0=2).allocation) == ["n0"]


def test_a_gang_that_ran_on_there_is_told_to_stop(cell: Cell) -> None:
    epoch = cell.run("j0", n0=4).epoch
    cell.save("j0", 50)
    cell.reborn(moved(held(epoch)))
    assert [(stop.job, stop.epoch) for stop in cell.sent(StopGang)] == [("j0", epoch)]
    cell.feed(NodeHeard("n0"))
    assert not starts(cell)
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "superseded", 80)
    assert starts(cell)
    assert list(cell.job().allocation) == ["n9"]


def test_no_policy_plans_for_who_waits_for_its_gang_to_end(cell: Cell) -> None:
    """Others would wait, or leave, for GPUs that it does not take."""
    epoch = cell.run("j0", n0=4).epoch
    cell.feed(submitted("j1"))
    cell.reborn(moved(held(epoch)))
    assert cell.seen().jobs.ids == ("j1",)
    cell.plan()
    assert (cell.job().why or {})["rule"] == "gang.left_behind"
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "superseded", 80)
    assert cell.seen().jobs.ids == ("j0", "j1")


def test_its_gpus_are_nobodys_while_it_runs_on(cell: Cell) -> None:
    epoch = cell.run("j0", n0=4).epoch
    cell.reborn(moved(held(epoch, 2)))
    cell.feed(submitted("j1"))
    cell.plan({"j1": target("fast", n0=3)})
    assert cell.job("j1").target is None
    cell.plan({"j1": target("fast", n0=2)})
    assert cell.job("j1").allocation == {"n0": [2, 3]}


def test_who_is_cut_off_just_then_has_until_its_lease_is_over(cell: Cell) -> None:
    epoch = cell.run("j0", n0=4).epoch
    cell.reborn(moved(held(epoch)))
    cell.feed(NodeSilent("n0", cell.now_s))
    end_s = cell.state.nodes["n0"].lease_end_s
    assert end_s == cell.now_s + cell.settings.lease_s + cell.settings.lease_margin_s
    while cell.now_s < end_s - 70.0:
        assert not starts(cell)
    cell.wait(end_s - cell.now_s)
    assert cell.state.nodes["n0"].state == "dead"
    assert starts(cell)


def test_a_gang_over_several_nodes_is_gone_when_each_part_is(cell: Cell) -> None:
    cell.feed(node_born("n1"))
    epoch = cell.run("j0", n0=4, n1=4).epoch
    cell.reborn(moved(held(epoch)))
    assert {stop.epoch for stop in cell.sent(StopGang)} == {epoch}
    cell.told(moved(held(epoch), node="n1"))
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "superseded")
    assert not starts(cell)
    cell.leave("j0", "n1", [0, 1, 2, 3], epoch, "superseded")
    assert starts(cell)


def test_a_part_on_a_node_that_stays_where_it_is_is_waited_for_too(cell: Cell) -> None:
    cell.feed(node_born("n1"))
    epoch = cell.run("j0", n0=4, n1=4).epoch
    cell.reborn(moved(held(epoch)), node_born("n1", held=[held(epoch)]))
    cell.stop_workers("j0", "superseded")  # that on n1
    assert cell.job().state == "queued"
    assert not starts(cell)
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "superseded")
    assert starts(cell)


def test_an_order_that_its_agent_may_be_about_to_read_counts_as_read(cell: Cell) -> None:
    """It reads the order to start, and is cut off before it reads the one to stop."""
    cell.plan({"j0": target(n0=4)})
    epoch = cell.job().epoch
    cell.reborn(moved())
    cell.feed(NodeSilent("n0", cell.now_s))
    cell.wait(cell.settings.command_ttl_s + 100.0)  # no order is obeyed any more
    assert not starts(cell)
    cell.feed(NodeHeard("n0"))
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "superseded")
    assert starts(cell)


def test_who_begins_twice_may_still_be_about_to_read_an_order(cell: Cell) -> None:
    cell.plan({"j0": target(n0=4)})
    cell.reborn(moved())
    cell.reborn(moved())
    assert cell.state.nodes["n0"].holder == ["j0"] * 4
    cell.feed(NodeSilent("n0", cell.now_s))
    cell.wait(cell.settings.command_ttl_s + 100.0)
    assert not starts(cell)


def test_an_order_to_several_nodes_counts_as_read_on_each(cell: Cell) -> None:
    cell.feed(node_born("n1"))
    cell.plan({"j0": target(n0=4, n1=4)})
    epoch = cell.job().epoch
    cell.reborn(moved(), moved(node="n1"))
    cell.acks(kind="StopGang")
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "superseded")
    assert not starts(cell)
    cell.leave("j0", "n1", [0, 1, 2, 3], epoch, "superseded")
    assert starts(cell)


def test_an_order_that_it_never_read_is_waited_for_until_it_has_been_asked(cell: Cell) -> None:
    cell.plan({"j0": target(n0=4)})
    cell.reborn(moved())
    cell.acks(kind="StopGang")
    cell.wait(60.0)
    assert cell.sent(Rebirth)
    cell.feed(moved())
    assert starts(cell)


def test_who_is_on_the_way_to_another_place_waits_too(cell: Cell) -> None:
    epoch = cell.run("j0", n0=4).epoch
    cell.save("j0", 50)
    cell.plan({"j0": target("other", n9=4)})
    assert (cell.job().state, cell.job().stop_reason) == ("checkpointing", "migrated")
    cell.reborn(moved(held(epoch)))
    assert not cell.sent(StartGang)
    cell.wait(120.0)
    assert (cell.job().state, cell.job().target) == ("migrating", {"n9": [0, 1, 2, 3]})
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "migrated", 80)
    assert cell.sent(StartGang), "it has kept its claim"


def test_who_is_on_the_way_keeps_no_gpus_idle_for_a_whole_lease(cell: Cell) -> None:
    epoch = cell.run("j0", n0=4).epoch
    cell.save("j0", 50)
    cell.plan({"j0": target("other", n9=4)})
    cell.reborn(moved(held(epoch)))
    cell.told(submitted("j1"), NodeSilent("n0", cell.now_s))
    cell.wait(cell.settings.claim_ttl_s)
    assert (cell.job().state, cell.job().target) == ("queued", None)
    cell.run("j1", "other", n9=4)


def test_a_node_on_loan_goes_back_when_what_ran_on_has_left() -> None:
    owned = node_born("n0", pool="serve", kind="inference")
    cell = Cell().told(owned, node_born("n9", pool="other"), submitted("j0"))
    cell.plan(lend=["n0"])
    cell.acks(kind="LendNode")
    loan = cell.state.nodes["n0"].loan
    epoch = cell.run("j0", "serve", n0=4).epoch
    there = {"pool": "serve-2", "held": [held(epoch)], "loan": loan}
    cell.reborn(owned.model_copy(update=there))
    assert cell.state.nodes["n0"].loan_state == "reclaiming"
    assert not starts(cell)
    cell.leave("j0", "n0", [0, 1, 2, 3], epoch, "superseded")
    assert [order.loan for order in cell.sent(ReturnNode)] == [loan]
    assert starts(cell)


def test_who_was_never_told_to_start_a_gang_keeps_no_job_from_starting(cell: Cell) -> None:
    cell.reborn(moved(held(7)))
    assert starts(cell)
