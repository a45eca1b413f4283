"""When a job ends: one answer for `why` and `jobs`."""

from dataclasses import replace
from typing import Any

import pytest

from explain.progress import ending, outlook, share_done, speeds_of
from scheduler.core.state import Job
from scheduler.core.transitions import JobState
from tests.builders import node_born
from tests.console.stories import START_S, Teller, job

NOW_S = START_S + 100.0


def known(**fields: Any) -> Job:
    t = Teller()
    t.feed(job("one", deadline_s=START_S + 1000.0))
    # 1000 steps of 10 samples; the largest of its sizes has a rate of 40 samples/s.
    return replace(t.state.jobs["one"], start_cost_s=30.0, **fields)


def running(**fields: Any) -> Job:
    told = {"state": JobState.RUNNING, "samples_per_s": 20.0, "step_at_s": START_S}
    return known(**{**told, **fields})


def said(job: Job) -> str:
    return "".join(piece.text for piece in ending(job, NOW_S, START_S))


def test_what_ran_since_the_report_is_not_added_again() -> None:
    found = outlook(running(), NOW_S)
    assert found.left_s == pytest.approx(400.0)
    assert found.ends_s == pytest.approx(START_S + 500.0)
    assert found.slack_s == pytest.approx(500.0)
    text = said(running())
    assert "6 min 40 s left at its speed, ends about d0 06:08" in text
    assert "in time with 8 min 20 s to spare" in text
    late = running(deadline_s=START_S + 490.0)
    assert "10 s too late" in said(late)


def test_a_report_long_ago_leaves_nothing_and_a_gang_that_stops_stands_still() -> None:
    assert outlook(running(), START_S + 900.0).left_s == pytest.approx(0.0)
    stopping = running(state=JobState.CHECKPOINTING)
    assert outlook(stopping, NOW_S).left_s == pytest.approx(500.0)


def test_a_job_that_waits_must_still_start_and_run() -> None:
    waiting = known()
    found = outlook(waiting, NOW_S)
    assert found.left_s is None
    assert found.needs_s == pytest.approx(280.0)
    assert found.slack_s == pytest.approx(620.0)
    text = said(waiting)
    assert "can still be met: needs at least 4 min 40 s, has 15 min" in text
    near = known(deadline_s=NOW_S + 270.0)
    text = said(near)
    assert "cannot be met any more: needs at least 4 min 40 s, has 4 min 30 s" in text


def test_a_job_that_goes_on_beyond_its_declared_steps_is_not_about_to_end() -> None:
    """It said `0 s left at its speed, ends about` now, for as long as it went on."""
    beyond = said(running(step=1000))
    assert beyond.startswith(" · all the steps that it declared are done, and it has not ended")
    assert "left" not in beyond and beyond.endswith(" · deadline d0 06:16")  # noqa: PT018
    assert "all the steps" not in said(running(step=999))
    assert "all the steps" not in said(running(step=1000, total_steps=None))
    # Nor is it in documents, in the columns of `jobs`, nor in the text that a gateway gives.
    found = outlook(running(step=1000), NOW_S)
    assert (found.left_s, found.needs_s, found.ends_s) == (None, None, None)
    assert found.slack_s == pytest.approx(900.0)


def test_only_sizes_that_it_allows_count() -> None:
    assert outlook(known(gpus_max=2), NOW_S).needs_s == pytest.approx(530.0)
    assert outlook(known(rates=[]), NOW_S).needs_s is None


def test_rates_that_were_made_up_promise_nothing() -> None:
    made_up = [(1.0, 1.0), (2.0, 2.0), (4.0, 4.0)]
    assert outlook(known(rates=made_up, program={"argv": ["x"]}), NOW_S).needs_s is None
    assert outlook(known(rates=made_up), NOW_S).needs_s is not None


def test_what_it_did_since_its_report_counts_as_done_until_it_says_so() -> None:
    assert share_done(running(step=100), START_S + 50.0) == pytest.approx(0.2)
    assert share_done(running(step=100), START_S + 5000.0) == pytest.approx(0.99)
    assert share_done(running(step=1000), START_S) == pytest.approx(1.0)
    stopping = running(step=100, state=JobState.STOPPING)
    assert share_done(stopping, START_S + 50.0) == pytest.approx(0.1)


def test_a_finished_job_has_its_end() -> None:
    found = outlook(known(state=JobState.COMPLETED, end_s=START_S + 1100.0), NOW_S)
    assert (found.left_s, found.slack_s) == (None, -100.0)


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
def test_a_job_that_ended_without_being_done_was_neither_in_time_nor_late(state: JobState) -> None:
    assert outlook(known(state=state, end_s=START_S + 100.0), NOW_S).slack_s is None


def test_speeds_are_those_on_the_gpus_that_a_job_runs_on() -> None:
    t = Teller()
    t.feed(job("one", deadline_s=None))
    t.feed(node_born("e0", pool="edge", kind="edge").model_copy(update={"speed_factor": 0.4}))
    affinity = {"cloud": 2.0}
    curve = {"points": [[1.0, 5.0]], "per_step": 1.0, "measured": [1], "affinity": affinity}
    waiting = replace(t.state.jobs["one"], curve=curve)
    running = replace(waiting, pool="edge", allocation={"e0": [0]})

    found = speeds_of(waiting, t.state.nodes, NOW_S)
    assert found is not None
    assert (found.pool, found.affinity) == (None, {"cloud": 2.0})
    assert found.points[0].steps_per_s == pytest.approx(5.0)
    assert found.points[0].samples_per_s == pytest.approx(50.0)

    found = speeds_of(running, t.state.nodes, NOW_S)
    assert found is not None
    assert (found.pool, found.affinity) == ("edge", {"cloud": 5.0})
    assert found.points[0].samples_per_s == pytest.approx(20.0), "as its node declares"

    affinity["edge"] = 0.5
    found = speeds_of(running, t.state.nodes, NOW_S)
    assert found is not None
    assert found.affinity == {"cloud": 4.0}
    assert found.points[0].samples_per_s == pytest.approx(25.0), "as it was measured there"
