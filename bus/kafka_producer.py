"""Writing to Kafka: publishing in order with back-pressure, and transactions."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from bus.contract import BusError, Closed, Consumer, Message
from bus.kafka_client import Home, abandon, errors_named, open_producer, to_kafka
from bus.kafka_consumer import KafkaConsumer
from bus.transactions import Positions, SingleProducer

#: A publish that is not stored within this long, and as long as its bytes may take, fails.
STORE_S = 6.0
_BYTES_PER_S = 4e6
#: A transaction that takes longer is given up: what became of it is unknown.
COMMIT_S = 10.0
#: The broker aborts the transaction of a process that died, unless a successor does so before;
#: until then nobody reads past it. Longer than we would go on ourselves, with the largest entry of
#: a journal, too: the broker would fence us while we still write.
TRANSACTION_S = 60.0


def commit_limit_s(size: int) -> float:
    """Give how long we wait for a transaction of so many bytes: less than the broker does."""
    return min(COMMIT_S + size / _BYTES_PER_S, TRANSACTION_S - STORE_S)


class Publisher:
    """Stores messages in the order in which `store` was called, at most so many at once."""

    def __init__(self, home: Home, in_flight_max: int) -> None:
        #: How many publishes wait for storage.
        self.in_flight = 0
        self._home = home
        self._slots = asyncio.Semaphore(in_flight_max)
        self._turn = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def store(self, messages: Sequence[Message]) -> None:
        """Store messages; see `Bus.publish`."""
        async with self._slots:
            self.in_flight += 1
            try:
                await self._store(messages)
            finally:
                self.in_flight -= 1

    async def _store(self, messages: Sequence[Message]) -> None:
        size = sum(len(message.value or b"") for message in messages)
        names = ", ".join(sorted({message.topic for message in messages}))
        producer = None
        try:
            with errors_named(f"store {len(messages)} records of {names} in Kafka"):
                async with asyncio.timeout(STORE_S + size / _BYTES_PER_S):
                    async with self._turn:
                        if self._producer is None:
                            self._producer = await open_producer(self._home.options, None)
                        producer = self._producer
                        stored = await _begin(producer, self._home, messages)
                    self._home.wrote(_ends(messages, await _all(stored)))
        except BusError:
            self._replace(producer)
            raise

    def _replace(self, producer: AIOKafkaProducer | None) -> None:
        """Leave a producer that failed: it would go on trying what was given up long ago."""
        if producer is not None and producer is self._producer:
            self._producer = None
            leaving = asyncio.create_task(abandon(producer))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Stop."""
        self._replace(self._producer)
        if self._leaving:
            await asyncio.wait(self._leaving)


async def _begin(
    producer: AIOKafkaProducer, home: Home, messages: Sequence[Message]
) -> list["asyncio.Future[Any]"]:
    now_s = home.clock.now_s()
    stored: list[asyncio.Future[Any]] = []
    for message in messages:
        future = await producer.send(
            home.options.topic(message.topic),
            partition=home.partition,
            **to_kafka(message, now_s),
        )
        # Whoever waits for it may be gone by the time it fails.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        stored.append(future)
    return stored


async def _all(stored: Sequence["asyncio.Future[Any]"]) -> list[int]:
    """Wait for all; give their offsets."""
    if stored:
        await asyncio.wait(stored)
    return [future.result().offset for future in stored]


def _ends(messages: Sequence[Message], offsets: Sequence[int]) -> dict[str, int]:
    # In order, so the last one of a topic stays.
    return {message.topic: offset + 1 for message, offset in zip(messages, offsets, strict=True)}


class KafkaProducer(SingleProducer):
    """A `Producer` that holds a transactional id.

    After a transaction that failed on its way, what became of it is unknown; so this producer is
    of no use any more: open the id again, which settles it one way or the other, and only then
    ask a new consumer where to go on.
    """

    def __init__(self, home: Home, producer_id: str, opened: AIOKafkaProducer) -> None:
        super().__init__(producer_id)
        self.home = home
        self._client = opened
        self._broken: BusError | None = None
        self._leaving: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, home: Home, producer_id: str) -> Self:
        """Fence the former holder; return when nothing of it is on its way."""
        return cls(
            home,
            producer_id,
            await open_producer(home.options, home.options.topic(producer_id), TRANSACTION_S),
        )

    def positions_of(self, consumer: Consumer) -> Positions | None:
        if not isinstance(consumer, KafkaConsumer) or consumer.home is not self.home:
            return None
        return {(consumer.group, topic): at for topic, at in consumer.positions.items()}

    async def commit(self, messages: Sequence[Message], positions: Positions) -> None:
        """Let records and positions take effect together.

        Raises:
            Fenced: the id was opened elsewhere.
            BusError: it failed, or took too long; see the class.
        """
        self.home.check(messages)
        if self._broken is not None:
            raise type(self._broken)(str(self._broken))
        if not messages and not positions:
            return
        size = sum(len(message.value or b"") for message in messages)
        try:
            with errors_named(f"commit a transaction of producer {self._id!r}"):
                async with asyncio.timeout(commit_limit_s(size)):
                    await self._commit(messages, positions)
        except BaseException as error:
            self._broken = (
                error
                if isinstance(error, BusError)
                else BusError(f"a transaction of producer {self._id!r} was cut off; open it again")
            )
            self._leave()
            raise

    async def _commit(self, messages: Sequence[Message], positions: Positions) -> None:
        by_group: dict[str, dict[str, int]] = {}
        for (group, topic), position in positions.items():
            by_group.setdefault(group, {})[topic] = position
        await self._client.begin_transaction()
        offsets = await _all(await _begin(self._client, self.home, messages))
        for group, by_topic in by_group.items():
            await self._client.send_offsets_to_transaction(
                {
                    TopicPartition(self.home.options.topic(topic), self.home.partition): (
                        OffsetAndMetadata(position, "")
                    )
                    for topic, position in by_topic.items()
                },
                self.home.options.topic(group),
            )
        await self._client.commit_transaction()
        # The commit itself is a record, too.
        self.home.wrote({t: end + 1 for t, end in _ends(messages, offsets).items()})
        for group, by_topic in by_group.items():
            self.home.committed(group, by_topic)

    def _leave(self) -> None:
        if self._leaving is None:
            self._leaving = asyncio.create_task(abandon(self._client))

    async def close(self) -> None:
        """Stop; a transaction that is open is aborted by the broker or by a successor."""
        self._broken = self._broken or Closed("the bus is closed; open another")
        self._leave()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
