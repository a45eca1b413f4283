"""What operators are told: that a bus is away, once, and what a scheduler refuses."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bus.clock import SystemClock
from bus.contract import BusError, Message, Unreadable
from scheduler.intake import Intake
from scheduler.service_config import ServiceConfig
from schemas.topics import EVENTS, JOURNAL, TELEMETRY
from services import cell_leadership, probe, process, refusals, scheduler
from services.cell_leadership import CellLeadership
from services.config import load
from services.logs import configure
from services.metrics import Sample
from services.probe import BusProbe
from services.refusals import TOLD_MAX, Refusals
from services.sections import LogSection
from tests.memory_bus import MemoryBus
from tests.patience import until

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


class Away(MemoryBus):
    """A bus that answers, fails or keeps silent."""

    mood = "well"

    async def end(self, topic: str) -> int:
        if self.mood == "silent":
            await asyncio.sleep(3600)
        if self.mood == "failing":
            raise BusError("no broker answers")
        return await super().end(topic)


async def test_a_bus_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ANSWER_S", 0.02)
    bus = Away(SystemClock())
    asked = BusProbe(bus, "Kafka at k:1")
    said = []
    for bus.mood in ("well", "silent", "failing", "well"):
        await asked.ask()
        said.append(asked.problem)
    assert said == [
        "",
        "Kafka at k:1 did not answer for 0 s",
        "Kafka at k:1 does not answer: no broker answers",
        "",
    ]


class Moody:
    """A role that is asked whether it is ready, and each time knows the next answer."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = asyncio.Event()

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    async def refresh(self) -> None: ...

    def problems(self) -> list[str]:
        if len(self.answers) == 1:
            self.asked.set()
            return self.answers[0]
        return self.answers.pop(0)

    def details(self) -> dict[str, object]:
        return {}

    def samples(self) -> Iterable[Sample]:
        return ()


async def test_an_outage_is_told_of_once_and_its_end_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "REFRESH_S", 0.0)
    log = configure(LogSection(), role="bridge", name="b1")
    role = Moody([], ["kafka"], ["mqtt", "kafka"], ["kafka"], ["mqtt"], [], [], ["kafka"], [])
    telling = asyncio.create_task(process._refresh(role, log))
    await role.asked.wait()
    telling.cancel()
    assert [(line["event"], line.get("reasons")) for line in lines(capsys)] == [
        ("ready", None),
        ("not ready", ["kafka"]),
        ("not ready", ["mqtt", "kafka"]),
        ("ready", None),
        ("not ready", ["kafka"]),
        ("ready", None),
    ]


@asynccontextmanager
async def leading(bus: MemoryBus) -> AsyncIterator[CellLeadership]:
    clock = SystemClock()
    log = configure(LogSection(), role="scheduler", name="s1")
    cell = CellLeadership(ServiceConfig(policy="fifo"), lambda: bus, clock, None, log)
    turn = cell.new_term()
    running = asyncio.create_task(turn.run())
    try:
        await until(lambda: cell.leads)
        yield cell
    finally:
        turn.stop()
        with suppress(asyncio.CancelledError):
            await running


async def test_what_a_scheduler_refuses_is_told_of_with_the_place_of_its_letter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bus = MemoryBus(SystemClock())
    async with leading(bus) as cell:
        bad = b'{"source": "/agents/jetson", "specversion": "0.3"}'
        await bus.publish(*(Message(EVENTS.name, "default", bad) for _ in range(9)))
        await bus.publish(Message(TELEMETRY.name, "n0", b"no JSON"))
        service = cell.service
        assert service is not None
        await until(lambda: service.intake.counts["dead_letters"] >= 10)
        await cell.refresh()
        await cell.refresh()
    told = [line for line in lines(capsys) if line["event"] == "event refused"]
    assert {(one["level"], one["cell"], one["refused_so_far"]) for one in told} == {
        ("warning", "default", 10)
    }
    letters = {one["source"]: one["dead_letter_in"] for one in told}
    assert letters == {"/agents/jetson": f"{EVENTS.name}.dlq", "n0": f"{TELEMETRY.name}.dlq"}
    assert all(one["reason"] for one in told)
    assert len(told) == 2, "the same is told once"


async def test_refusals_are_told_of_a_few_times_a_minute_and_then_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    telling = Refusals(configure(LogSection(), role="bridge", name="b1"), "message refused")
    telling.tell([{"node": f"n{number}", "kind": "rate"} for number in range(20)], 20)
    telling.tell([{"node": "n0", "kind": "rate"}, {"node": "late", "kind": "rate"}], 1000)
    said = lines(capsys)
    assert [one["node"] for one in said] == [f"n{number}" for number in range(TOLD_MAX)]
    monkeypatch.setattr(refusals, "MINUTE_S", 0.0)
    telling.tell([{"node": "n0", "kind": "x" * 999, "field": ""}], 1001)
    more, fresh = lines(capsys)
    assert more["event"] == "message refused: more than told one by one"
    assert more["more"] == 1000 - TOLD_MAX
    assert (fresh["node"], len(fresh["kind"]), fresh.get("field")) == ("n0", 200, None)
    telling.tell([], 1001)
    assert lines(capsys) == [], "all of that minute was told"


async def test_a_scheduler_that_cannot_read_a_cell_says_so_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = SystemClock()
    bus = MemoryBus(clock)
    await bus.publish(Message(JOURNAL.name, "default", b"{}"))
    log = configure(LogSection(), role="scheduler", name="s1")
    cell = CellLeadership(ServiceConfig(policy="fifo"), lambda: bus, clock, None, log)
    for _ in range(2):
        bus.closed = False
        with pytest.raises(Unreadable):
            await cell.new_term().run()
    assert capsys.readouterr().err.count("cannot lead; the cell is left to a scheduler") == 1


async def test_a_log_that_is_damaged_further_on_is_told_of_once_until_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each term begins, and ends at the damaged place."""
    clock = SystemClock()
    bus = MemoryBus(clock)
    log = configure(LogSection(), role="scheduler", name="s1")
    cell = CellLeadership(ServiceConfig(policy="fifo"), lambda: bus, clock, None, log)
    with monkeypatch.context() as damaged:
        damaged.setattr(Intake, "read", Mock(side_effect=Unreadable("record 7 is damaged")))
        for _ in range(3):
            bus.closed = False
            await bus.publish(Message(EVENTS.name, "default", b"{}"))
            with pytest.raises(Unreadable):
                await cell.new_term().run()
            assert not cell.leads
    said = [line["event"] for line in lines(capsys) if line["level"] != "debug"]
    assert said == ["leads", "cannot lead; the cell is left to a scheduler that can"]
    bus.closed = False
    term = cell.new_term()
    running = asyncio.create_task(term.run())
    await until(lambda: cell.leads)
    await cell.refresh()
    assert lines(capsys) == [], "it may end in a moment"
    monkeypatch.setattr(cell_leadership, "READS_S", 0.0)
    await cell.refresh()
    await cell.refresh()
    term.stop()
    await running
    assert [line["event"] for line in lines(capsys)] == ["leads", "gave the cell back"]


def test_a_scheduler_whose_file_cannot_be_opened_ends_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foreign.db").write_text("nothing of ours" * 100)
    for name, why in (
        ("missing/bus.db", "the folder"),
        ("foreign.db", "is not a Tidegate log"),
    ):
        config = load(None, (f"bus=sqlite:{tmp_path / name}", "http.port=off"))
        assert scheduler.main(config) == 1
        (error,) = (line["error"] for line in lines(capsys) if line["event"] == "cannot go on")
        assert why in error


class Later(SystemClock):
    """The clock of a machine that is right, where ours is two hours behind."""

    def now_s(self) -> float:
        return super().now_s() + 7200.0


async def test_a_leader_says_that_its_clock_is_behind_the_bus() -> None:
    """It gave leases that were over, agents stopped their gangs, and all was well."""
    bus = MemoryBus(Later())
    async with leading(bus) as cell:
        assert cell.problem == ""
        await bus.publish(Message(EVENTS.name, "default", b"{}"))
        await until(lambda: "s behind the bus's" in cell.problem)
        assert "set the clock right" in cell.problem
