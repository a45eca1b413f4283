"""Reading from Kafka: a consumer that waits by the bus's clock while records come by real time."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from bus.contract import BusError, Closed, Record
from bus.kafka_client import REQUEST_S, Home, errors_named, from_kafka, open_consumer, stop

#: A consumer that got nothing for so long though there is something is made anew.
WATCHDOG_S = 30.0
#: How long one look for records takes at most; what it passes without a record is noted then.
_LOOK_S = 0.2
_PAUSE_S = 0.5
#: Fetching rests while this much waits to be polled.
_RECORDS_MAX = 2000
_BYTES_MAX = 16 * 1024 * 1024
_PAGE = 500
#: Committed positions of our own transactions show within this long.
_SETTLE_S = 5.0


class KafkaConsumer:
    """A `Consumer` of one partition of each topic; nobody else takes it over by a rebalance."""

    def __init__(
        self,
        home: Home,
        group: str,
        starts: Mapping[str, int],
        ends: Mapping[str, int],
        keys: Sequence[str] | None,
        client: AIOKafkaConsumer,
        watchdog_s: float,
    ) -> None:
        self.home = home
        self.group = group
        self._topics = list(starts)
        #: By topic: the next record to hand over while any wait, and where fetching got to.
        self._next = dict(starts)
        self._reached = dict(starts)
        #: By topic, its end when it was last seen.
        self._ends = dict(ends)
        self._waiting: dict[str, deque[Record]] = {topic: deque() for topic in starts}
        self._records = 0
        self._bytes = 0
        self._even = 0  # looks in a row at whose end nothing was left of any topic
        self._keys = None if keys is None else frozenset(keys)
        self._client = client
        self._watchdog_s = watchdog_s
        self._waiter = home.clock.waiter()
        self._room = asyncio.Event()
        self._room.set()
        self._error: BusError | None = None
        self.closed = False
        self._partitions = {
            TopicPartition(home.options.topic(topic), home.partition): topic for topic in starts
        }
        self._fetching = asyncio.create_task(self._fetch())
        self._fetching.add_done_callback(self._fetching_ended)

    @classmethod
    async def open(
        cls,
        home: Home,
        group: str,
        topics: Sequence[str],
        keys: Sequence[str] | None,
        expected: Mapping[str, int],
        *,
        watchdog_s: float = WATCHDOG_S,
    ) -> Self:
        """Join a group; `expected` are positions of it known to be committed, perhaps just now."""
        begins = await home.begins(topics)
        client = await open_consumer(home.options, home.options.topic(group))
        try:
            with errors_named(f"ask for the positions of group {group!r}"):
                async with asyncio.timeout(2 * _SETTLE_S):
                    committed = await _committed(client, home, topics, expected)
            starts = {}
            for topic in topics:
                starts[topic] = max(committed.get(topic, 0), begins[topic])
                home.resets += committed.get(topic, starts[topic]) < starts[topic]
            ends = await home.ends(topics)
            consumer = cls(home, group, starts, ends, keys, client, watchdog_s)
            consumer._assign()
        except BaseException:
            await stop(client)
            raise
        return consumer

    @property
    def positions(self) -> Mapping[str, int]:
        return {
            topic: self._next[topic] if self._waiting[topic] else self._reached[topic]
            for topic in self._topics
        }

    @property
    def behind(self) -> bool:
        # The end of a topic that has just been fetched again is only known at the next look.
        return self._records > 0 or self._even < 2

    async def poll(self, max_records: int = 1000, timeout_s: float | None = None) -> list[Record]:
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}; ask for at least one")
        clock = self.home.clock
        deadline_s = None if timeout_s is None else clock.now_s() + timeout_s
        await asyncio.sleep(0)  # a reader with a long backlog must not keep others from running
        while True:
            if records := self._take(max_records):
                return records
            if not await self._waiter.wait(deadline_s):
                return self._take(max_records)

    def _take(self, max_records: int) -> list[Record]:
        self._check_open()
        found: list[Record] = []
        for topic in self._topics:
            waiting = self._waiting[topic]
            if count := min(len(waiting), max_records - len(found)):
                found += [waiting.popleft() for _ in range(count)]
                self._next[topic] = found[-1].offset + 1
        self._records -= len(found)
        self._bytes -= sum(_size(record) for record in found)
        if self._records < _RECORDS_MAX and self._bytes < _BYTES_MAX:
            self._room.set()
        if not found and self._error is not None:
            error = self._error
            if not self._fetching.done():
                self._error = None  # it goes on trying
            raise error
        return found

    async def commit(self) -> None:
        self._check_open()
        positions = self.positions
        with errors_named(f"commit the positions of group {self.group!r}"):
            async with asyncio.timeout(2 * REQUEST_S):
                await self._client.commit(
                    {
                        partition: OffsetAndMetadata(positions[topic], "")
                        for partition, topic in self._partitions.items()
                    }
                )

    async def lag(self) -> int:
        """Count offsets after the present positions; some may be taken by no record, or others'."""
        self._check_open()
        ends = await self.home.ends(self._topics)
        return sum(max(0, ends[topic] - at) for topic, at in self.positions.items())

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._waiter.notify()
        self._fetching.cancel()
        await asyncio.wait([self._fetching])
        await stop(self._client)

    def wake(self) -> None:
        """Let a waiting poll see that the bus was closed."""
        self._waiter.notify()

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the consumer of group {self.group!r} is closed; open another")
        if self.home.closed:
            raise Closed("the bus is closed; open it again")

    # --- fetching, by real time ---------------------------------------------------------------

    def _assign(self) -> None:
        self._client.assign(list(self._partitions))
        for partition, topic in self._partitions.items():
            self._client.seek(partition, self._reached[topic])

    async def _fetch(self) -> None:
        time_s = asyncio.get_running_loop().time
        moved_s = time_s()
        while True:
            if not self._room.is_set():
                await self._room.wait()
                moved_s = time_s()
            try:
                with errors_named(f"read for group {self.group!r}"):
                    moved = await self._look()
            except BusError as error:
                self._tell(error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if moved:
                moved_s = time_s()
            elif time_s() - moved_s > self._watchdog_s:
                moved_s = time_s()
                # A broker that is away is no reason to disturb whoever polls.
                with contextlib.suppress(BusError):
                    ends = await self.home.ends(self._topics)
                    if any(ends[topic] > self._reached[topic] for topic in self._topics):
                        await self._recreate()

    def _tell(self, error: BusError) -> None:
        self._error = error
        self._waiter.notify()

    def _fetching_ended(self, fetching: "asyncio.Task[None]") -> None:
        if not fetching.cancelled() and (error := fetching.exception()) is not None:
            self._tell(
                BusError(f"reading for group {self.group!r} ended ({error!r}); open another")
            )

    async def _look(self) -> bool:
        """Fetch some records; False if there were none and nothing was passed either."""
        self._put_first_things_first()
        try:
            # The limit is only for a client that hangs.
            async with asyncio.timeout(self._watchdog_s):
                found = await self._client.getmany(
                    timeout_ms=int(_LOOK_S * 1000), max_records=_PAGE
                )
        except OffsetOutOfRangeError as error:
            await self._reset([self._partitions[partition] for partition in error.args[0]])
            return True
        except TimeoutError:
            self._even = 0
            return False
        before = dict(self._reached)
        for partition, records in found.items():
            topic = self._partitions[partition]
            for one in records:
                record = from_kafka(topic, one)
                if self._keys is None or record.key in self._keys:
                    if not self._waiting[topic]:
                        self._next[topic] = record.offset
                    self._waiting[topic].append(record)
                    self._records += 1
                    self._bytes += _size(record)
            self._reached[topic] = records[-1].offset + 1
        # Ends of transactions, and records of aborted ones, are passed without being given.
        for partition, topic in self._partitions.items():
            self._reached[topic] = max(self._reached[topic], await self._client.position(partition))
            self._ends[topic] = self._client.last_stable_offset(partition) or self._ends[topic]
        even = all(self._reached[topic] >= self._ends[topic] for topic in self._topics)
        self._even = self._even + 1 if even else 0
        if self._records >= _RECORDS_MAX or self._bytes >= _BYTES_MAX:
            self._room.clear()
        if self._records:
            self._waiter.notify()
        return before != self._reached

    def _put_first_things_first(self) -> None:
        """Fetch a topic only while those before it are read to their ends."""
        caught_up = True
        for partition, topic in self._partitions.items():
            if caught_up:
                self._client.resume(partition)
            else:
                self._client.pause(partition)
            caught_up = caught_up and self._reached[topic] >= self._ends[topic]

    async def _reset(self, topics: Sequence[str]) -> None:
        """Go on with the oldest record: retention removed what was next."""
        for topic, begin in (await self.home.begins(topics)).items():
            self.home.resets += 1
            self._reached[topic] = begin
            self._client.seek(
                TopicPartition(self.home.options.topic(topic), self.home.partition), begin
            )

    async def _recreate(self) -> None:
        client = await open_consumer(self.home.options, self.home.options.topic(self.group))
        self._client, old = client, self._client
        self._assign()
        self.home.recreated += 1
        await stop(old)


async def _committed(
    client: AIOKafkaConsumer, home: Home, topics: Sequence[str], expected: Mapping[str, int]
) -> dict[str, int]:
    found: dict[str, int] = {}
    until_s = asyncio.get_running_loop().time() + _SETTLE_S
    for topic in topics:
        partition = TopicPartition(home.options.topic(topic), home.partition)
        while True:
            position = await client.committed(partition)
            if position is not None:
                found[topic] = position
            # A transaction's end reaches the positions a moment after its commit returned.
            late = (position or 0) < expected.get(topic, 0)
            if not late or asyncio.get_running_loop().time() > until_s:
                break
            await asyncio.sleep(0.005)
    return found


def _size(record: Record) -> int:
    return len(record.value or b"") + 100
