"""Moments by the clock, in a cell whose time is ahead of it."""

import pytest

from bus.clock import SystemClock
from scheduler.celltime import CellTime
from scheduler.core.cell_moments import cell_moment, in_cell_time
from schemas.requests import CordonNode, DrainNode
from tests.builders import request_of


class Set(SystemClock):
    """Shows what it is set to."""

    at_s = 1e9

    def now_s(self) -> float:
        return self.at_s


@pytest.mark.parametrize("ahead_s", [0.0, 50.0, 86_400.0])
@pytest.mark.parametrize("after_s", [1.0, 600.0, 1e5, 5e6])
def test_a_moment_is_what_the_cells_time_will_be_then(ahead_s: float, after_s: float) -> None:
    clock = Set()
    cell = CellTime(clock)
    cell.begin(1e9 + ahead_s)
    expected_s = cell_moment(1e9 + after_s, cell.now_s(0.0), cell.ahead_s)
    clock.at_s += after_s
    assert cell.now_s(0.0) == pytest.approx(expected_s, abs=1e-3)


def test_what_is_past_stays_past() -> None:
    assert cell_moment(990.0, 1050.0, 50.0) == 1040.0


def test_only_moments_of_arguments_are_moved() -> None:
    drain = request_of(1000.0, DrainNode(node="n0", by_s=1600.0), "a").request
    moved = in_cell_time(drain, 1100.0, 100.0)
    assert (moved.asked_s, moved.expires_s) == (drain.asked_s, drain.expires_s)
    assert moved.args == DrainNode(node="n0", by_s=1640.0)
    assert in_cell_time(drain, 1000.0, 0.0) is drain
    cordon = request_of(1000.0, CordonNode(node="n0"), "b").request
    assert in_cell_time(cordon, 1100.0, 100.0) is cordon
