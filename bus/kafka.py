"""The bus on Apache Kafka: one cell of it, which is one partition of each topic.

Connections are made when they are first needed; topics and partitions that are missing are made
then. What the contract promises, Kafka's own means keep: an idempotent producer, transactions
with a transactional id that fences, readers of committed records only.

Offsets ascend but have gaps: the end of a transaction takes one, and so do the records of an
aborted one. `lag` counts offsets, and is therefore no less than the number of records.
A publish that fails may have stored a part of its messages, or all.
Retention and compaction are the broker's, by its settings; `prune` does nothing.
Transactions that follow each other within about 10 ms cost 20 ms more: Kafka is still completing
the last one. Put more into one rather than more of them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from bus.clock import Clock
from bus.contract import BusError, Closed, Message, Record, Unfit
from bus.kafka_client import errors_named, from_kafka, open_consumer, stop
from bus.kafka_consumer import WATCHDOG_S, KafkaConsumer
from bus.kafka_producer import KafkaProducer, Publisher
from bus.kafka_topics import make_topics
from bus.log import Pending, check_message
from bus.options import KafkaOptions
from schemas.topics import ALL_TOPICS, HEADROOM_BYTES

#: What was written here is readable within this long, unless a dead process's transaction,
#: begun before it, must be aborted by the broker first.
_READABLE_S = 5.0
#: A scan that finds nothing for so long gives up.
_SCAN_S = 30.0


class KafkaBus:
    """A `Bus` on one cell of a Kafka cluster. Make it by `open`."""

    def __init__(
        self,
        options: KafkaOptions,
        clock: Clock,
        cell: str,
        in_flight_max: int,
        watchdog_s: float,
        makes_topics: bool,
    ) -> None:
        self.options = options
        self.clock = clock
        self.cell = cell
        self.partition = options.partition(cell)
        self.closed = False
        self._closing: asyncio.Task[None] | None = None
        #: Nothing is on its way any more, and the reader is stopped.
        self._stopped = False
        #: How often a consumer was found stuck and made anew.
        self.recreated = 0
        #: How often retention removed records before a consumer came to them.
        self.resets = 0
        self._watchdog_s, self._makes_topics = watchdog_s, makes_topics
        self._connecting = asyncio.Lock()
        self._reader: AIOKafkaConsumer | None = None
        self._spare: AIOKafkaConsumer | None = None
        self._publisher = Publisher(self, in_flight_max)
        self._consumers: list[KafkaConsumer] = []
        self._producers: list[KafkaProducer] = []
        self._pending = Pending()
        #: Questions to the reader, which would be waited for once it is stopped.
        self._asking: set[asyncio.Task[dict[TopicPartition, int]]] = set()
        #: Own writes must show in own reads: ends by topic, positions by group and topic.
        self._written: dict[str, int] = {}
        self._positions: dict[str, dict[str, int]] = {}

    @classmethod
    def open(
        cls,
        options: KafkaOptions,
        clock: Clock,
        cell: str = "default",
        *,
        in_flight_max: int = 1000,
        watchdog_s: float = WATCHDOG_S,
        makes_topics: bool = True,
    ) -> Self:
        """Open a cell; nothing is sent before it is first used. `makes_topics` makes what lacks.

        Raises:
            BusError: the cell is not among the options' cells.
        """
        return cls(options, clock, cell, in_flight_max, watchdog_s, makes_topics)

    # --- figures ------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many publishes wait for storage."""
        return self._publisher.in_flight

    # --- writing ------------------------------------------------------------------------------

    async def publish(self, *messages: Message) -> None:
        self.check(messages)
        self._check_open()
        with self._pending:
            await self._connected()
            await self._publisher.store(messages)

    def check(self, messages: Sequence[Message]) -> None:
        """Refuse messages that the broker would not take, or that would not come back the same.

        Raises:
            Unfit: one of them is unfit, naming what is wrong.
        """
        for message in messages:
            check_message(message)
            topic = ALL_TOPICS.get(message.topic)
            if topic is None:
                raise Unfit(f"{message.topic!r} is no topic; use one of schemas.topics")
            size = len(message.value or b"")
            if size > topic.record_max_bytes - HEADROOM_BYTES // 2:
                raise Unfit(
                    f"message to {message.topic}: {size} bytes are too many; "
                    f"a record may have {topic.record_max_bytes - HEADROOM_BYTES}"
                )

    async def producer(self, producer_id: str) -> KafkaProducer:
        self._check_open()
        await self._connected()
        producer = await KafkaProducer.open(self, producer_id)
        self._producers.append(producer)
        if self.closed:
            await producer.close()
            self._check_open()
        return producer

    def wrote(self, ends: Mapping[str, int]) -> None:
        """See `Home`."""
        for topic, end in ends.items():
            self._written[topic] = max(end, self._written.get(topic, 0))

    def committed(self, group: str, positions: Mapping[str, int]) -> None:
        """See `Home`."""
        self._positions.setdefault(group, {}).update(positions)

    # --- reading ------------------------------------------------------------------------------

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> KafkaConsumer:
        self._check_open()
        for topic in topics:
            if topic not in ALL_TOPICS:
                raise BusError(f"{topic!r} is no topic; use one of schemas.topics")
        await self._connected()
        consumer = await KafkaConsumer.open(
            self,
            group,
            topics,
            keys,
            self._positions.get(group, {}),
            watchdog_s=self._watchdog_s,
        )
        self._consumers = [one for one in self._consumers if not one.closed]
        self._consumers.append(consumer)
        if self.closed:
            await consumer.close()
            self._check_open()
        return consumer

    async def read(
        self, topic: str, offset: int = 0, end: int | None = None
    ) -> AsyncIterator[Record]:
        self._check_open()
        if topic in ALL_TOPICS:
            there = await self.end(topic)
            end = there if end is None else min(end, there)
            begin = max(offset, (await self.begins([topic]))[topic])
            async with self._scanner() as scan:
                async for record in self._scan(scan, topic, begin, end):
                    yield record

    async def latest(self, topic: str, key: str) -> Record | None:
        newest = await self._newest(topic, key)
        return None if newest is None or newest.value is None else newest

    async def last(self, topic: str) -> Record | None:
        return await self._newest(topic, None)

    async def _newest(self, topic: str, key: str | None) -> Record | None:
        """Look backwards from the end, in steps that grow."""
        self._check_open()
        if topic not in ALL_TOPICS:
            return None
        high = await self.end(topic)
        begin = (await self.begins([topic]))[topic]
        step = 16 if key is None else 128
        async with self._scanner() as scan:
            while high > begin:
                low = max(begin, high - step)
                newest = None
                async for record in self._scan(scan, topic, low, high):
                    if key is None or record.key == key:
                        newest = record
                if newest is not None:
                    return newest
                high, step = low, 4 * step
        return None

    @contextlib.asynccontextmanager
    async def _scanner(self) -> AsyncIterator[AIOKafkaConsumer]:
        """Give a reader, which is kept for the next one: to open it costs more than most reads."""
        scan, self._spare = self._spare, None
        if scan is None:
            scan = await open_consumer(self.options, None)
        good = False
        try:
            yield scan
            good = True
        except GeneratorExit:  # whoever reads has enough
            good = True
            raise
        finally:
            if good and not self.closed and self._spare is None:
                scan.unsubscribe()  # it fetches nothing meanwhile
                self._spare = scan
            else:
                await stop(scan)

    async def _scan(
        self, scan: AIOKafkaConsumer, topic: str, low: int, high: int
    ) -> AsyncIterator[Record]:
        if low >= high:
            return
        partition = TopicPartition(self.options.topic(topic), self.partition)
        scan.assign([partition])
        scan.seek(partition, low)
        time_s = asyncio.get_running_loop().time
        position, moved_s = low, time_s()
        while position < high:
            with errors_named(f"read {topic}"):
                found = await scan.getmany(timeout_ms=50, max_records=1000)
                for record in found.get(partition, ()):
                    if record.offset >= high:
                        return
                    yield from_kafka(topic, record)
                before, position = position, await scan.position(partition)
            if position > before:
                moved_s = time_s()
            elif time_s() - moved_s > _SCAN_S:
                raise BusError(f"Kafka gives no more of {topic} after {position}; read again")

    async def end(self, topic: str) -> int:
        self._check_open()
        if topic not in ALL_TOPICS:
            return 0
        return (await self.ends([topic]))[topic]

    async def ends(self, topics: Sequence[str]) -> dict[str, int]:
        """See `Home`; what was written here is before them."""
        time_s = asyncio.get_running_loop().time
        until_s = time_s() + _READABLE_S
        while True:
            found = await self._offsets(topics, last=True)
            late = [topic for topic in topics if found[topic] < self._written.get(topic, 0)]
            if not late:
                return found
            if time_s() > until_s:
                for topic in late:  # it was lost, or made anew
                    del self._written[topic]
            await asyncio.sleep(0.003)

    async def begins(self, topics: Sequence[str]) -> dict[str, int]:
        """See `Home`."""
        return await self._offsets(topics, last=False)

    async def _offsets(self, topics: Sequence[str], *, last: bool) -> dict[str, int]:
        reader = await self._connected()
        partitions = {
            topic: TopicPartition(self.options.topic(topic), self.partition) for topic in topics
        }
        # The client learns all at once what it does not know; else it waits a while for each.
        for topic, _ in partitions.values():
            reader._client.add_topic(topic)
        ask = reader.end_offsets if last else reader.beginning_offsets
        try:
            with errors_named(f"ask how much {', '.join(topics)} hold"):
                found = await self._asked(ask(list(partitions.values())))
        except BusError:
            self._check_not_stopped()
            await self._check_there(reader, partitions.values())
            raise
        return {topic: found[partition] for topic, partition in partitions.items()}

    async def _asked(
        self, question: Coroutine[Any, Any, dict[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        """Wait for an answer; once the reader is stopped none comes, as `close` says at once."""
        asking = asyncio.create_task(question)
        self._asking.add(asking)
        try:
            return await asking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # who asked was cancelled
            self._check_not_stopped()
            raise
        finally:
            self._asking.discard(asking)

    async def _check_there(
        self, reader: AIOKafkaConsumer, partitions: Iterable[TopicPartition]
    ) -> None:
        """Name what is missing; aiokafka waits for it, and says only that it waited."""
        with errors_named("ask which topics there are"):
            there = await reader._client.fetch_all_metadata()
        for topic, partition in partitions:
            found = there.partitions_for_topic(topic)
            if not found or partition not in found:
                what = f"no partition {partition} of topic" if found else "no topic"
                raise BusError(
                    f"cell {self.cell}: Kafka has {what} {topic}; see that kafka.cells "
                    "and kafka.namespace are those of the scheduler, and start that: it makes them"
                )

    async def prune(self, now_s: float) -> int:
        self._check_open()
        return 0

    # --- life ---------------------------------------------------------------------------------

    async def _connected(self) -> AIOKafkaConsumer:
        async with self._connecting:
            self._check_not_stopped()
            if self._reader is None:
                if self._makes_topics:
                    await make_topics(self.options, self.clock, ALL_TOPICS)
                self._reader = await open_consumer(self.options, None)
                if self._stopped:  # meanwhile: nobody else stops it
                    await stop(self._reader)
                    self._check_not_stopped()
            return self._reader

    async def drain(self) -> None:
        await self._pending.drained()

    async def close(self) -> None:
        if self._closing is None:
            self.closed = True
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)  # whoever is cut off while it waits leaves nothing open

    async def _close(self) -> None:
        for consumer in self._consumers:
            consumer.wake()
        await self.drain()
        await asyncio.gather(
            *(consumer.close() for consumer in self._consumers),
            *(producer.close() for producer in self._producers),
            self._publisher.close(),
        )
        self._stopped = True
        for asking in self._asking:
            asking.cancel()
        for client in (self._reader, self._spare):
            if client is not None:
                await stop(client)

    def _check_not_stopped(self) -> None:
        if self._stopped:
            self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the bus is closed; open another")
