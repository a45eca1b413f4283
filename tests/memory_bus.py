"""The bus in memory: the whole contract in one process, with faults if asked.

Nothing outlives the process. Delayed messages need no task of their own: whoever uses the bus
first stores what is due by then, and consumers wait no longer than until the next one is due.
"""

import asyncio
import heapq
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from bus.clock import Clock
from bus.contract import Closed, Fenced, Message, Record
from bus.log import TOMBSTONE_S, Doorbell, LogConsumer, LogProducer, Pending, check_message, expired
from bus.transactions import Positions
from schemas.topics import ALL_TOPICS
from tests.message_faults import Faults

_offset = attrgetter("offset")


@dataclass(slots=True)
class _Stored:
    """The records of a topic, in order of offset; `by_key` holds the same ones."""

    next: int = 0
    records: list[Record] = field(default_factory=list)
    by_key: dict[str, list[Record]] = field(default_factory=dict)

    def since(self, start: int, keys: Sequence[str] | None) -> Iterable[Record]:
        if keys is None:
            return self.records[bisect_left(self.records, start, key=_offset) :]
        lists = (self.by_key.get(key, []) for key in keys)
        return heapq.merge(
            *(found[bisect_left(found, start, key=_offset) :] for found in lists), key=_offset
        )

    def keep(self, records: list[Record]) -> int:
        removed = len(self.records) - len(records)
        if removed:
            self.records = records
            self.by_key = {}
            for record in records:
                self.by_key.setdefault(record.key, []).append(record)
        return removed


@dataclass(slots=True, order=True)
class _Coming:
    """A message on its way."""

    due_s: float
    order: int
    message: Message = field(compare=False)
    held: bool = field(compare=False)


class MemoryBus:
    """A `Bus` that lives and dies with its process."""

    def __init__(
        self,
        clock: Clock,
        faults: Faults | None = None,
        *,
        in_flight_max: int = 1024,
    ) -> None:
        self.clock = clock
        self.faults = faults or Faults()
        self.closed = False
        #: How many publishes wait for storage.
        self.in_flight = 0
        self._slots = asyncio.Semaphore(in_flight_max)
        self._pending = Pending()
        self._stored: dict[str, _Stored] = {}
        self._committed: dict[tuple[str, str], int] = {}
        self._epochs: dict[str, int] = {}
        self._doorbell = Doorbell()
        self._coming: list[_Coming] = []
        self._last_due_s: dict[tuple[str, str], float] = {}
        self._sent: dict[tuple[str, str], int] = {}
        self._order = 0

    async def publish(self, *messages: Message) -> None:
        await self.append(messages, {}, None)

    async def append(
        self, messages: Sequence[Message], positions: Positions, producer: tuple[str, int] | None
    ) -> None:
        """Store records and positions together; see `bus.log.Log`."""
        for message in messages:
            check_message(message)
        self._check_open()
        with self._pending:
            async with self._slots:
                self.in_flight += 1
                try:
                    await self._store_slowly()
                    self._take_effect(messages, positions, producer)
                finally:
                    self.in_flight -= 1

    async def _store_slowly(self) -> None:
        if self.faults.storage_s > 0.0:
            await self.clock.sleep_until(self.clock.now_s() + self.faults.storage_s)
        else:
            await asyncio.sleep(0)  # as every other backend does, let others run

    def _take_effect(
        self, messages: Sequence[Message], positions: Positions, producer: tuple[str, int] | None
    ) -> None:
        if producer is not None and self._epochs[producer[0]] != producer[1]:
            raise Fenced(f"producer {producer[0]!r} was opened again elsewhere; stop this one")
        self._committed.update(positions)
        for message in messages:
            self._send(message)
        self._settle()

    def _send(self, message: Message) -> None:
        lane = (message.topic, message.key)
        nth = self._sent.get(lane, 0)
        self._sent[lane] = nth + 1
        now_s = self.clock.now_s()
        fate = self.faults.fate(message.topic, message.key, nth)
        for copy, delay_s in enumerate(fate.delays_s):
            held = fate.held and copy == 0
            due_s = now_s + (self.faults.delay_s if held else delay_s)
            if not self.faults.within_keys:
                due_s = max(due_s, self._last_due_s.get(lane, due_s))
                self._last_due_s[lane] = due_s
            self._order += 1
            heapq.heappush(self._coming, _Coming(due_s, self._order, message, held))
            if due_s > now_s:
                # So that whoever waits already learns until when.
                self._doorbell.ring(message.topic, (message.key,))

    def _settle(self, until_s: float | None = None) -> None:
        """Store what is due."""
        limit_s = self.clock.now_s() if until_s is None else until_s
        while self._coming and self._coming[0].due_s <= limit_s:
            coming = heapq.heappop(self._coming)
            self._store(coming.message, min(coming.due_s, self.clock.now_s()))
            if self.faults.reordering:
                self._release(coming)

    def _release(self, passed: _Coming) -> None:
        """Let go of what was held for a message like `passed` to overtake it."""
        topic, key = passed.message.topic, passed.message.key
        freed: set[tuple[str, float]] = set()
        for coming in self._coming:
            overtaken = coming.held and coming.message.topic == topic
            later = coming.order < passed.order  # only a message sent after it overtakes it
            if overtaken and later and (self.faults.within_keys or coming.message.key != key):
                freed.add((coming.message.key, coming.due_s))
        if not freed:
            return
        now_s = min(passed.due_s, self.clock.now_s())
        for coming in self._coming:
            # Whatever queued behind it, for the sake of order within the key, goes with it.
            if coming.message.topic == topic and (coming.message.key, coming.due_s) in freed:
                coming.due_s = now_s
        for freed_key in sorted({freed_key for freed_key, _ in freed}):
            self._last_due_s[topic, freed_key] = max(
                coming.due_s
                for coming in self._coming
                if coming.message.topic == topic and coming.message.key == freed_key
            )
        heapq.heapify(self._coming)

    def _store(self, message: Message, time_s: float) -> None:
        stored = self._stored.setdefault(message.topic, _Stored())
        record = Record(
            message.topic, stored.next, message.key, message.value, dict(message.headers), time_s
        )
        stored.next += 1
        stored.records.append(record)
        stored.by_key.setdefault(record.key, []).append(record)
        self._doorbell.ring(record.topic, (record.key,))

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> LogConsumer:
        self._check_open()
        committed = {topic: self._committed.get((group, topic), 0) for topic in topics}
        return LogConsumer(self, self._doorbell, group, committed, keys)

    async def producer(self, producer_id: str) -> LogProducer:
        self._check_open()
        epoch = self._epochs.get(producer_id, 0) + 1
        self._epochs[producer_id] = epoch
        return LogProducer(self, producer_id, epoch)

    def fetch(
        self, topic: str, start: int, keys: Sequence[str] | None, limit: int
    ) -> tuple[list[Record], int]:
        """Give records from `start` on; see `bus.log.Log`."""
        self._settle()
        stored = self._stored.get(topic)
        if stored is None or start >= stored.next:
            return [], start
        if keys is None:
            begin = bisect_left(stored.records, start, key=_offset)
            found = stored.records[begin : begin + limit]
        else:
            found = [r for r, _ in zip(stored.since(start, keys), range(limit), strict=False)]
        return found, found[-1].offset + 1 if len(found) == limit else stored.next

    def count(self, topic: str, start: int, keys: Sequence[str] | None) -> int:
        """Count the records from `start` on."""
        self._settle()
        stored = self._stored.get(topic)
        return 0 if stored is None else sum(1 for _ in stored.since(start, keys))

    def next_due_s(self) -> float | None:
        """When the next delayed message is due."""
        return self._coming[0].due_s if self._coming else None

    async def read(
        self, topic: str, offset: int = 0, end: int | None = None
    ) -> AsyncIterator[Record]:
        self._check_open()
        self._settle()
        stored = self._stored.get(topic)
        for record in [] if stored is None else list(stored.since(offset, None)):
            if end is not None and record.offset >= end:
                return
            yield record

    async def latest(self, topic: str, key: str) -> Record | None:
        self._check_open()
        self._settle()
        stored = self._stored.get(topic)
        records = [] if stored is None else stored.by_key.get(key, [])
        return records[-1] if records and records[-1].value is not None else None

    async def last(self, topic: str) -> Record | None:
        self._check_open()
        self._settle()
        stored = self._stored.get(topic)
        return stored.records[-1] if stored is not None and stored.records else None

    async def end(self, topic: str) -> int:
        self._check_open()
        self._settle()
        stored = self._stored.get(topic)
        return 0 if stored is None else stored.next

    async def prune(self, now_s: float) -> int:
        self._check_open()
        self._settle()
        removed = 0
        for name, stored in self._stored.items():
            topic = ALL_TOPICS.get(name)
            if topic is None:
                continue
            kept = stored.records
            if topic.retention_s is not None:
                old, _ = expired((r.time_s for r in kept), now_s - topic.retention_s, now_s)
                kept = kept[old:]
            if topic.compacted:
                newest = {record.key: record.offset for record in kept}
                kept = [
                    r
                    for r in kept
                    if newest[r.key] == r.offset
                    and (r.value is not None or r.time_s > now_s - TOMBSTONE_S)
                ]
            removed += stored.keep(kept)
        return removed

    async def drain(self) -> None:
        """Return when no publish waits; what faults still delay is stored at once."""
        await self._pending.drained()
        self._settle(float("inf"))

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        await self.drain()
        self._doorbell.ring_all()

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the bus is closed; open another")
