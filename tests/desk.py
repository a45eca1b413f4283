"""A bus, simulated time, and scheduler services that come and go."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.clock import PacedClock
from bus.contract import Bus, Fenced, Message, Record
from bus.sqlite import SqliteBus
from scheduler.core.canonical import state_hash
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.core.validate import violations
from scheduler.journal import recover
from scheduler.policies.registry import make_policy
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import decode_command, encode, event
from schemas.events import (
    EventData,
    InferenceLoad,
    JobCancelled,
    JobSubmitted,
    NodeMeasured,
    WorkerStopped,
)
from schemas.journal import decode_entry
from schemas.topics import COMMANDS, EVENTS, JOURNAL, TELEMETRY
from tests.builders import START_S
from tests.memory_bus import MemoryBus


@contextlib.asynccontextmanager
async def open_desk(kind: str, folder: Path, start_s: float = START_S) -> AsyncIterator["Desk"]:
    """Give a desk on the bus `memory` or `sqlite`; end what still runs on it."""
    clock = PacedClock(start_s, None)
    bus: Bus = (
        MemoryBus(clock)
        if kind == "memory"
        else SqliteBus.open(folder / "log.db", clock, durability="process_crash")
    )
    desk = Desk(clock, bus)
    yield desk
    for task in desk.tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Fenced):
            await task
    await bus.close()


@dataclass
class Desk:
    """A bus, simulated time, and services that come and go."""

    clock: PacedClock
    bus: Bus
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    seen: list[tuple[Stimulus, Decision]] = field(default_factory=list)
    sequence: dict[str, int] = field(default_factory=dict)

    def start(self, **config: Any) -> SchedulerService:
        """Run a service; it works whenever time moves."""
        chosen = ServiceConfig(**{"policy": "fifo", **config})
        service = SchedulerService(
            self.bus,
            self.clock,
            chosen,
            make_policy,
            watch=lambda stimulus, decision: self.seen.append((stimulus, decision)),
        )
        self.tasks.append(asyncio.create_task(service.run()))
        return service

    async def crash(self) -> None:
        """Abandon the running service where it stands."""
        task = self.tasks.pop()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(0)
        await self.clock.run_until(self.clock.now_s() + seconds)

    async def hears(self, *messages: Message, wait_s: float = 1.0) -> None:
        """Publish, and let time pass."""
        await self.bus.publish(*messages)
        await self.wait(wait_s)

    def say(self, data: EventData, agent: str = "", **over: Any) -> Message:
        """The message of an event, with the next sequence of its source."""
        if not agent:
            tenants = isinstance(data, JobSubmitted | JobCancelled)
            agent = "/tenants/t" if tenants else "/agents/agent-train"
        sequence = over.pop("sequence", self.sequence.get(agent, 0))
        self.sequence[agent] = max(self.sequence.get(agent, 0), sequence + 1)
        envelope = event(
            data,
            source=agent,
            sequence=sequence,
            bootid=over.pop("bootid", 0),
            time_s=over.pop("time_s", self.clock.now_s()),
            **over,
        )
        topic = TELEMETRY if isinstance(data, NodeMeasured | InferenceLoad) else EVENTS
        return Message(topic.name, "default", encode(envelope))

    async def records(self, topic: str) -> list[Record]:
        return [record async for record in self.bus.read(topic)]

    async def commands(self, kind: type[Any]) -> list[Any]:
        decoded = [
            decode_command(record.value or b"") for record in await self.records(COMMANDS.name)
        ]
        return [one for one in decoded if isinstance(getattr(one, "data", None), kind)]

    async def replayed(self, service: SchedulerService) -> None:
        """Assert that the journal is whole and its facts lead to the service's state."""
        entries = [decode_entry(record.value or b"") for record in await self.records(JOURNAL.name)]
        numbers = [entry.number for entry in entries if not hasattr(entry, "reason")]
        assert numbers == list(range(service.engine.state.number))
        found = await recover(self.bus, "default")
        assert state_hash(found.state) == state_hash(service.engine.state)
        assert violations(found.state) == []


def kinds(desk: Desk) -> list[str]:
    return [type(stimulus.data).__name__ for stimulus, _ in desk.seen]


def measured(node: str = "n0") -> NodeMeasured:
    return NodeMeasured(
        node=node,
        window_s=60.0,
        gpu_utilisation=[0.5, None],
        gpu_memory_used_mib=[1, None],
        gpu_temperature_c=[50.0, None],
        gpu_power_w=[100.0, None],
    )


def measured_stop() -> EventData:
    return WorkerStopped(job="j", epoch=1, node="n0", gpus=[0], reason="preempted", step=0)
