"""A job without a total in the running system: it ends when its program does, what is thought of
its length is in the journal, and nobody promises when it will have ended."""

from typing import Any

import numpy as np
import pytest

from scheduler.core.stimuli import LengthsLearned
from scheduler.estimator.lengths import Lengths
from scheduler.policies.tide.commitments import PROMISED
from scheduler.replay import verify
from scheduler.service import SchedulerService
from schemas.commands import StartGang
from schemas.events import CommandAcknowledged, JobSubmitted, WorkerStarted, WorkerStopped
from schemas.topics import JOURNAL
from tests.builders import node_born, progressed, submitted
from tests.desk import Desk, kinds


def endless(job: str, **more: Any) -> JobSubmitted:
    """A job that says no total; it takes a step a second on a GPU."""
    return submitted(job, **more).model_copy(update={"total_steps": None})


async def answered(desk: Desk, service: SchedulerService) -> None:
    """Have every gang that was ordered started."""
    state = service.engine.state
    for name, command in list(state.commands.items()):
        if command.kind == "StartGang":
            await desk.bus.publish(desk.say(CommandAcknowledged(command=name, outcome="done")))
            job = state.jobs[command.subject]
            for node, gpus in job.allocation.items():
                began = {"job": job.id, "epoch": job.epoch, "node": node, "gpus": gpus}
                await desk.bus.publish(desk.say(WorkerStarted.model_validate({**began, "step": 0})))
    await desk.wait(1.0)


async def ends(desk: Desk, service: SchedulerService, name: str, step: int) -> None:
    """Its workers end with success, at this step."""
    job = service.engine.state.jobs[name]
    said = {"job": name, "epoch": job.epoch, "reason": "completed", "step": step}
    for node, gpus in list(job.allocation.items()):
        data = {**said, "node": node, "gpus": list(gpus)}
        await desk.bus.publish(desk.say(WorkerStopped.model_validate(data)))
    await desk.wait(1.0)


async def test_it_runs_until_its_program_ends_and_replays_without_an_estimator(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = desk.start(policy="tide")
    await desk.bus.publish(desk.say(node_born("n0", gpus=1)))
    await desk.hears(desk.say(endless("first", gpus_max=1)), wait_s=61.0)
    (start,) = await desk.commands(StartGang)
    assert start.data.spec.total_steps is None
    await answered(desk, service)
    jobs = service.engine.state.jobs
    first = jobs["first"]
    assert first.state == "running"
    await desk.hears(desk.say(endless("second", gpus_max=1)), wait_s=61.0)
    for step, pace in ((60, 10.0), (700, 20.0), (5000, 40.0)):  # the engine hears of new paces
        await desk.hears(desk.say(progressed(step, "first", first.epoch, pace)), wait_s=60.0)
    await desk.wait(60.0)
    assert first.step == 5000, "no step is too many"
    assert first.length is not None
    assert first.length_step + first.length["left"] == pytest.approx(9600.0), "of 600, two levels"
    await ends(desk, service, "first", 6000)
    assert (first.state, first.step) == ("completed", 6000)
    await desk.wait(120.0)
    assert jobs["second"].length == {
        "left": 6000.0,
        "ended": 1,
        "took": [6000.0, 6000.0],
        "running": 0,
    }
    seen = service.engine.snapshot().jobs
    assert seen.remaining_steps[seen.ids.index("second")] == 6000.0
    assert kinds(desk).count("LengthsLearned") >= 4
    await desk.replayed(service)

    def never(*_: object) -> None:
        raise AssertionError("learned again")

    monkeypatch.setattr(Lengths, "left", never)
    assert verify(await desk.records(JOURNAL.name)).first_difference is None


@pytest.mark.parametrize("policy", ["tide", "elasticflow", "edgeflow", "edf"])
async def test_a_deadline_is_not_promised_to_who_says_no_total(desk: Desk, policy: str) -> None:
    service = desk.start(policy=policy)
    await desk.bus.publish(desk.say(node_born("n0", gpus=4)))
    late_s = desk.clock.now_s() + 100_000.0
    await desk.bus.publish(desk.say(submitted("says", deadline_s=late_s, gpus_max=2)))
    await desk.hears(desk.say(endless("silent", deadline_s=late_s, gpus_max=2)), wait_s=61.0)
    await answered(desk, service)
    await desk.wait(120.0)
    state = service.engine.state
    jobs = {name: state.jobs[name] for name in ("says", "silent")}
    assert [job.state for job in jobs.values()] == ["running", "running"], "it runs all the same"
    seen = service.engine.snapshot().jobs
    due_s = dict(zip(seen.ids, seen.deadline_s.tolist(), strict=True))
    assert due_s == {"says": late_s, "silent": np.inf}
    if policy == "tide":
        assert jobs["says"].note[0] == PROMISED
        assert not jobs["silent"].note
    await ends(desk, service, "silent", 10)
    assert state.totals.deadlines_met == 1, "in time, though nobody promised"


async def test_a_scheduler_that_learns_nothing_goes_by_doublings(desk: Desk) -> None:
    service = desk.start(policy="fifo", learn=False)
    await desk.bus.publish(desk.say(node_born("n0", gpus=1)))
    await desk.hears(desk.say(endless("j", gpus_max=1)), wait_s=61.0)
    await answered(desk, service)
    state = service.engine.state
    job = state.jobs["j"]

    def left() -> float:
        return float(service.engine.snapshot().jobs.remaining_steps[0])

    assert left() == pytest.approx(600.0)
    await desk.hears(desk.say(progressed(500, "j", job.epoch, 10.0)), wait_s=1.0)
    assert left() == pytest.approx(500.0, abs=3.0)
    await desk.wait(600.0)
    assert 895.0 < left() < 1000.0, "beyond 1,000, so 2,000"


async def test_lengths_of_jobs_that_are_gone_or_declared_theirs_change_nothing(desk: Desk) -> None:
    service = desk.start(policy="fifo")
    await desk.bus.publish(desk.say(node_born("n0", gpus=1)))
    await desk.hears(desk.say(submitted("says")), wait_s=61.0)
    length = {"left": 1.0, "ended": 0, "took": [], "running": 0}
    news = {"says": length, "nobody": length}
    service.learning._estimator._totals._ready = news  # type: ignore[union-attr]
    await desk.wait(61.0)
    await desk.hears(desk.say(progressed(1, "says", 0)), wait_s=61.0)
    said = [stimulus.data for stimulus, _ in desk.seen]
    assert [data for data in said if isinstance(data, LengthsLearned)]
    assert service.engine.state.jobs["says"].length is None
    await desk.replayed(service)
