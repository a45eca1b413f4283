"""Moments by the clock, in a cell whose time is ahead of it."""

import pytest

from bus.clock import SystemClock
from scheduler.celltime import CellTime
from scheduler.core.cell_moments import cell_moment, in_cell_time
from scheduler.core.facts import SubmissionRefused
from scheduler.core.stimuli import Requested
from schemas.requests import CordonNode, DrainNode, SubmitJob
from tests.builders import START_S, Cell, request_of, submitted


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


def test_a_jobs_deadline_is_by_the_clock_and_the_same_when_it_is_said_again() -> None:
    cell, ahead_s = Cell(now_s=START_S), 48 * 3600.0
    spec = submitted("j0", deadline_s=START_S - ahead_s + 4 * 3600.0)
    for number, (later_s, less_s) in enumerate([(0.0, 0.0), (7.0, 0.7)]):
        cell.now_s = START_S + later_s - less_s  # the cell goes slower until the clock is there
        asked = request_of(cell.now_s - (ahead_s - less_s), SubmitJob(spec=spec), f"r{number}")
        cell.feed(Requested(raw="{}", ahead_s=ahead_s - less_s, request=asked.request))
        assert "RequestDone" in [type(fact).__name__ for fact in cell.last.facts]
    # Four hours by the clock, in which the cell's time does not go on by a tenth of them.
    assert cell.job().deadline_s == pytest.approx(START_S + 0.9 * 4 * 3600.0)


@pytest.mark.parametrize(("before_s", "after_s"), [(0.0, 50.0), (50.0, 0.0), (50.0, 3000.0)])
def test_a_job_is_the_same_however_far_ahead_the_cell_is_when_it_is_said_again(
    before_s: float, after_s: float
) -> None:
    cell = Cell(now_s=START_S)
    spec, other = submitted("j0", deadline_s=START_S + 60.0), START_S + 60.5
    for number, (ahead_s, due_s) in enumerate(
        [(before_s, None), (after_s, None), (after_s, other)]
    ):
        said = spec if due_s is None else spec.model_copy(update={"deadline_s": due_s})
        asked = request_of(cell.now_s - ahead_s, SubmitJob(spec=said), f"r{number}")
        cell.feed(Requested(raw="{}", ahead_s=ahead_s, request=asked.request))
        wrong = [fact for fact in cell.last.facts if isinstance(fact, SubmissionRefused)]
        assert bool(wrong) == (due_s is not None)
        cell.now_s += 300.0
