"""A node whose agent is given another pool."""

from scheduler.core.stimuli import NodeHeard
from schemas.commands import StopGang
from schemas.events import GangHeld
from tests.builders import Cell, node_born, submitted, target

MOVED = node_born("n0", agent="agent-train", pool="fast")


def test_it_is_in_the_other_pool_once_its_agent_says_so() -> None:
    cell = Cell().told(node_born("n0"), node_born("n1"))
    cell.reborn(MOVED)
    assert (cell.state.nodes["n0"].state, cell.state.nodes["n0"].pool) == ("alive", "fast")
    assert cell.state.pools["train"].nodes == ["n1"]
    assert cell.state.pools["fast"].nodes == ["n0"]
    cell.feed(submitted("j0"))
    assert list(cell.run("j0", "fast", n0=2).allocation) == ["n0"]


def test_a_gang_that_ran_on_there_is_told_to_stop() -> None:
    cell = Cell().told(node_born("n0"), node_born("n1", pool="other"), submitted("j0"))
    epoch = cell.run("j0", n0=4).epoch
    cell.save("j0", 50)
    held = GangHeld(job="j0", epoch=epoch, gpus=[0, 1, 2, 3], step=80)
    cell.reborn(MOVED.model_copy(update={"held": [held]}))  # workers outlive their agent
    assert cell.job().state == "queued"
    assert [(stop.job, stop.epoch) for stop in cell.sent(StopGang)] == [("j0", epoch)]
    cell.feed(NodeHeard("n0"))
    cell.plan({"j0": target("other", n1=4)})
    assert list(cell.job().allocation) == ["n1"]
