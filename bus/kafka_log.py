"""A log on Kafka, read like one in a file: what is stored when it is opened, in order of offset.

Offsets on Kafka have gaps, where transactions ended. They are kept as they are: a snapshot names
the offset of the journal it was written at, and a copy must mean the same by it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Self

from bus.clock import SystemClock
from bus.contract import Record, Unreadable
from bus.kafka import KafkaBus
from bus.kafka_namespaces import stored_topics
from bus.logfile import Head
from bus.options import KafkaOptions
from schemas.topics import ALL_TOPICS, EVENTS, REQUESTS, TELEMETRY

#: Records taken from Kafka at a time.
_PAGE = 1000
#: Each transaction takes an offset of its own at its end, so a record may take two.
_OFFSETS_PER_RECORD = 2
_READ_BY_SCHEDULERS = (REQUESTS.name, EVENTS.name, TELEMETRY.name)


class KafkaLog:
    """One cell's records on Kafka. Nothing is written there, and no topic is made."""

    def __init__(self, options: KafkaOptions, cell: str = "default") -> None:
        self.path = options.address
        self._cell = cell
        self._runner = asyncio.Runner()
        self._bus = KafkaBus.open(options, SystemClock(), cell, makes_topics=False)
        try:
            topics = self._runner.run(stored_topics(options))
            if not topics:
                raise Unreadable(f"{self.path} holds no topic of Tidegate; name another namespace")
            self.head = self._runner.run(self._read_head(topics))
        except BaseException:
            self.__exit__()
            raise

    async def _read_head(self, topics: list[str]) -> Head:
        ends = await self._bus.ends([name for name in ALL_TOPICS if name in topics])
        group, positions = f"scheduler-{self._cell}", list[tuple[str, str, int]]()
        if read := [name for name in _READ_BY_SCHEDULERS if name in topics]:
            consumer = await self._bus.consumer(group, read)
            positions = [(group, topic, end) for topic, end in consumer.positions.items()]
            await consumer.close()
        return Head({name: end for name, end in ends.items() if end}, positions)

    def verify(self) -> int:
        """Read the whole log, whose checksums Kafka's client compares; give how many records."""
        return sum(1 for _ in self.records())

    def records(self, topic: str | None = None) -> Iterator[Record]:
        for name in self.head.topics:
            if topic in (None, name):
                yield from self._since(name, 0)

    def last(self, topic: str, count: int) -> list[Record]:
        end = self.head.topics.get(topic, 0)
        reach = count * _OFFSETS_PER_RECORD
        while True:
            found = list(deque(self._since(topic, max(0, end - reach)), maxlen=count))
            if len(found) == count or reach >= end:
                return found
            reach *= 4

    def _since(self, topic: str, offset: int) -> Iterator[Record]:
        end = self.head.topics.get(topic, 0)
        if offset >= end:
            return
        stored = self._bus.read(topic, offset)
        while page := self._runner.run(_page(stored)):
            for record in page:
                if record.offset >= end:
                    return
                yield record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._runner.run(self._bus.close())
        finally:
            self._runner.close()


async def _page(stored: AsyncIterator[Record]) -> list[Record]:
    page: list[Record] = []
    async for record in stored:
        page.append(record)
        if len(page) == _PAGE:
            break
    return page
