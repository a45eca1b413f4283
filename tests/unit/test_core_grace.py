"""How long gangs that are told to leave are given: long enough to save, where no owner waits."""

import pytest

from scheduler.core.settings import Settings
from schemas.commands import StopGang
from schemas.events import JobCancelled
from tests.builders import Cell, node_born, submitted

USUAL_S = Settings().grace_s
#: What orders live for, less the time after which they are sent again.
MOST_S = Settings().command_ttl_s - Settings().resend_s


def running(save_s: float, pool: str, node: str) -> Cell:
    """A job whose saves take so long runs on a node, which is lent if it is not training's."""
    job = submitted().model_copy(update={"checkpoint_cost_s": save_s})
    serving = node_born("i0", pool="infer", kind="inference")
    cell = Cell().told(node_born("n0"), serving, job)
    if pool == "infer":
        cell.plan(lend=["i0"])
        cell.acks(kind="LendNode")
    cell.run("j0", pool, **{node: 2})
    return cell


def given_s(cell: Cell) -> float:
    """Give what it is given that was told to leave in the last decision."""
    (stop,) = cell.sent(StopGang)
    assert stop.checkpoint
    return float(stop.grace_s)


@pytest.mark.parametrize(
    ("save_s", "expected_s"), [(5.0, USUAL_S), (200.0, 300.0), (10_000.0, MOST_S)]
)
def test_a_save_that_takes_long_is_not_cut_off(save_s: float, expected_s: float) -> None:
    cell = running(save_s, "train", "n0")
    cell.plan({"j0": None})
    assert given_s(cell) == expected_s
    asked_s = cell.state.jobs["j0"].stop_since_s + expected_s + Settings().resend_s
    cell.wait(asked_s - cell.now_s - 60.0)
    assert not cell.state.is_open("Rebirth", "agent-train"), "it is saving"


@pytest.mark.parametrize(
    ("due_in_s", "expected_s"), [(0.0, USUAL_S), (310.0, 190.0), (3000.0, 300.0)]
)
def test_an_owner_waits_no_longer_for_its_node(due_in_s: float, expected_s: float) -> None:
    cell = running(200.0, "infer", "i0")
    # The policy is asked a minute later.
    due_s = cell.now_s + due_in_s
    cell.plan({"j0": None}, reclaim={"i0": due_s})
    assert given_s(cell) == expected_s
    if expected_s > USUAL_S:  # a gang that does not save in time is ended, and the node is back
        assert cell.now_s + expected_s + Settings().resend_s <= due_s


def test_on_an_owners_node_that_may_be_needed_at_any_time_it_is_the_usual_time() -> None:
    cell = running(200.0, "infer", "i0")
    cell.plan({"j0": None})
    assert given_s(cell) == USUAL_S


def test_who_saves_nothing_is_given_no_more() -> None:
    cell = running(200.0, "train", "n0")
    cell.feed(JobCancelled(job="j0"))
    (stop,) = cell.sent(StopGang)
    assert (stop.checkpoint, stop.grace_s) == (False, USUAL_S)
