"""Of a request that may come again it is known that it was taken, whoever else asks."""

import pytest

from scheduler.core.stimuli import Decision
from schemas.requests import CordonNode, PrioritiseJob, VerbData
from tests.builders import Cell, node_born, request_of, submitted

DAY_S = 86_400.0


def ask_ahead(cell: Cell, ahead_s: float, args: VerbData, name: str, asked_s: float) -> Decision:
    """Somebody asked for this then, by the clock, which the cell's time is ahead of."""
    said = request_of(asked_s, args, name, expires_s=asked_s + 3600.0)
    return cell.feed(said.model_copy(update={"ahead_s": ahead_s}))


@pytest.mark.parametrize("days", [0.0, 2.0, 8.0, 10.0])
def test_a_request_takes_effect_once_however_far_the_cell_is_ahead_of_the_clock(
    days: float,
) -> None:
    cell, ahead_s = Cell().told(node_born("n0"), submitted("j0")), days * DAY_S
    asked_s = cell.now_s - ahead_s
    ask_ahead(cell, ahead_s, PrioritiseJob(job="j0", priority=5), "first", asked_s)
    for number in range(300):  # ids are looked over now and then
        ask_ahead(cell, ahead_s, CordonNode(node="n9"), f"r{number}", asked_s)
    ask_ahead(cell, ahead_s, PrioritiseJob(job="j0", priority=0), "then", asked_s)
    cell.now_s += 60.0
    again = ask_ahead(cell, ahead_s, PrioritiseJob(job="j0", priority=5), "first", asked_s)
    assert again.facts == ()
    assert cell.job("j0").priority == 0


def test_in_a_cell_that_is_little_ahead_nothing_more_is_noted_of_a_request() -> None:
    cell = Cell().told(node_born("n0"))
    kinds = [
        [type(fact).__name__ for fact in ask_ahead(cell, by_s, args, name, cell.now_s - by_s).facts]
        for name, by_s, args in (
            ("near", DAY_S, CordonNode(node="n0")),
            ("far", DAY_S + 1.0, CordonNode(node="n9")),
        )
    ]
    assert kinds == [["NodeCordoned", "RequestDone"], ["RequestRefused", "RequestKeptLonger"]]
    assert cell.state.standing.taken["far"] == pytest.approx(cell.now_s + 3600.0)
