"""The bus in one SQLite file: durable, shared by several processes, no broker.

One thread writes (`sqlite_writer`); reads are short and happen in the event loop's thread. In
`power_loss` every commit is on the disk before `publish` returns; in `process_crash` it outlives
any process, and a power cut may take the last commits, whole ones only.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from bus import sqlite_prune
from bus.clock import Clock
from bus.contract import BusError, Closed, Message, Record
from bus.log import Doorbell, LogConsumer, LogProducer, Pending, check_message
from bus.sqlite_file import COLUMNS, connect, create, decode, errors_named, verify
from bus.sqlite_writer import Append, Outcome, Task, TopicRow, Work, Writer
from bus.transactions import Positions
from schemas.topics import ALL_TOPICS, Topic

Durability = Literal["power_loss", "process_crash"]
_SYNCHRONOUS = {"power_loss": "FULL", "process_crash": "NORMAL"}

#: How often, in real seconds, other processes' records are looked for.
WATCH_S = 0.05
#: Up to this many keys are looked up one by one; more are filtered out of a scan.
_KEYS_LOOKED_UP = 16
#: Records that are read at once: few at first, more while all of them are about so many bytes.
_PAGE_FIRST, _PAGE_MOST, _PAGE_BYTES = 32, 1000, 2 * 2**20


class SqliteBus:
    """A `Bus` on one file. Make it by `open` or `open_readonly`."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        reader: sqlite3.Connection,
        writing: sqlite3.Connection | None,
        in_flight_max: int,
        table: Mapping[str, Topic],
    ) -> None:
        self.path = path
        self.clock = clock
        self.closed = False
        #: How many publishes wait for storage.
        self.in_flight = 0
        self._reader = reader
        self._table = table
        self._topics: dict[str, TopicRow] = {}
        self._doorbell = Doorbell()
        self._slots = asyncio.Semaphore(in_flight_max)
        self._pending = Pending()
        self._results: dict[Work, asyncio.Future[int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._deaf = False  # the last look for other processes' records failed
        self._stopped = asyncio.Event()
        self._writer: Writer | None = None
        if writing is not None:
            self._writer = Writer(writing, path, table, self._committed, self._writer_stopped)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        clock: Clock,
        *,
        durability: Durability = "power_loss",
        in_flight_max: int = 1024,
        busy_timeout_s: float = 30.0,
        topics: Mapping[str, Topic] = ALL_TOPICS,
    ) -> Self:
        """Open the log at `path`, making it if there is none.

        Raises:
            Unreadable: the file is empty, foreign, damaged or of a newer version.
        """
        file = Path(path)
        if durability not in _SYNCHRONOUS:
            raise BusError(f"durability is {durability!r}; say power_loss or process_crash")
        if not file.exists():
            create(file)
        with contextlib.ExitStack() as opened, errors_named(file):
            writing = connect(file, readonly=False, busy_timeout_s=busy_timeout_s)
            opened.callback(writing.close)
            writing.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
            writing.execute("PRAGMA wal_autocheckpoint = 4000")
            reader = connect(file, readonly=False, busy_timeout_s=busy_timeout_s)
            opened.callback(reader.close)
            reader.execute("PRAGMA query_only = ON")
            reader.text_factory = bytes
            bus = cls(file, clock, reader, writing, in_flight_max, topics)
            opened.pop_all()
        return bus

    @classmethod
    def open_readonly(cls, path: str | os.PathLike[str], clock: Clock) -> Self:
        """Open an existing log to read it; the file is never changed.

        Raises:
            Unreadable: there is none, or it is empty, foreign, damaged or of a newer version.
        """
        reader = connect(Path(path), readonly=True, busy_timeout_s=5.0)
        reader.text_factory = bytes
        return cls(Path(path), clock, reader, None, 1, ALL_TOPICS)

    # --- writing ------------------------------------------------------------------------------

    async def publish(self, *messages: Message) -> None:
        for message in messages:
            check_message(message)
        await self.append(messages, {}, None)

    async def append(
        self, messages: Sequence[Message], positions: Positions, producer: tuple[str, int] | None
    ) -> None:
        """Store records and positions together; see `bus.log.Log`."""
        if messages or positions or producer is not None:
            await self._do(Append(messages, positions, producer, self.clock.now_s()))

    async def _do(self, work: Work) -> int:
        writer = self._check_writable()
        self._pending.begin()
        try:
            await self._slots.acquire()
        except BaseException:
            self._pending.end()
            raise
        self.in_flight += 1
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = self._loop.create_future()
        self._results[work] = future
        writer.put(work)
        return await future

    def _committed(self, outcome: Outcome) -> None:
        # In the writer's thread.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it who asked
                self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Outcome) -> None:
        # Readers first: a paced clock must count them as busy before any publisher goes to rest.
        for name, topic in outcome.topics.items():
            self._learn(topic)
            self._doorbell.ring(name, outcome.keys[name])
        for work, result in outcome.results:
            future = self._results.pop(work)
            self.in_flight -= 1
            self._slots.release()
            self._pending.end()
            if future.done():
                continue  # whoever asked was cancelled
            if isinstance(result, BusError):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def producer(self, producer_id: str) -> LogProducer:
        def claim(connection: sqlite3.Connection) -> int:
            (epoch,) = connection.execute(
                "INSERT INTO producers VALUES (?, 1)"
                " ON CONFLICT (id) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
                (producer_id,),
            ).fetchone()
            return int(epoch)

        return LogProducer(self, producer_id, await self._do(Task(claim)))

    async def prune(self, now_s: float) -> int:
        self._check_writable()
        self._refresh()
        removed = 0
        for name, row in sorted(self._topics.items()):
            topic = self._table.get(name)
            if topic is not None:
                for step in sqlite_prune.steps(row.id, topic, now_s):
                    removed += await self._do(Task(step))
        return removed

    # --- reading ------------------------------------------------------------------------------

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> LogConsumer:
        self._check_open()
        self._refresh()
        rows = self._query('SELECT topic, next FROM positions WHERE "group" = ?', (group,))
        known = {topic.decode(): position for topic, position in rows}
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        committed = {topic: known.get(topic, 0) for topic in topics}
        return LogConsumer(self, self._doorbell, group, committed, keys)

    def fetch(
        self, topic: str, start: int, keys: Sequence[str] | None, limit: int
    ) -> tuple[list[Record], int]:
        """Give records from `start` on; see `bus.log.Log`."""
        if self._deaf:
            self._refresh()  # who reads meets the error if it lasts
        row = self._topics.get(topic)
        if row is None or start >= row.next:
            return [], start
        records: list[Record] = []
        for source, values in _sources(row, keys):
            found = self._query(
                f"SELECT {COLUMNS} {source} AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?",
                (*values, start, row.next, limit),
            )
            records += [decode(topic, one) for one in found]
        if keys is not None:
            records.sort(key=lambda record: record.offset)
        if len(records) >= limit:
            return records[:limit], records[limit - 1].offset + 1
        return records, row.next

    def count(self, topic: str, start: int, keys: Sequence[str] | None) -> int:
        """Count the records from `start` on."""
        row = self._topics.get(topic)
        if row is None or start >= row.next:
            return 0
        total = 0
        for source, values in _sources(row, keys):
            ((found,),) = self._query(f"SELECT count(*) {source} AND offset >= ?", (*values, start))
            total += found
        return total

    def next_due_s(self) -> float | None:
        """Nothing here becomes readable by itself."""
        return None

    async def read(
        self, topic: str, offset: int = 0, end: int | None = None
    ) -> AsyncIterator[Record]:
        self._check_open()
        self._refresh()
        there = self._topics[topic].next if topic in self._topics else 0
        end, page = there if end is None else min(end, there), _PAGE_FIRST
        while offset < end:
            self._check_open()
            records, offset = self.fetch(topic, offset, None, min(page, end - offset))
            size = sum(len(record.value or b"") for record in records)
            page = min(_PAGE_MOST, 2 * page) if size < _PAGE_BYTES else max(1, page // 2)
            for record in records:
                if record.offset < end:
                    yield record

    async def latest(self, topic: str, key: str) -> Record | None:
        record = self._last(topic, (key,))
        return None if record is None or record.value is None else record

    async def last(self, topic: str) -> Record | None:
        return self._last(topic, None)

    def _last(self, topic: str, keys: tuple[str, ...] | None) -> Record | None:
        self._check_open()
        self._refresh()
        row = self._topics.get(topic)
        if row is None:
            return None
        ((source, values),) = _sources(row, keys)
        found = self._query(f"SELECT {COLUMNS} {source} ORDER BY offset DESC LIMIT 1", values)
        return decode(topic, found[0]) if found else None

    async def end(self, topic: str) -> int:
        self._check_open()
        self._refresh()
        row = self._topics.get(topic)
        return 0 if row is None else row.next

    def verify(self) -> int:
        """Check every record's checksum and the file's structure; give the number of records.

        Raises:
            Unreadable: the first thing wrong, naming topic and offset where it can.
        """
        self._check_open()
        return verify(self._reader, self.path)

    def _query(self, sql: str, values: Sequence[object] = ()) -> list[tuple]:  # type: ignore[type-arg]
        with errors_named(self.path):
            return self._reader.execute(sql, tuple(values)).fetchall()

    def _learn(self, topic: TopicRow) -> None:
        known = self._topics.get(topic.name)
        if known is None or topic.next > known.next:
            self._topics[topic.name] = topic

    def _refresh(self) -> None:
        """Learn how far the topics go by now, and wake the readers of those that grew."""
        rows = self._query("SELECT id, name, next, indexed, compacted FROM topics ORDER BY id")
        for topic_id, name_bytes, end, indexed, compacted in rows:
            topic = TopicRow(topic_id, name_bytes.decode(), end, indexed, compacted)
            known = self._topics.get(topic.name)
            since = 0 if known is None else known.next
            if end > since:
                self._learn(topic)
                self._wake(topic, since)

    def _wake(self, topic: TopicRow, since: int) -> None:
        keys: list[str] = []
        if self._doorbell.wants_keys:
            found = self._query(
                "SELECT DISTINCT key FROM records WHERE topic = ? AND offset >= ? ORDER BY key",
                (topic.id, since),
            )
            keys = [key.decode() for (key,) in found]
        self._doorbell.ring(topic.name, keys)

    async def _watch(self) -> None:
        """Notice what other processes append, again once a failure to look is over."""
        seen = None
        while True:
            try:
                version = self._query("PRAGMA data_version")
                if version != seen:
                    self._refresh()
                    seen = version
                self._deaf = False
            except BusError:
                self._deaf = True
                self._doorbell.ring_all()  # those who wait read for themselves
            await asyncio.sleep(WATCH_S)

    # --- the end ------------------------------------------------------------------------------

    async def drain(self) -> None:
        await self._pending.drained()

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        await self.drain()
        self._doorbell.ring_all()
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        self._reader.close()
        if self._writer is not None:
            self._loop = asyncio.get_running_loop()
            self._writer.stop()
            await self._stopped.wait()

    def _writer_stopped(self) -> None:
        # In the writer's thread.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopped.set)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the bus on {self.path} is closed; open it again")

    def _check_writable(self) -> Writer:
        self._check_open()
        if self._writer is None:
            raise BusError(f"{self.path} is open for reading only; use SqliteBus.open to write")
        return self._writer


def _sources(topic: TopicRow, keys: Sequence[str] | None) -> list[tuple[str, tuple[object, ...]]]:
    """Give what to select from to find the keys' records, each a query of its own."""
    by_offset = "FROM records WHERE topic = ?"
    if keys is None:
        return [(by_offset, (topic.id,))]
    if topic.indexed and len(keys) <= _KEYS_LOOKED_UP:
        # Left to itself, SQLite prefers the primary key and scans everybody's records.
        by_key = "FROM records INDEXED BY by_key WHERE topic = ? AND indexed = 1 AND key = ?"
        return [(by_key, (topic.id, key)) for key in keys]
    return [(f"{by_offset} AND key IN ({','.join('?' * len(keys))})", (topic.id, *keys))]
