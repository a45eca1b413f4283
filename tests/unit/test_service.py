"""The scheduler's shell on the embedded buses: restarts, fencing, contact."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus.contract import Fenced, Message
from scheduler.core.canonical import state_hash
from scheduler.core.settings import Settings
from scheduler.core.transitions import NodeState
from scheduler.journal import recover
from scheduler.service import SchedulerService
from schemas.commands import Rebirth, RenewLease
from schemas.events import JobSubmitted
from schemas.topics import EVENTS, JOURNAL, TELEMETRY
from tests.builders import START_S, node_born, submitted
from tests.desk import Desk, measured, open_desk
from tests.patience import PATIENCE_S


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path) as desk:
        yield desk


async def test_what_the_engine_cannot_take_is_set_aside(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scheduler.core import engine, facts, observe

    def broken(turn: Any, job: JobSubmitted, real: Any = observe.submitted) -> None:
        real(turn, job)
        if job.job == "poison":
            turn.emit(facts.JobCompleted("nobody"))

    reports: dict[Any, Any] = engine._REPORTS
    monkeypatch.setitem(reports, JobSubmitted, broken)
    service = desk.start()
    await desk.hears(
        desk.say(node_born("n0")),
        desk.say(submitted("a")),
        Message(EVENTS.name, "default", b"no JSON"),
        desk.say(submitted("poison")),
        desk.say(submitted("b")),
        desk.say(measured()),
    )
    assert list(service.engine.state.jobs) == ["a", "b"]
    assert service.engine.state.nodes["n0"].state is NodeState.ALIVE
    letters = await desk.records(f"{EVENTS.name}.dlq")
    errors = [letter.headers["dlq_error"] for letter in letters]
    assert ["is not JSON" in errors[0], "JobCompleted" in errors[1]] == [True, True]
    assert (service.intake.counts["events"], service.intake.counts["dead_letters"]) == (6, 2)
    assert len(letters) == len(service.intake.refused) == 2, "a tick done again counts once"
    await desk.replayed(service)


async def test_a_restart_reads_the_snapshot_and_the_tail_only(desk: Desk) -> None:
    service = desk.start(snapshot_entries=20)
    await desk.bus.publish(desk.say(node_born("n0")))
    for number in range(50):
        await desk.hears(desk.say(submitted(f"j{number}")))
    before, total = state_hash(service.engine.state), service.engine.state.number
    await desk.crash()
    found = await recover(desk.bus, "default")
    assert state_hash(found.state) == before
    assert 0 < found.entries <= len(found.state.jobs) + 1 < total
    again = desk.start(snapshot_entries=20)
    await desk.wait(1.0)
    assert again.recovered_entries == found.entries
    assert again.engine.state.leader.epoch == 2


async def test_a_stop_leaves_nothing_to_fold(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")), desk.say(submitted("a")))
    service.stop()
    await asyncio.wait_for(desk.tasks.pop(), PATIENCE_S)
    found = await recover(desk.bus, "default")
    assert (found.entries, state_hash(found.state)) == (0, state_hash(service.engine.state))


async def test_a_second_service_fences_the_first(desk: Desk) -> None:
    first = desk.start(name="one")
    await desk.hears(desk.say(node_born("n0")))
    second = desk.start(name="two")
    await desk.wait(1.0)
    await desk.hears(desk.say(submitted("a")), wait_s=120.0)
    with pytest.raises(Fenced):
        await asyncio.wait_for(desk.tasks.pop(0), PATIENCE_S)
    state = second.engine.state
    assert (state.leader.name, list(state.jobs)) == ("two", ["a"])
    assert first.engine.state.leader.name == "one"
    await desk.replayed(second)


async def test_a_crash_between_ticks_repeats_nothing(desk: Desk) -> None:
    service = desk.start()
    await desk.bus.publish(desk.say(node_born("n0")))
    for number in range(6):
        await desk.hears(
            desk.say(submitted(f"j{number}")),
            desk.say(measured()),
            wait_s=0.5 if number % 2 else 0.0,
        )
        await desk.crash()
        service = desk.start()
        await desk.wait(1.0)
    assert list(service.engine.state.jobs) == [f"j{number}" for number in range(6)]
    await desk.wait(10.0)
    await desk.replayed(service)
    entries = [orjson.loads(record.value or b"") for record in await desk.records(JOURNAL.name)]
    causes = [tuple(entry["data"]["stimulus"]["cause"]) for entry in entries]
    outside = [cause for cause in causes if cause[1] >= 0]
    assert len(outside) == len(set(outside)) == 7
    ids = [one.id for one in await desk.commands(object)]
    assert len(ids) == len(set(ids)), "nothing was open long enough to be repeated"
    asked = [one.data.reason for one in await desk.commands(Rebirth)]
    assert asked == [], "what the journal does not keep is not missing"


def state_of(service: SchedulerService, node: str = "n0") -> str:
    return str(service.engine.state.nodes[node].state)


async def test_silence_contact_and_the_end_of_leases(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")))
    (renewal,) = await desk.commands(RenewLease)
    assert renewal.data.until_s == pytest.approx(START_S + 900.0, abs=1.0)
    assert renewal.data.boot == 0, "it is the lease of the start that was heard"
    await desk.wait(240.0)
    assert state_of(service) == "unknown"
    await desk.crash()
    service = desk.start()
    await desk.wait(60.0)
    assert state_of(service) == "unknown", "a restart hears nobody"
    await desk.hears(desk.say(measured()))
    assert state_of(service) == "alive"
    await desk.wait(1500.0)
    assert state_of(service) == "dead"
    assert await desk.commands(Rebirth) == []
    await desk.hears(desk.say(measured()))
    assert len(await desk.commands(Rebirth)) == 1, "it is alive after all: who is it?"
    await desk.hears(desk.say(node_born("n0")))
    assert state_of(service) == "alive"


async def test_whoever_was_given_up_is_asked_at_once_however_lately_it_was_asked(
    desk: Desk,
) -> None:
    settings = Settings(silence_s=4.0, lease_s=20.0, lease_margin_s=5.0, command_ttl_s=10.0)
    service = desk.start(settings=settings)
    await desk.hears(desk.say(node_born("n0")))
    await desk.hears(desk.say(measured(), sequence=2))
    (asked,) = await desk.commands(Rebirth)
    assert asked.data.reason == "1 messages missing"
    for deaths in (1, 2):
        await desk.wait(90.0)
        assert state_of(service) == "dead"
        await desk.hears(desk.say(measured()))
        assert len({one.id for one in await desk.commands(Rebirth)}) == 1 + deaths
        await desk.wait(1.0)
        await desk.hears(desk.say(node_born("n0")))
        assert state_of(service) == "alive", "long before the next question about what is missing"


async def test_old_telemetry_goes_and_the_journal_stays(desk: Desk) -> None:
    desk.start()
    await desk.hears(desk.say(node_born()), desk.say(measured()), wait_s=60.0)
    first = await anext(aiter(desk.bus.read(TELEMETRY.name)))
    entries = [record.offset async for record in desk.bus.read(JOURNAL.name)]
    await desk.wait(8 * 3600.0)
    await desk.hears(desk.say(measured()), wait_s=3700.0)
    kept = [record.offset async for record in desk.bus.read(TELEMETRY.name)]
    assert first.offset not in kept
    assert len(kept) == 1
    left = [record.offset async for record in desk.bus.read(JOURNAL.name)]
    assert left[: len(entries)] == entries


async def test_another_start_of_an_agent_gets_a_lease_at_once(desk: Desk) -> None:
    desk.start()
    await desk.hears(desk.say(node_born("n0")))
    await desk.hears(desk.say(node_born("n0"), bootid=1, sequence=0))
    assert [one.data.boot for one in await desk.commands(RenewLease)] == [0, 1]
