"""The one thread that writes to a SQLite log: whatever has queued up goes into one commit."""

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bus.contract import BusError, Fenced, Message
from bus.sqlite_file import COLUMNS_WRITTEN, INSERT, Row, encode, errors_named
from bus.transactions import Positions
from schemas.topics import Topic

#: A commit takes no further work once it holds this many records.
GROUP_RECORDS = 256
#: Rows of one INSERT. Few statements, because each gives up and takes back Python's lock.
_ROWS = 64
_PLACES = "(" + ",".join("?" * COLUMNS_WRITTEN) + ")"
_PUT_TOPICS = "INSERT INTO topics VALUES %s ON CONFLICT (id) DO UPDATE SET next = excluded.next"
_PUT_POSITIONS = (
    "INSERT INTO positions VALUES %s"
    ' ON CONFLICT ("group", topic) DO UPDATE SET next = excluded.next'
)


@dataclass(slots=True)
class TopicRow:
    """A topic as the file knows it."""

    id: int
    name: str
    next: int
    #: Whether its records are found by key without a scan.
    indexed: int
    compacted: int


@dataclass(slots=True, eq=False)
class Append:
    """Records and positions to store together."""

    messages: Sequence[Message]
    positions: Positions
    producer: tuple[str, int] | None
    time_s: float


@dataclass(slots=True, eq=False)
class Task:
    """Anything else, in a transaction of its own."""

    run: Callable[[sqlite3.Connection], int]


Work = Append | Task


@dataclass(slots=True)
class Outcome:
    """What became of a commit."""

    #: In the order of the works: a number, or why it failed.
    results: list[tuple[Work, int | BusError]]
    #: The topics with new records, and the keys of these.
    topics: dict[str, TopicRow] = field(default_factory=dict)
    keys: dict[str, dict[str, None]] = field(default_factory=dict)


class Writer:
    """Owns the writing connection. `report` is called in the thread, after each commit."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        table: Mapping[str, Topic],
        report: Callable[[Outcome], None],
        stopped: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._table = table
        self._report = report
        self._stopped = stopped
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._data_version = -1
        self._topics: dict[str, TopicRow] = {}
        self._epochs: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="bus-sqlite-writer", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Queue work; its result comes by `report`."""
        self._queue.put(work)

    def stop(self) -> None:
        """Finish what is queued, fold the write-ahead log into the file, let go of it."""
        self._queue.put(None)

    def _run(self) -> None:
        going = True
        ahead: Work | None = None
        while going or ahead is not None:
            first = ahead if ahead is not None else self._queue.get()
            ahead = None
            if first is None:
                break
            if isinstance(first, Task):
                self._report(self._perform(first))
                continue
            group, size = [first], len(first.messages)
            while size < GROUP_RECORDS:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if not isinstance(more, Append):
                    ahead, going = more, more is not None
                    break
                group.append(more)
                size += len(more.messages)
            self._report(self._commit(group))
        self._finish()

    def _finish(self) -> None:
        # While another process uses the file this may fail; it or the next one will do it.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self._stopped()

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            # Another process has written: what we remember may be out of date.
            self._data_version = version
            self._epochs.clear()
            self._topics = {
                name: TopicRow(topic_id, name, end, indexed, compacted)
                for topic_id, name, end, indexed, compacted in self._connection.execute(
                    "SELECT id, name, next, indexed, compacted FROM topics"
                )
            }

    def _forget(self) -> None:
        if self._connection.in_transaction:
            self._connection.rollback()
        self._data_version = -1

    def _perform(self, task: Task) -> Outcome:
        try:
            with errors_named(self._path):
                self._begin()
                result = task.run(self._connection)
                self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the callers learn of it, the thread lives on
            self._forget()
            failure = error if isinstance(error, BusError) else BusError(f"{self._path}: {error}")
            return Outcome([(task, failure)])
        self._epochs.clear()
        return Outcome([(task, result)])

    def _commit(self, group: list[Append]) -> Outcome:
        outcome = Outcome([])
        try:
            with errors_named(self._path):
                self._begin()
                rows: list[Row] = []
                positions: dict[tuple[str, str], int] = {}
                for work in group:
                    if (
                        work.producer is not None
                        and self._epoch(work.producer[0]) != (work.producer[1])
                    ):
                        fenced = f"producer {work.producer[0]!r} was opened again elsewhere"
                        outcome.results.append((work, Fenced(f"{fenced}; stop this one")))
                        continue
                    self._add(work, rows, outcome)
                    positions.update(work.positions)
                    outcome.results.append((work, len(work.messages)))
                self._store(rows, positions, outcome.topics)
                self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the callers learn of it, the thread lives on
            self._forget()
            failure = error if isinstance(error, BusError) else BusError(f"{self._path}: {error}")
            return Outcome([(work, failure) for work in group])
        # The loop's thread gets copies: ours change with the next commit, before that is durable.
        outcome.topics = {name: replace(topic) for name, topic in outcome.topics.items()}
        return outcome

    def _epoch(self, producer_id: str) -> int:
        epoch = self._epochs.get(producer_id)
        if epoch is None:
            found = self._connection.execute(
                "SELECT epoch FROM producers WHERE id = ?", (producer_id,)
            ).fetchone()
            epoch = self._epochs[producer_id] = found[0] if found else 0
        return epoch

    def _add(self, work: Append, rows: list[Row], outcome: Outcome) -> None:
        for message in work.messages:
            name = message.topic
            topic = outcome.topics.get(name)
            if topic is None:
                topic = outcome.topics[name] = self._topic(name)
                outcome.keys[name] = {}
            rows.append(encode(name, topic.id, topic.next, message, work.time_s, topic.indexed))
            topic.next += 1
            outcome.keys[name][message.key] = None

    def _topic(self, name: str) -> TopicRow:
        topic = self._topics.get(name)
        if topic is None:
            known = self._table.get(name)
            compacted = known is not None and known.compacted
            # Only where records are looked up by key; an index costs as much as the record.
            indexed = compacted or (known is not None and known.key == "agent")
            topic = TopicRow(len(self._topics) + 1, name, 0, int(indexed), int(compacted))
            self._topics[name] = topic
        return topic

    def _store(
        self,
        rows: list[Row],
        positions: dict[tuple[str, str], int],
        topics: dict[str, TopicRow],
    ) -> None:
        execute = self._connection.execute
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS]
            execute(INSERT + ",".join([_PLACES] * len(some)), [v for row in some for v in row])
        if topics:
            execute(
                _PUT_TOPICS % ",".join(["(?,?,?,?,?)"] * len(topics)),
                [
                    value
                    for t in topics.values()
                    for value in (t.id, t.name, t.next, t.indexed, t.compacted)
                ],
            )
        if positions:
            execute(
                _PUT_POSITIONS % ",".join(["(?,?,?)"] * len(positions)),
                [v for (group, topic), end in positions.items() for v in (group, topic, end)],
            )
