"""Buses for the demo: simulated time pauses after each publish, until the message can be read.

A broker takes some milliseconds from a publish to its reader, and no task counts as busy meanwhile:
at the pace of a demo, or when it catches up, those would be simulated minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Self

from bus.clock import Clock
from bus.contract import Bus, Consumer, Link, Message, Producer, Record, Transaction
from schemas.topics import COMMANDS

#: Real time that a message nearly always takes from Kafka to its reader.
READ_S = 0.008
#: The same for commands, which take one more hop to the edge.
OBEYED_S = 0.025


class ClockPause:
    """Pauses a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def extend(self, seconds: float) -> None:
        """Pause time for at least so many real seconds from now."""
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._clock.enter()
        elif self._timer.when() >= loop.time() + seconds:
            return
        else:
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._release)

    def _release(self) -> None:
        self._timer = None
        self._clock.leave()


class PacedLink:
    """A link that pauses time after each publish."""

    def __init__(self, link: Link, pause: ClockPause) -> None:
        self._link, self._pause = link, pause

    async def publish(self, *messages: Message) -> None:
        await self._link.publish(*messages)
        self._pause.extend(READ_S)

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> Consumer:
        return await self._link.consumer(group, topics, keys=keys)

    async def drain(self) -> None:
        await self._link.drain()

    async def close(self) -> None:
        await self._link.close()


class PacedBus(PacedLink):
    """A bus that pauses time after each publish, and each transaction with commands."""

    def __init__(self, bus: Bus, pause: ClockPause) -> None:
        super().__init__(bus, pause)
        self._bus = bus

    async def producer(self, producer_id: str) -> "PacedProducer":
        return PacedProducer(await self._bus.producer(producer_id), self._pause)

    def read(self, topic: str, offset: int = 0, end: int | None = None) -> AsyncIterator[Record]:
        return self._bus.read(topic, offset, end)

    async def latest(self, topic: str, key: str) -> Record | None:
        return await self._bus.latest(topic, key)

    async def last(self, topic: str) -> Record | None:
        return await self._bus.last(topic)

    async def end(self, topic: str) -> int:
        return await self._bus.end(topic)

    async def prune(self, now_s: float) -> int:
        return await self._bus.prune(now_s)


class PacedProducer:
    """A producer whose transactions pause time after commands."""

    def __init__(self, producer: Producer, pause: ClockPause) -> None:
        self._producer, self._pause = producer, pause

    def transaction(self) -> "PacedTransaction":
        return PacedTransaction(self._producer.transaction(), self._pause)


class PacedTransaction:
    """A transaction that pauses time when it is committed, if it has commands."""

    def __init__(self, transaction: Transaction, pause: ClockPause) -> None:
        self._transaction, self._pause = transaction, pause
        self._commands = False

    def send(self, message: Message) -> None:
        self._commands |= message.topic == COMMANDS.name
        self._transaction.send(message)

    def commit_positions(self, consumer: Consumer) -> None:
        self._transaction.commit_positions(consumer)

    async def __aenter__(self) -> Self:
        await self._transaction.__aenter__()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._transaction.__aexit__(kind, error, trace)
        if self._commands:
            self._pause.extend(OBEYED_S)
