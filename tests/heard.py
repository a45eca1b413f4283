"""What a scheduler orders over a bus in memory, and what agents say on it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from bus.clock import Clock, PacedClock
from bus.contract import BusError, Message, Record
from runtime.service import AgentService
from schemas.codec import Rejected, decode_event
from schemas.commands import AnyCommand
from schemas.topics import COMMANDS, EVENTS
from schemas.values import Strict
from tests.memory_bus import MemoryBus
from tests.post import ordered

_Said = TypeVar("_Said", bound=Strict)
Step = Callable[[], Awaitable[object]]


class FlakyBus(MemoryBus):
    """A memory bus whose link can be down."""

    down = False

    async def publish(self, *messages: Message) -> None:
        if self.down:
            raise BusError("the link is down")
        await super().publish(*messages)


class Heard:
    """A bus, the orders on it, and all that is heard there."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.bus = clock, FlakyBus(clock)
        self._orders = 0

    async def order(self, agent: str, data: AnyCommand, id: str | None = None) -> None:
        """Give an agent a command; they are called c1, c2 and so on unless told otherwise."""
        self._orders += 1
        name = id or f"c{self._orders}"
        value = ordered(data, self._orders, agent, self.clock.now_s(), id=name)
        await self.bus.publish(Message(COMMANDS.name, agent, value))

    async def envelopes(self, topic: str = EVENTS.name) -> list[Any]:
        """Give all that was said, as it was."""
        found = []
        async for record in self.bus.read(topic):
            envelope = decode_event(record.value or b"")
            assert not isinstance(envelope, Rejected), envelope
            found.append(envelope)
        return found

    async def said(self, kind: type[_Said], topic: str = EVENTS.name) -> list[_Said]:
        """Give what was said of a kind."""
        return [e.data for e in await self.envelopes(topic) if isinstance(e.data, kind)]

    async def kinds(self) -> list[str]:
        """Name what was said."""
        return [type(envelope.data).__name__ for envelope in await self.envelopes()]

    async def letters(self) -> list[Record]:
        """Give the commands that were none."""
        return [record async for record in self.bus.read(f"{COMMANDS.name}.dlq")]


class Timed(Heard):
    """The same in simulated time."""

    clock: PacedClock

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        super().__init__(PacedClock(start_s, pace=None))

    async def during(
        self, service: AgentService, *steps: tuple[float, Step], rest_s: float = 0.0
    ) -> None:
        """Run the service; at each number of seconds from the start, do the step; then stop."""
        task = asyncio.create_task(service.run())
        for at_s, step in steps:
            await self.clock.run_until(self.start_s + at_s)
            await step()
        if rest_s:
            await self.clock.run_until(self.clock.now_s() + rest_s)
        await service.stop()
        await task
