"""When the policy is asked, and what it is told that no event says."""

import pytest

from scheduler.core.settings import Settings
from scheduler.core.stimuli import Curve, CurvesLearned, TimePassed
from scheduler.policies.interface import Plan
from tests.builders import START_S, Cell, node_born, submitted, target


def curve(rate: float, left: float | None = None) -> Curve:
    return Curve(points=[[1, rate]], per_step=1.0, left=left, measured=[1], affinity={})


@pytest.mark.parametrize("cycle_s", [0.1, 0.3, 7.0, 60.0, 1e8])
def test_rounds_are_whole_multiples_each_once(cycle_s: float) -> None:
    settings = Settings(cycle_s=cycle_s)
    now_s = 123.0
    for _ in range(200):
        next_s = settings.next_round_s(now_s)
        assert now_s < next_s <= now_s + 1.000001 * cycle_s
        assert next_s == round(next_s / cycle_s) * cycle_s
        now_s = next_s


def test_in_rounds_alone_news_waits_for_the_next_round() -> None:
    cell = Cell(settings=Settings(rounds_only=True)).told(node_born(), TimePassed())
    round_s = cell.settings.next_round_s(START_S)
    assert cell.engine.wake_s == round_s
    cell.now_s += 1.0
    cell.feed(submitted())
    assert cell.engine.wake_s == round_s
    at_events = Cell()
    at_events.feed(node_born())
    at_events.feed(TimePassed())
    at_events.now_s += 1.0
    at_events.feed(submitted())
    assert at_events.engine.wake_s == START_S + at_events.settings.cycle_gap_s


def test_a_gang_that_settles_is_news_only_if_a_policy_was_asked_in_between() -> None:
    cell = Cell().told(node_born(), submitted())
    cell.run("j0", n0=2)
    assert not cell.state.dirty, "all is as the plan wanted it"
    cell.plan({"j0": target(n0=1)})
    cell.acks()
    cell.leave("j0", "n0", [1], cell.job().epoch - 1)
    cell.start_workers()
    assert not cell.state.dirty
    cell.plan({"j0": target(n0=2)})
    cell.acks()
    cell.plan({})  # it saw the job between two sizes, and had to leave it alone
    cell.start_workers()
    assert cell.state.dirty
    cell.plan({})
    cell.fail_worker()
    assert cell.state.dirty, "no plan wanted that"


def test_a_declined_job_fails_and_one_that_runs_cannot_be_declined() -> None:
    cell = Cell().told(node_born())
    for name in ("j0", "j1"):
        cell.feed(submitted(name))
    cell.run("j0", n0=1)
    cell.adopt(Plan(decline=("j0", "j1")))
    assert (cell.job("j0").state, cell.job("j1").state) == ("running", "failed")
    assert (cell.state.totals.jobs_declined, cell.state.totals.jobs_failed) == (1, 1)
    assert cell.seen().jobs.ids == ("j0",)


def test_what_was_learned_is_kept_for_jobs_that_are_there() -> None:
    cell = Cell().told(node_born(), submitted(), TimePassed())
    cell.feed(CurvesLearned({"j0": curve(3.0, left=70.0), "never-heard-of": curve(1.0)}))
    assert cell.job().curve == curve(3.0, left=70.0)
    assert cell.job().curve_at_s == cell.now_s
    assert not cell.state.dirty, "a better figure can wait for the next round"
    cell.feed(CurvesLearned({"never-heard-of": curve(1.0)}))
    assert cell.last.facts == ()
