"""Buses in simulated time: it stands still a moment after something was said, until it is heard.

A broker takes some milliseconds from a publish to whoever reads it, and nobody counts as busy
meanwhile: at a demo's pace, or when it is late and hurries, those would be simulated minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Self

from bus.clock import Clock
from bus.contract import Bus, Consumer, Link, Message, Producer, Record, Transaction
from schemas.topics import COMMANDS

#: Real time from what is stored in Kafka to who reads it there, nearly always.
READ_S = 0.008
#: The same for commands, which take another step to the edge.
OBEYED_S = 0.025


class Hold:
    """Holds a clock's time still, for so long as it was last told to."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def last(self, seconds: float) -> None:
        """Hold time for so many real seconds from now, or for longer if it is held for longer."""
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


class HeldLink:
    """A link that holds time after each publish."""

    def __init__(self, link: Link, hold: Hold) -> None:
        self._link, self._hold = link, hold

    async def publish(self, *messages: Message) -> None:
        await self._link.publish(*messages)
        self._hold.last(READ_S)

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> Consumer:
        return await self._link.consumer(group, topics, keys=keys)

    async def drain(self) -> None:
        await self._link.drain()

    async def close(self) -> None:
        await self._link.close()


class HeldBus(HeldLink):
    """A bus that holds time after each publish, and each transaction with commands."""

    def __init__(self, bus: Bus, hold: Hold) -> None:
        super().__init__(bus, hold)
        self._bus = bus

    async def producer(self, producer_id: str) -> "HeldProducer":
        return HeldProducer(await self._bus.producer(producer_id), self._hold)

    def read(self, topic: str, offset: int = 0) -> AsyncIterator[Record]:
        return self._bus.read(topic, offset)

    async def latest(self, topic: str, key: str) -> Record | None:
        return await self._bus.latest(topic, key)

    async def last(self, topic: str) -> Record | None:
        return await self._bus.last(topic)

    async def end(self, topic: str) -> int:
        return await self._bus.end(topic)

    async def prune(self, now_s: float) -> int:
        return await self._bus.prune(now_s)


class HeldProducer:
    """A producer whose transactions hold time after commands."""

    def __init__(self, producer: Producer, hold: Hold) -> None:
        self._producer, self._hold = producer, hold

    def transaction(self) -> "HeldTransaction":
        return HeldTransaction(self._producer.transaction(), self._hold)


class HeldTransaction:
    """A transaction that holds time when it is committed, if it has commands."""

    def __init__(self, transaction: Transaction, hold: Hold) -> None:
        self._transaction, self._hold = transaction, hold
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
            self._hold.last(OBEYED_S)
