"""A scheduler that learns: what agents report becomes curves in the journal, and nothing is fitted
again when that is replayed."""

from typing import Any

import pytest

from scheduler.core.state import Job
from scheduler.core.stimuli import CurvesLearned
from scheduler.estimator.estimator import Estimator
from scheduler.estimator.steps import Steps
from scheduler.replay import verify
from scheduler.service import SchedulerService
from schemas.events import CommandAcknowledged, JobProgressed, WorkerStarted
from schemas.topics import JOURNAL
from tests.builders import node_born, submitted
from tests.desk import Desk, kinds


def begin(desk: Desk, **config: Any) -> SchedulerService:
    return desk.start(policy="fifo:sizes=requested", **config)


async def started(desk: Desk, service: SchedulerService, job: str, gpus: int) -> Job:
    """Submit a job of so many GPUs, and let its workers take their first step."""
    await desk.hears(desk.say(submitted(job).model_copy(update={"gpus": gpus})), wait_s=61.0)
    state = service.engine.state
    for command in [name for name, one in state.commands.items() if one.kind == "StartGang"]:
        await desk.bus.publish(desk.say(CommandAcknowledged(command=command, outcome="done")))
    known = state.jobs[job]
    for node, held in known.allocation.items():
        word = WorkerStarted(job=job, epoch=known.epoch, node=node, gpus=held, step=0)
        await desk.bus.publish(desk.say(word))
    await desk.wait(1.0)
    assert (known.state, known.size) == ("running", gpus)
    return known


async def progress(desk: Desk, job: Job, samples_per_s: float, **more: Any) -> None:
    """Let a minute pass, and report: always so fast, so that the engine is told of it once."""
    step = job.step + int((desk.clock.now_s() - job.step_at_s) * samples_per_s / 10.0)
    word = {"job": job.id, "epoch": job.epoch, "samples_per_s": samples_per_s, **more}
    await desk.wait(59.0)
    said = JobProgressed(step=step, checkpoint_step=0, checkpoint_cost_s=0.0, **word)
    await desk.hears(desk.say(said))


async def taught(desk: Desk, service: SchedulerService) -> tuple[Job, Job]:
    """Let two jobs of one kind run at two sizes."""
    await desk.bus.publish(desk.say(node_born("n0", gpus=8)))
    one = await started(desk, service, "one", 2)
    other = await started(desk, service, "other", 4)
    for _ in range(5):
        await progress(desk, one, 30.0)
        await progress(desk, other, 50.0)
    return one, other


def points(job: Job) -> dict[int, float]:
    return {} if job.curve is None else {int(size): work for size, work in job.curve["points"]}


async def test_what_was_learned_is_in_the_journal_and_replays_without_a_fit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = begin(desk)
    one, other = await taught(desk, service)
    for job in (one, other):
        assert points(job)[2] == pytest.approx(3.0)
        assert points(job)[4] == pytest.approx(5.0)
        assert points(job)[8] > 5.0
    seen = kinds(desk)
    assert seen.count("CurvesLearned") < seen.count("TimePassed")
    assert seen.count("JobProgressed") < 6, "the engine needs few of those that teach"
    await desk.replayed(service)

    def never(_: Steps) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(Steps, "fit", never)
    result = verify(await desk.records(JOURNAL.name))
    assert result.first_difference is None


async def test_a_later_scheduler_goes_on_from_the_state(desk: Desk) -> None:
    one, _ = await taught(desk, begin(desk))
    before = points(one)
    await desk.crash()
    service = begin(desk)
    await desk.wait(120.0)
    again = service.engine.state.jobs["one"]
    assert points(again) == before
    kin = await started(desk, service, "kin", 1)
    assert points(kin)[4] == pytest.approx(5.0, rel=1e-5)
    await desk.replayed(service)


async def test_who_shall_not_learn_does_not(desk: Desk) -> None:
    one, _ = await taught(desk, begin(desk, learn=False))
    assert one.curve is None


@pytest.mark.parametrize("part", ["hear", "learn", "__init__"])
async def test_an_estimator_that_fails_is_counted_and_the_cell_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of the estimator")

    monkeypatch.setattr(Estimator, part, broken)
    service = begin(desk)
    one, other = await taught(desk, service)
    assert (one.state, other.state, one.curve) == ("running", "running", None)
    assert service.learning.failures >= 1
    assert caplog.text.count("ZeroDivisionError: of the estimator") == 1
    await desk.replayed(service)


async def test_curves_of_jobs_that_are_gone_change_nothing(desk: Desk) -> None:
    service = begin(desk)
    one, _ = await taught(desk, service)
    curve = dict(one.curve or {})
    service.learning._estimator._ready["nobody"] = curve  # type: ignore[union-attr, assignment]
    await progress(desk, one, 30.0)
    last = [data for s, _ in desk.seen if isinstance(data := s.data, CurvesLearned)][-1]
    assert list(last.curves) == ["nobody"]
    assert "nobody" not in service.engine.state.jobs
