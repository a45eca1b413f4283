"""A node that its agent, begun anew, does not name: the agent's state was lost, or moved away.

An agent that remembers such a node reports its death. Of one that it does not remember it says
nothing, and is in contact; so whoever asks what is on the node learns that it is gone.
"""

from typing import Literal

import pytest

from scheduler.core.stimuli import Cause
from schemas.commands import StartGang, StopGang
from schemas.events import CommandAcknowledged, GangHeld, NodeBorn
from tests.builders import Cell, node_born, submitted, target


@pytest.fixture
def cell() -> Cell:
    """Of its agent's two nodes the job is on the one that is left out later."""
    return Cell().told(node_born("n0"), node_born("n1"), node_born("x0", pool="other"), submitted())


def says(cell: Cell, *words: NodeBorn | CommandAcknowledged) -> None:
    """Have the agent say something in one turn."""
    for one in words:
        cell.feed(one, Cause("/agents/agent-train", cell.bootid, 0, cell.now_s))


def begins_anew(cell: Cell, *born: NodeBorn) -> None:
    """Have the agent begin anew with these nodes."""
    cell.bootid += 1
    says(cell, *born)


def answer(cell: Cell, outcome: Literal["done", "refused"] = "done") -> CommandAcknowledged:
    """Give the agent's answer to who asks it."""
    (asked,) = cell.state.opened("Rebirth", "agent-train")
    return CommandAcknowledged(command=asked.id, outcome=outcome, reason="test")


def answers(cell: Cell, outcome: Literal["done", "refused"] = "done") -> None:
    """Be asked, name the one node, and answer."""
    says(cell, node_born("n0"), answer(cell, outcome))


def is_asked(cell: Cell) -> None:
    """Let time pass until somebody asks the agent."""
    for _ in range(60):
        if not cell.state.is_open("Rebirth", "agent-train"):
            cell.wait(60.0)
    assert cell.state.is_open("Rebirth", "agent-train")


def test_its_job_waits_again_and_what_may_run_is_told_to_stop(cell: Cell) -> None:
    epoch = cell.run("j0", n1=4).epoch
    cell.save("j0", 50)
    begins_anew(cell, node_born("n0"))
    is_asked(cell)
    answers(cell)
    assert cell.state.nodes["n1"].state == "dead"
    assert (cell.job().state, cell.job().checkpoint_step) == ("queued", 50)
    assert [(stop.job, stop.epoch) for stop in cell.sent(StopGang)] == [("j0", epoch)]
    assert cell.state.nodes["n0"].state == "alive"


def test_a_stray_there_ends_and_its_job_starts_elsewhere(cell: Cell) -> None:
    epoch = cell.run("j0", n1=4).epoch
    held = [GangHeld(job="j0", epoch=epoch, gpus=[0, 1, 2, 3], step=80)]
    cell.reborn(node_born("n1", agent="agent-train", pool="fast", held=held))
    cell.acks(kind="StopGang")
    begins_anew(cell, node_born("n0"))
    assert cell.state.stray_nodes == ["n1"]
    is_asked(cell)
    answers(cell)
    assert cell.state.stray_nodes == []
    cell.wait(61.0)
    cell.plan({"j0": target("other", x0=4)})
    assert cell.sent(StartGang)


def test_no_second_job_is_placed_where_a_start_was_refused(cell: Cell) -> None:
    begins_anew(cell, node_born("n0"))
    cell.plan({"j0": target(n1=4)})
    cell.acks("refused", kind="StartGang")
    answers(cell)
    assert cell.state.nodes["n1"].state == "dead"


def test_who_has_named_none_since_it_began_has_its_births_on_the_way(cell: Cell) -> None:
    """The log may have lost them; they come with the answer."""
    cell.run("j0", n1=4)
    is_asked(cell)
    cell.bootid += 1
    says(cell, answer(cell))
    assert (cell.state.nodes["n1"].state, cell.job().state) == ("alive", "running")


def test_an_agent_of_an_earlier_release_answers_before_it_names_its_nodes(cell: Cell) -> None:
    """The log has lost the birth of one of them, and where it is lost it comes with the answer."""
    cell.run("j0", n1=4)
    begins_anew(cell, node_born("n0"))
    is_asked(cell)
    held = [GangHeld(job="j0", epoch=cell.job().epoch, gpus=[0, 1, 2, 3], step=80)]
    says(cell, answer(cell), node_born("n0"), node_born("n1", held=held))
    assert (cell.state.nodes["n1"].state, cell.job().state) == ("alive", "running")
    assert cell.sent(StopGang) == []


def test_who_did_not_begin_anew_has_left_none_out(cell: Cell) -> None:
    cell.run("j0", n1=4)
    is_asked(cell)
    answers(cell)
    assert (cell.state.nodes["n1"].state, cell.job().state) == ("alive", "running")


def test_who_refuses_to_answer_has_said_nothing_of_its_nodes(cell: Cell) -> None:
    cell.run("j0", n1=4)
    begins_anew(cell, node_born("n0"))
    is_asked(cell)
    answers(cell, "refused")
    assert (cell.state.nodes["n1"].state, cell.job().state) == ("alive", "running")


def test_a_node_of_another_agent_is_none_of_its(cell: Cell) -> None:
    cell.run("j0", n1=4)
    is_asked(cell)
    (asked,) = cell.state.opened("Rebirth", "agent-train")
    begins_anew(cell, node_born("n1", agent="agent-new"), node_born("n0"))
    cell.bootid += 1
    says(cell, node_born("n0"), CommandAcknowledged(command=asked.id, outcome="done"))
    assert cell.state.nodes["n1"].state == "alive"
