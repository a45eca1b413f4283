"""Twelve hours without a broker, in virtual time: real scheduler and agent, simulated workers."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bus.contract import BusError, Consumer, Message
from edge_agent.agent import EdgeAgentConfig, build_agent
from runtime.build import Options
from runtime.service import AgentService, Schedule
from runtime.simulated import Physics
from runtime.simulated_owner import simulated
from runtime.spool import SpoolLimit
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from schemas.codec import Rejected, decode_event
from schemas.commands import Rebirth, StartGang
from schemas.events import (
    CheckpointCommitted,
    CommandAcknowledged,
    NodeMeasured,
    WorkerStarted,
    WorkerStopped,
)
from schemas.topics import EVENTS, TELEMETRY
from tests.builders import submitted
from tests.desk import Desk, open_desk

HOUR_S = 3600.0
SPOOL = SpoolLimit(messages=1_000_000, size_bytes=512 * 1024)
HOURS = Settings(edge_lease_s=24 * HOUR_S)
EXACT = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)


class Thread:
    """The agent's link to the bus, which can be cut."""

    def __init__(self, desk: Desk) -> None:
        self._bus = desk.bus
        self.cut = False

    async def publish(self, *messages: Message) -> None:
        self._check()
        await self._bus.publish(*messages)

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> Consumer:
        self._check()
        return await self._bus.consumer(group, topics, keys=keys)

    async def drain(self) -> None:
        """Nothing is on its way when `publish` has returned."""

    async def close(self) -> None:
        """The bus is the desk's."""

    def _check(self) -> None:
        if self.cut:
            raise BusError("the link is down")


def agent(desk: Desk, thread: Thread, folder: Path, **schedule: float) -> AgentService:
    pace = Schedule(**schedule)
    # Nobody loses power here, and each of some 45,000 messages would be waited for.
    options = Options(durability="process_crash", schedule=pace, spool=SPOOL)
    config = EdgeAgentConfig("e0", options=options)
    make = simulated(lambda _: 0.0, physics=EXACT)
    return build_agent(config, thread, desk.clock, folder / "e0.db", make)


async def said(desk: Desk, topic: str) -> list[Any]:
    decoded = [decode_event(record.value or b"") for record in await desk.records(topic)]
    assert not [one for one in decoded if isinstance(one, Rejected)]
    return [one for one in decoded if getattr(one, "source", "") == "/agents/e0"]


def contact(state: ClusterState) -> str:
    return str(state.nodes["e0"].state)


@pytest.mark.slow
async def test_twelve_hours_without_a_broker_are_told_once_and_cost_no_work(
    tmp_path: Path,
) -> None:
    async with open_desk("memory", tmp_path) as desk:
        scheduler = desk.start(policy="tide", settings=HOURS)
        thread = Thread(desk)
        one = agent(desk, thread, tmp_path, telemetry_every_s=1.0, retry_s=30.0)
        running = asyncio.create_task(one.run())
        await desk.wait(5.0)
        job = submitted("j0", gpus_max=1, total_steps=50_000)
        await desk.bus.publish(desk.say(job, "/tenants/t"))
        await desk.wait(HOUR_S / 2)
        state = scheduler.engine.state
        assert state.jobs["j0"].state == "running"
        epoch, cut_s = state.jobs["j0"].epoch, desk.clock.now_s()

        thread.cut = True
        sizes = []
        for _ in range(12):
            await desk.wait(HOUR_S)
            sizes.append(sum(path.stat().st_size for path in tmp_path.glob("e0.db*")))
            assert one.spool_bytes <= SPOOL.size_bytes
        assert one.telemetry_dropped > 40_000, "far more than ten times the limit has come by"
        assert max(sizes) < 1.05 * sizes[0], "the file of the agent's memory has its size"
        assert contact(state) == "unknown"
        assert (state.jobs["j0"].state, state.jobs["j0"].epoch) == ("running", epoch)

        thread.cut, back_s = False, desk.clock.now_s()
        await desk.wait(600.0)
        assert one.spool_length == 0
        assert contact(state) == "alive"
        events = await said(desk, EVENTS.name)
        assert max(Counter(event.id for event in events).values()) == 1
        away = [event.data for event in events if cut_s < event.time_s < back_s]
        steps = [data.step for data in away if isinstance(data, CheckpointCommitted)]
        assert 48 <= len(steps) <= 72, "every 10 to 15 minutes"
        assert steps == sorted(set(steps))
        assert state.jobs["j0"].checkpoint_step >= steps[-1]
        held = state.jobs["j0"]
        assert (held.state, held.epoch, held.failures) == ("running", epoch, 0)
        assert held.step > 12 * HOUR_S * 0.4 * 0.95, "it has trained all the while"
        kinds = Counter(type(event.data) for event in events)
        assert (kinds[WorkerStarted], kinds[WorkerStopped]) == (1, 0)
        assert kinds[CommandAcknowledged] == len({e.causationid for e in events if e.causationid})
        assert len(await desk.commands(StartGang)) == 1
        assert len(await desk.commands(Rebirth)) == 1, "for the telemetry, once"
        spared = [
            event.time_s
            for event in await said(desk, TELEMETRY.name)
            if isinstance(event.data, NodeMeasured) and cut_s < event.time_s < back_s
        ]
        assert spared == [back_s - left for left in range(len(spared), 0, -1)], "the newest"
        assert len(spared) > 200
        await desk.replayed(scheduler)
        await one.stop()
        await running
