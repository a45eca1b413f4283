"""A broker with Kafka's semantics in memory, and the connection of one process to it.

A connection may be cut: nothing comes, and nothing said arrives, until it is mended; a request
then fails after a while. Or only answers are lost: what was asked for is done, and who asked
learns of a failure. The broker may forget what a real one may lose.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from bus.clock import PacedClock
from bus.contract import BusError, Message, Record
from bus.log import LogConsumer, LogProducer
from bus.transactions import Positions
from tests.memory_bus import MemoryBus
from tests.whole.process import Process

T = TypeVar("T")
#: A request without an answer fails after so long.
PATIENCE_S = 10.0


class Broker(MemoryBus):
    """What all processes connect to."""

    def __init__(self, clock: PacedClock) -> None:
        super().__init__(clock)
        #: Every record that was ever stored, by topic; retention takes nothing from here.
        self.ever: dict[str, list[Record]] = defaultdict(list)
        #: What was stored, confirmed, and is no more, by topic; and when that happened.
        self.lost: dict[str, list[Record]] = defaultdict(list)
        self.losses: list[float] = []
        self._positions: list[tuple[float, tuple[str, str], int]] = []  #: When, whose, where.
        self._bewildered: set[str] = set()  #: Producers whose newest records are no more.
        self._links: list[Connection] = []

    def _store(self, message: Message, time_s: float) -> None:
        super()._store(message, time_s)
        self.ever[message.topic].append(self._stored[message.topic].records[-1])

    def _take_effect(
        self, messages: Sequence[Message], positions: Positions, producer: tuple[str, int] | None
    ) -> None:
        if producer is not None and producer[0] in self._bewildered:
            # Kafka's OUT_OF_ORDER_SEQUENCE_NUMBER: what this producer wrote last is not there.
            raise BusError("out of sequence: records of this producer are missing")
        super()._take_effect(messages, positions, producer)
        now_s = self.clock.now_s()
        self._positions += [(now_s, place, offset) for place, offset in positions.items()]

    def ring(self) -> None:
        """Wake all who wait for records."""
        self._doorbell.ring_all()

    def forget_offsets(self, group: str) -> None:
        """Lose where a group has read to, as after its retention."""
        self._positions = [one for one in self._positions if one[1][0] != group]
        self._committed = {place: offset for _, place, offset in self._positions}

    def lose(self, since_s: Mapping[str, float]) -> None:
        """Lose what was stored since a moment, by topic, and where groups read to since the first.

        So does a broker of one copy that loses its power before it has flushed, each partition
        for itself; and one that is restored from a copy, all from one moment on.
        """
        for topic, cut_s in since_s.items():
            stored = self._stored.get(topic)
            gone = [one for one in stored.records if one.time_s >= cut_s] if stored else []
            if stored is None or not gone:
                continue
            stored.keep([one for one in stored.records if one.time_s < cut_s])
            stored.next = gone[0].offset
            self.ever[topic] = [one for one in self.ever[topic] if one.time_s < cut_s]
            self.lost[topic] += gone
            self._go_back(topic, stored.next)
        self._positions = [one for one in self._positions if one[0] < min(since_s.values())]
        self._committed = {place: offset for _, place, offset in self._positions}
        self._bewildered.update(self._epochs)
        self.losses.append(self.clock.now_s())

    def recreate(self, topic: str) -> None:
        """Lose all of a topic, and begin it anew."""
        stored = self._stored.pop(topic, None)
        if stored is not None:
            self.lost[topic] += stored.records
            # What retention had taken before was not lost.
            gone = {id(one) for one in stored.records}
            self.ever[topic] = [one for one in self.ever[topic] if id(one) not in gone]
            self._positions = [one for one in self._positions if one[1][1] != topic]
            self._committed = {place: offset for _, place, offset in self._positions}
            self._go_back(topic, 0)

    def _go_back(self, topic: str, end: int) -> None:
        """Let who has read further read on from here: a client learns that a log was cut."""
        for link in self._links:
            link.go_back(topic, end)

    def stored(self, topic: str, share: float) -> Record | None:
        """Give the record that this share of a topic's records come before."""
        stored = self._stored.get(topic)
        return (
            stored.records[int(share * len(stored.records))] if stored and stored.records else None
        )

    async def join(
        self, link: "Connection", group: str, topics: Sequence[str], keys: Sequence[str] | None
    ) -> LogConsumer:
        """Let a connection read on where its group stopped; those of the dead are hung up."""
        for other in self._links:
            if not other.alive:
                await other.hang_up()
        self._links = [other for other in self._links if other.alive and other is not link]
        self._links.append(link)
        committed = {topic: self._committed.get((group, topic), 0) for topic in topics}
        return LogConsumer(link, self._doorbell, group, committed, keys)

    def open_producer(self, link: "Connection", producer_id: str) -> LogProducer:
        """Give a producer id to a connection, fencing who had it."""
        self._bewildered.discard(producer_id)
        epoch = self._epochs[producer_id] = self._epochs.get(producer_id, 0) + 1
        return LogProducer(link, producer_id, epoch)


class Connection:
    """The bus of one process."""

    def __init__(self, broker: Broker, process: Process, rng: np.random.Generator) -> None:
        self.clock = process.clock
        self.closed = False
        self.cut_until_s = 0.0
        #: The chance that an answer is lost, that a request takes long, and that the process dies
        #: at either end of it.
        self.lost_answers = self.slow = self.deadly = 0.0
        self._broker, self._process, self._rng = broker, process, rng
        self._consumers: list[LogConsumer] = []

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.alive

    async def hang_up(self) -> None:
        """Close what reads through it: of a process, or a turn at leading, that is no more."""
        for consumer in self._consumers:
            await consumer.close()
        self._consumers.clear()

    def go_back(self, topic: str, end: int) -> None:
        """Read on from the end of a topic, where that is no more what it was."""
        for consumer in self._consumers:
            if topic in consumer._positions:
                consumer._positions[topic] = min(consumer._positions[topic], end)

    @property
    def cut(self) -> bool:
        """Whether nothing goes through now."""
        return self._process.world.now_s() < self.cut_until_s

    def mend(self) -> None:
        """Let everything through again."""
        self.cut_until_s = 0.0
        self._broker.ring()

    # --- the way there and back ---

    async def _ask(self, what: Callable[[], Awaitable[T]]) -> T:
        await self._travel()
        answer = await what()
        await self._travel()
        if self._rng.random() < self.lost_answers and not self._process.leaving:
            raise BusError("the connection broke before the answer came")
        return answer

    async def _travel(self) -> None:
        process = self._process
        if self.deadly and self._rng.random() < self.deadly:
            process.kill()
            if process.died is not None:
                process.died(process)
        await process.go_on()
        if process.leaving:
            if self.cut:
                raise BusError("no connection")
            return
        if self.slow and self._rng.random() < self.slow:
            await self._rest(float(self._rng.exponential(2.0)))
        if self.cut:
            await self._rest(PATIENCE_S)
            if self.cut:
                raise BusError(f"no answer for {PATIENCE_S:.0f} s")

    async def _rest(self, seconds: float) -> None:
        await self._process.world.sleep_until(self._process.world.now_s() + seconds)
        await self._process.go_on()

    # --- what a bus does ---

    async def publish(self, *messages: Message) -> None:
        await self._ask(lambda: self._broker.append(messages, {}, None))

    async def append(
        self, messages: Sequence[Message], positions: Positions, producer: tuple[str, int] | None
    ) -> None:
        await self._ask(lambda: self._broker.append(messages, positions, producer))

    def fetch(
        self, topic: str, start: int, keys: Sequence[str] | None, limit: int
    ) -> tuple[list[Record], int]:
        return ([], start) if self.cut else self._broker.fetch(topic, start, keys, limit)

    def count(self, topic: str, start: int, keys: Sequence[str] | None) -> int:
        return self._broker.count(topic, start, keys)

    def next_due_s(self) -> float | None:
        due_s = self._broker.next_due_s()
        wait_s = self.cut_until_s if self.cut else due_s
        if wait_s is None:
            return None
        return self.clock.now_s() + max(1.0, wait_s - self._process.world.now_s())

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> LogConsumer:
        await self._travel()
        consumer = await self._broker.join(self, group, topics, keys)
        self._consumers.append(consumer)
        return consumer

    async def producer(self, producer_id: str) -> LogProducer:
        await self._travel()
        return self._broker.open_producer(self, producer_id)

    async def read(
        self, topic: str, offset: int = 0, end: int | None = None
    ) -> AsyncIterator[Record]:
        await self._travel()
        async for record in self._broker.read(topic, offset, end):
            yield record

    async def latest(self, topic: str, key: str) -> Record | None:
        return await self._ask(lambda: self._broker.latest(topic, key))

    async def last(self, topic: str) -> Record | None:
        return await self._ask(lambda: self._broker.last(topic))

    async def end(self, topic: str) -> int:
        return await self._ask(lambda: self._broker.end(topic))

    async def prune(self, now_s: float) -> int:
        return await self._ask(lambda: self._broker.prune(now_s))

    async def drain(self) -> None:
        """Return: nothing that was published is on its way."""

    async def close(self) -> None:
        self.closed = True
