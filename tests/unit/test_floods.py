"""A flood of one source: it is slowed down, it is not kept, and nobody else is lost for it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.allowance import Allowance
from bus.contract import Message, Record
from bus.log import LogConsumer
from runtime.spool import SpoolLimit
from scheduler.core import engine, observe
from scheduler.relevance import stimulus_of
from scheduler.service_options import SOURCE_RATES
from schemas.events import (
    EventData,
    JobCancelled,
    JobSubmitted,
    NodeDied,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.topics import EVENTS
from tests.builders import Cell, node_born, submitted
from tests.desk import Desk, measured, open_desk

FEW = replace(SOURCE_RATES, rate_per_s=10.0, burst=50.0, letters_per_s=5.0)


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path) as desk:
        yield desk


def of(tenant: str, job: str) -> JobSubmitted:
    return submitted(job).model_copy(update={"tenant": tenant})


def flood(desk: Desk, count: int, source: str = "/tenants/mallory") -> list[Message]:
    return [desk.say(JobCancelled(job=f"x{number}"), source) for number in range(count)]


async def test_a_source_over_its_rate_is_heard_again_later(desk: Desk) -> None:
    service = desk.start(rates=FEW)
    await desk.hears(desk.say(node_born("n0")), desk.say(of("mallory", "j"), "/tenants/mallory"))
    await desk.hears(
        *flood(desk, 1000), desk.say(of("alice", "other"), "/tenants/alice"), wait_s=0.5
    )
    assert list(service.engine.state.jobs) == ["j", "other"]
    counts = service.intake.counts
    letters = await desk.records(f"{EVENTS.name}.dlq")
    assert counts["over_rate"] == 950
    assert (len(letters), counts["letters_dropped"]) == (5, counts["over_rate"] - 5)
    assert "slower" in letters[0].headers["dlq_error"]
    await desk.hears(desk.say(JobCancelled(job="j"), "/tenants/mallory/tool"))
    assert not service.engine.state.jobs["j"].cancel_requested, "its tools are one source"
    await desk.wait(10.0)
    await desk.hears(desk.say(JobCancelled(job="j"), "/tenants/mallory"))
    assert service.engine.state.jobs["j"].cancel_requested


def test_what_an_agent_has_kept_while_it_was_out_of_contact_is_no_flood() -> None:
    """A whole spool comes at once: what the bus has stored of it the agent does not say again."""
    allowance, limit = Allowance(SOURCE_RATES), SpoolLimit()
    size = limit.size_bytes // limit.messages
    assert all(allowance.take("agents/a", size, 0.0) for _ in range(limit.messages))


async def test_all_operators_are_one_source(desk: Desk) -> None:
    service = desk.start(rates=FEW)
    said = [desk.say(JobCancelled(job="x"), f"/operators/cli-{n}") for n in range(80)]
    await desk.hears(*said)
    assert service.intake.counts["over_rate"] == 30


async def test_what_cannot_be_read_makes_no_flood_of_letters(desk: Desk) -> None:
    service = desk.start(rates=FEW)
    await desk.hears(*[Message(EVENTS.name, "default", b"{")] * 100)
    assert service.intake.counts["dead_letters"] == 5
    assert service.intake.counts["letters_dropped"] == 95


async def test_what_is_unknown_is_not_journalled(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")), desk.say(submitted("j")))
    before = service.engine.state.number
    of_workers = {"job": "x", "epoch": 1, "node": "x", "gpus": [0], "step": 0}
    unknown: list[EventData] = [
        NodeDied(node="x"),
        WorkerStarted.model_validate(of_workers),
        WorkerStopped.model_validate({**of_workers, "reason": "preempted"}),
        WorkerFailed.model_validate({**of_workers, "error": "e"}),
    ]
    await desk.hears(*flood(desk, 100), *(desk.say(one) for one in unknown), wait_s=0.5)
    assert service.engine.state.number - before <= 1, "a cycle at most"
    assert service.intake.counts["dead_letters"] == 0


def test_what_leaves_unknown_gangs_is_told() -> None:
    """Of a gang that the ledger gave up, or never knew, its GPUs are free only then."""
    cell = Cell().told(node_born("n0"), submitted("j0"))
    cell.run("j0", n0=1)
    cell.state.nodes["n0"].holder[3] = "stray"
    stopped = WorkerStopped(job="stray", epoch=1, node="n0", gpus=[3], reason="superseded", step=0)
    assert stimulus_of(cell.state, stopped, cell.now_s) is stopped
    cell.state.nodes["n0"].holder[3] = None
    assert stimulus_of(cell.state, JobCancelled(job="j0"), cell.now_s) is not None
    cell.feed(JobCancelled(job="j0"))
    assert stimulus_of(cell.state, JobCancelled(job="j0"), cell.now_s) is None, "it is told already"


async def test_who_waits_to_be_read_is_not_silent(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Telemetry waits behind a backlog of events: that says nothing against its nodes."""
    poll = LogConsumer.poll

    async def slow_poll(self: LogConsumer, most: int, timeout_s: float | None) -> list[Record]:
        clock = self.log.clock
        await clock.sleep_until(clock.now_s() + 1.0)
        return await poll(self, most, timeout_s)

    service = desk.start(records_max=10)
    await desk.hears(desk.say(node_born("n0")))
    monkeypatch.setattr(LogConsumer, "poll", slow_poll)
    await desk.bus.publish(*flood(desk, 4000), desk.say(measured("n0")))
    await desk.wait(350.0)
    assert service.intake.telemetry.over(["n0"], 0.0) is None, "it is not read yet"
    assert service.engine.state.nodes["n0"].state == "alive"
    await desk.wait(300.0)
    assert service.engine.state.nodes["n0"].state == "unknown", "who says nothing is silent"


async def test_what_was_said_while_no_scheduler_ran_is_no_flood(desk: Desk) -> None:
    rates = replace(FEW, rate_per_s=1.0)
    service = desk.start(rates=rates)
    await desk.hears(desk.say(node_born("n0")), desk.say(of("alice", "j"), "/tenants/alice"))
    await desk.crash()
    for _ in range(60):  # an hour in which the agent says less than it may
        desk.clock._now_s += 60.0
        await desk.bus.publish(*(desk.say(measured()) for _ in range(5)))
    await desk.bus.publish(desk.say(NodeDied(node="n0", reason="test")))
    service = desk.start(rates=rates, name="b")
    await desk.wait(10.0)
    assert service.intake.counts["over_rate"] == 0
    assert service.engine.state.nodes["n0"].state == "dead"
    # Who says more than it may have said in that hour is a flood all the same.
    await desk.hears(*flood(desk, 4000), wait_s=0.5)
    assert service.intake.counts["over_rate"] == pytest.approx(4000 - 3600 - 50, abs=30)


async def test_a_tick_that_is_done_again_counts_once_against_those_it_is_of(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: dict[Any, Any] = engine._REPORTS

    def broken(turn: Any, job: JobSubmitted, real: Any = observe.submitted) -> None:
        if job.job.startswith("poison"):
            raise ZeroDivisionError
        real(turn, job)

    monkeypatch.setitem(reports, JobSubmitted, broken)
    service = desk.start(rates=FEW)
    poison = [desk.say(of("alice", f"poison{n}"), "/tenants/alice") for n in range(4)]
    good = [desk.say(of("alice", f"good{n}"), "/tenants/alice") for n in range(30)]
    await desk.hears(*poison, *good)
    assert service.intake.counts["over_rate"] == 0
    assert len(service.engine.state.jobs) == 30
