"""Links that are lost and opened, signed commands, and how long things take."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bus.contract import Message
from scheduler.core import engine
from scheduler.policies.registry import make_policy
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.commands import Rebirth, RenewLease
from schemas.events import JobSubmitted, LinkLost, LinkOpened
from schemas.topics import COMMANDS, EVENTS
from tests.builders import node_born, progressed, submitted
from tests.desk import Desk, measured, open_desk

AGENT = "agent-train"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk("memory", tmp_path) as desk:
        desk.start()
        await desk.hears(desk.say(node_born("n0")))
        yield desk


def state(desk: Desk) -> str:
    silenced = [s for s, d in desk.seen for f in d.facts if type(f).__name__ == "NodeSilenced"]
    returns = [s for s, d in desk.seen for f in d.facts if type(f).__name__ == "NodeReturned"]
    return "unknown" if len(silenced) > len(returns) else "alive"


def link(desk: Desk, kind: type[LinkLost | LinkOpened], session: int, **over: str) -> Message:
    data = kind(agent=over.get("agent", AGENT), session=session)
    return desk.say(data, over.get("source", f"/links/{AGENT}"), sequence=session)


async def test_a_lost_link_makes_the_agent_silent_at_once(desk: Desk) -> None:
    await desk.hears(link(desk, LinkOpened, 7))
    await desk.hears(link(desk, LinkLost, 7), wait_s=0.5)
    assert state(desk) == "unknown"
    await desk.wait(60.0)
    assert state(desk) == "unknown", "that it was heard lately is of before"
    await desk.hears(desk.say(measured()))
    assert state(desk) == "alive"


async def test_the_loss_of_an_older_connection_is_old_news(desk: Desk) -> None:
    await desk.hears(link(desk, LinkOpened, 8), link(desk, LinkLost, 7), wait_s=30.0)
    assert state(desk) == "alive"


async def test_a_link_that_opens_again_is_no_longer_lost(desk: Desk) -> None:
    await desk.hears(link(desk, LinkLost, 7))
    await desk.hears(link(desk, LinkOpened, 7))
    assert state(desk) == "unknown", "of one session, death is the later"
    await desk.hears(link(desk, LinkOpened, 8))
    assert state(desk) == "alive"
    await desk.wait(240.0)
    assert state(desk) == "unknown", "an open link alone is no sign of life"


async def test_words_after_the_loss_count(desk: Desk) -> None:
    await desk.hears(link(desk, LinkLost, 7), desk.say(progressed(1)), wait_s=30.0)
    assert state(desk) == "alive"
    await desk.hears(desk.say(progressed(2)), link(desk, LinkLost, 7), wait_s=0.5)
    assert state(desk) == "unknown"


async def test_nobody_speaks_for_anothers_link(desk: Desk) -> None:
    await desk.hears(
        link(desk, LinkLost, 7, source=f"/agents/{AGENT}"),
        link(desk, LinkLost, 7, source="/links/other"),
    )
    assert state(desk) == "alive"
    dead = await desk.records(f"{EVENTS.name}.dlq")
    assert [record.headers["dlq_field"] for record in dead] == ["type", "data.agent"]


async def test_links_make_no_stimuli_and_no_duplicates(desk: Desk) -> None:
    before = len(desk.seen)
    await desk.hears(link(desk, LinkOpened, 9), link(desk, LinkOpened, 9))
    assert len(desk.seen) == before
    assert await desk.records(f"{EVENTS.name}.dlq") == []


class Notary:
    def headers(self, value: bytes) -> Mapping[str, str]:
        return {"sig": str(len(value))}


async def test_commands_carry_their_signature_and_time_is_taken(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        took: list[tuple[str, float]] = []
        service = SchedulerService(
            desk.bus,
            desk.clock,
            ServiceConfig(policy="fifo"),
            make_policy,
            signer=Notary(),
            stopwatch=lambda what, seconds: took.append((what, seconds)),
        )
        desk.tasks.append(asyncio.create_task(service.run()))
        await desk.hears(desk.say(node_born("n0")))
        assert len(await desk.commands(RenewLease)) == 1
        (record,) = await desk.records(COMMANDS.name)
        assert record.headers == {"sig": str(len(record.value or b""))}
        assert {what for what, _ in took} == {"decision", "transaction"}
        assert all(seconds >= 0.0 for _, seconds in took)
        assert (service.leads, await service.lag()) == (True, 0)


async def test_who_comes_back_is_greeted_though_the_tick_is_done_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(turn: Any, job: JobSubmitted) -> None:
        raise ZeroDivisionError

    reports: dict[Any, Any] = engine._REPORTS
    monkeypatch.setitem(reports, JobSubmitted, broken)
    await desk.wait(3600.0)
    assert not await desk.commands(Rebirth), "it is given up, and nobody there to be asked"
    await desk.hears(desk.say(submitted("poison")), desk.say(measured()), wait_s=60.0)
    assert len(await desk.commands(Rebirth)) == 1
