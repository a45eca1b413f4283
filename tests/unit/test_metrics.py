"""Figures that jobs report of themselves: what may be said, what becomes of it, and its bounds."""

import math

import orjson
import pytest
from pydantic import ValidationError

from explain.metrics import Sample, curves_of, in_words, samples_in
from runtime.core import GangProgress
from runtime.simulated import simulated_loss
from scheduler.core import facts
from scheduler.core.canonical import recorded, state_to_json
from scheduler.core.evolve import apply
from scheduler.core.record import decision_to_dict
from scheduler.core.restore import state_from_dict
from scheduler.core.settings import Settings
from scheduler.relevance import METRICS_S, stimulus_of
from schemas.codec import Rejected, decode_event, encode, event
from schemas.events import JobProgressed
from schemas.programs import Program
from schemas.values import MAX_METRICS
from tests.builders import Cell, node_born, progressed, submitted
from tests.gangs import NOW_S, events, running


def said(step: int, epoch: int = 1, **metrics: float) -> JobProgressed:
    word = progressed(step, "j0", epoch)
    return word.model_copy(update={"metrics": metrics or None})


def at_work(*, real: bool = True) -> Cell:
    cell = Cell(settings=Settings()).told(node_born("n0"))
    job = submitted("j0", total_steps=10_000_000)
    program = Program(argv=["train"]) if real else None
    cell.feed(job.model_copy(update={"program": program}))
    cell.run("j0", n0=1)
    return cell


# --- what may be said ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loss", "val/accuracy", "top-5 acc. (%)", "lr", "7", "x" * 40])
def test_names_are_short_and_plain(name: str) -> None:
    word = JobProgressed.model_validate(progressed(1).model_dump() | {"metrics": {name: -1e300}})
    assert word.metrics == {name: -1e300}


@pytest.mark.parametrize(
    ("metrics", "field"),
    [
        ({"": 1.0}, "metrics"),
        ({"x" * 41: 1.0}, "metrics"),
        ({"<b>": 1.0}, "metrics"),
        ({"loss\n": 1.0}, "metrics"),
        ({" loss": 1.0}, "metrics"),
        ({"l\u202eoss": 1.0}, "metrics"),
        ({"loss": "0.1"}, "metrics.loss"),
        ({"loss": None}, "metrics.loss"),
        ({"loss": True}, "metrics.loss"),
        ({f"m{n}": 1.0 for n in range(9)}, "metrics"),
        ({}, "metrics"),
        ([1.0], "metrics"),
    ],
)
def test_what_is_none_is_refused_by_its_field(metrics: object, field: str) -> None:
    message = event(progressed(1), source="/agents/a", bootid=1, sequence=1, time_s=1.0)
    raw = orjson.loads(encode(message))
    raw["data"]["metrics"] = metrics
    found = decode_event(orjson.dumps(raw))
    assert isinstance(found, Rejected)
    assert found.field.startswith(f"data.{field}"), found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_are_finite(value: float) -> None:
    with pytest.raises(ValidationError, match=r"metrics\.loss"):
        JobProgressed.model_validate(progressed(1).model_dump() | {"metrics": {"loss": value}})


# --- what becomes of it --------------------------------------------------------------------------


def test_an_agent_says_what_its_gang_reported() -> None:
    (word,) = events(running().handle(GangProgress("j", 1, 7, 1.0, metrics={"loss": 0.5}), NOW_S))
    assert isinstance(word, JobProgressed)
    assert word.metrics == {"loss": 0.5}
    (word,) = events(running().handle(GangProgress("j", 1, 7, 1.0), NOW_S))
    assert isinstance(word, JobProgressed)
    assert word.metrics is None


def test_the_newest_values_stay_with_the_job() -> None:
    cell = at_work()
    job = cell.job()
    assert "metrics" not in recorded(job), "a job that reports nothing has the form that it had"
    cell.feed(said(10, job.epoch, loss=2.0, accuracy=0.5))
    assert job.metrics == {"accuracy": 0.5, "loss": 2.0}
    cell.feed(said(20, job.epoch, loss=1.0))
    cell.feed(said(30, job.epoch))
    assert job.metrics == {"accuracy": 0.5, "loss": 1.0}
    assert job.step == 30
    cell.feed(said(25, job.epoch, loss=9.0))  # late
    cell.feed(said(40, job.epoch - 1, loss=9.0))  # of an allocation long gone
    assert job.metrics == {"accuracy": 0.5, "loss": 1.0}
    again = state_from_dict(orjson.loads(state_to_json(cell.state)))
    assert again.jobs["j0"] == job


def test_a_job_has_so_many_figures_whatever_it_calls_them() -> None:
    cell = at_work()
    for turn in range(3):
        names = {f"m{turn}{n}": float(n) for n in range(6)}
        apply(cell.state, facts.JobMeasured("j0", 10, names))
        assert len(cell.job().metrics or {}) == min(MAX_METRICS, 6 * (turn + 1))
        assert names.items() <= (cell.job().metrics or {}).items(), "the newest report is whole"


def test_a_young_job_is_looked_at_often_and_an_old_one_no_more_than_is_good() -> None:
    cell = at_work()
    job, taken = cell.job(), list[float]()
    cell.feed(said(1, job.epoch, loss=9.0))
    begun_s = cell.now_s
    for step in range(2, 24 * 360):
        cell.now_s += 10.0
        word = said(step, job.epoch, loss=1.0 / step)
        if stimulus_of(cell.state, word, cell.now_s) is not None:
            taken.append(cell.now_s - begun_s)
            cell.state.now_s = cell.now_s
            apply(cell.state, facts.JobAdvanced("j0", step, 1.0, 0, 1.0))
            apply(cell.state, facts.JobMeasured("j0", step, word.metrics or {}))
    assert taken[:3] == [METRICS_S, 2 * METRICS_S, 3 * METRICS_S]
    hour = sum(at_s <= 3600.0 for at_s in taken)
    assert 100 <= hour <= 250
    assert len(taken) <= 600, "in a day"


def test_what_says_nothing_new_or_is_simulated_is_worth_no_entry() -> None:
    for real, first, second, worth in (
        (True, {"loss": 1.0}, {"loss": 0.5}, True),
        (True, {"loss": 1.0}, {"loss": 1.0}, False),
        (True, {"loss": 1.0}, {}, False),
        (False, {"loss": 1.0}, {"loss": 0.5}, False),
    ):
        cell = at_work(real=real)
        cell.feed(said(1, cell.job().epoch, **first))
        cell.now_s += 60.0
        word = said(61, cell.job().epoch, **second)
        assert (stimulus_of(cell.state, word, cell.now_s) is not None) == worth


# --- curves --------------------------------------------------------------------------------------


def test_curves_are_what_the_journal_tells() -> None:
    cell = at_work()
    epoch, found = cell.job().epoch, list[Sample]()
    for step, metrics in ((10, {"loss": 2.0}), (20, {"loss": 1.0, "accuracy": 0.5}), (30, {})):
        cell.now_s += 60.0
        cell.feed(said(step, epoch, **metrics))
        decision = orjson.loads(orjson.dumps(decision_to_dict(cell.last)))
        found += [one for job, one in samples_in(cell.now_s, decision) if job == "j0"]
    at_s = cell.now_s
    assert curves_of(found) == {
        "accuracy": [(at_s - 60.0, 20, 0.5)],
        "loss": [(at_s - 120.0, 10, 2.0), (at_s - 60.0, 20, 1.0)],
    }


def test_a_curve_has_so_many_points_and_ends_where_it_ends() -> None:
    samples = [Sample(float(n), n, {"loss": 1.0 / (n + 1)}) for n in range(5001)]
    curve = curves_of(samples)["loss"]
    assert 500 < len(curve) <= 1000
    assert curve[-1] == (5000.0, 5000, 1.0 / 5001)
    assert curves_of(samples[:1000])["loss"] == [(o.at_s, o.step, 1.0 / (o.step + 1))
                                                  for o in samples[:1000]]  # fmt: skip
    assert in_words({"loss": 0.123456, "accuracy": 0.5}) == "accuracy 0.5, loss 0.1235"


def test_a_simulated_loss_falls_and_is_the_same_again() -> None:
    curve = [simulated_loss(3, "j", n / 20) for n in range(21)]
    assert curve == sorted(curve, reverse=True)
    assert 2.0 <= curve[0] <= 2.5
    assert 0.1 <= curve[-1] < 1.0
    assert curve == [simulated_loss(3, "j", n / 20) for n in range(21)]
    assert curve != [simulated_loss(3, "k", n / 20) for n in range(21)]
