"""Reading any log, whatever it is stored in, and making a SQLite log of it again.

A log from Kafka has gaps in its offsets. They are kept: whatever names an offset, such as a
snapshot or a position, means the same record in every copy.
"""

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from bus.contract import BusError, Message, Record, Unreadable
from bus.logfile import PROGRESS, FileLog, Head, Progress, ReadLog, draft_of
from bus.options import kafka_options
from bus.sqlite_file import COLUMNS, INSERT, connect, create, decode, encode, errors_named, verify
from schemas.topics import ALL_TOPICS

#: Records of one transaction of an import.
_ROWS = 2000
_ADDRESS = re.compile(r"(kafka|mqtt|memory|sqlite):(.*)", re.DOTALL)


def open_log(address: str | os.PathLike[str]) -> ReadLog:
    """Open a SQLite log, a log file, or what Kafka holds now, to read it; it is not changed.

    A file is known by what is in it; Kafka's addresses are those of `bus.options.kafka_options`.

    Raises:
        Unreadable: it is missing, empty, foreign, damaged or of a newer version.
        BusError: the address is none of a log, or its broker does not answer.
    """
    name = os.fspath(address)
    match = _ADDRESS.fullmatch(name)
    if match and match[1] == "kafka":
        return _open_kafka(name)
    if match and match[1] == "mqtt":
        raise BusError(f"{name}: MQTT stores no log; read the one on Kafka, or name a log file")
    if match and match[1] == "memory":
        raise BusError(f"{name}: a log in memory ends with its process; name a log file")
    path = Path(match[2] if match else name)
    try:
        # SQLite first: opening its file otherwise would drop the locks that this process holds.
        return SqliteLog(path)
    except Unreadable as error:
        code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
        if code != sqlite3.SQLITE_NOTADB:
            raise
    return FileLog(path)


def _open_kafka(address: str) -> ReadLog:
    options = kafka_options(address)
    try:
        from bus.kafka_log import KafkaLog
    except ModuleNotFoundError as error:
        raise BusError(f"{address}: {error}; pip install 'tidegate[console]'") from error
    return KafkaLog(options)


class SqliteLog:
    """A SQLite log, also one that its writer left without closing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = connect(path, readonly=True, busy_timeout_s=5.0)
        try:
            with errors_named(path):
                self._connection.text_factory = bytes
                self._connection.execute("BEGIN")  # all that follows sees one state of the log
                self._topics, self.head = self._read_head()
        except BaseException:
            self._connection.close()
            raise

    def _read_head(self) -> tuple[dict[str, int], Head]:
        query = self._connection.execute
        topics = query("SELECT name, id, next FROM topics ORDER BY id").fetchall()
        positions = query('SELECT "group", topic, next FROM positions ORDER BY 1, 2').fetchall()
        producers = query("SELECT id, epoch FROM producers ORDER BY 1").fetchall()
        try:
            head = Head(
                {name.decode(): end for name, _, end in topics},
                [(group.decode(), topic.decode(), end) for group, topic, end in positions],
                {name.decode(): epoch for name, epoch in producers},
            )
            return {name.decode(): topic_id for name, topic_id, _ in topics}, head
        except (UnicodeDecodeError, AttributeError) as error:
            raise Unreadable(f"{self.path} is damaged ({error}); restore it from a copy") from error

    def verify(self) -> int:
        return verify(self._connection, self.path)

    def records(self, topic: str | None = None) -> Iterator[Record]:
        for name, topic_id in self._topics.items():
            if topic in (None, name):
                yield from self._select(name, topic_id, "ORDER BY offset")

    def last(self, topic: str, count: int) -> list[Record]:
        if topic not in self._topics:
            return []
        order = f"ORDER BY offset DESC LIMIT {int(count)}"
        return list(self._select(topic, self._topics[topic], order))[::-1]

    def _select(self, name: str, topic_id: int, order: str) -> Iterator[Record]:
        with errors_named(self.path):
            rows = self._connection.execute(
                f"SELECT {COLUMNS} FROM records WHERE topic = ? {order}",  # noqa: S608
                (topic_id,),
            )
            for row in rows:
                yield decode(name, row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def import_log(source: ReadLog, path: Path, progress: Progress | None = None) -> int:
    """Make a new SQLite log of a log, offsets and all; give the number of records.

    Raises:
        BusError: the file exists.
        Unreadable: the source is damaged; nothing is left behind.
    """
    count = source.verify()
    with draft_of(path) as draft:
        create(draft)
        with (
            contextlib.closing(connect(draft, readonly=False, busy_timeout_s=5.0)) as connection,
            errors_named(path),
        ):
            connection.execute("PRAGMA synchronous = OFF")  # nobody else knows the draft
            _fill(connection, source, progress)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return count


def _fill(connection: sqlite3.Connection, source: ReadLog, progress: Progress | None) -> None:
    ids: dict[str, tuple[int, int]] = {}
    for topic_id, (name, end) in enumerate(source.head.topics.items(), 1):
        known = ALL_TOPICS.get(name)
        compacted = int(known is not None and known.compacted)
        indexed = int(compacted or (known is not None and known.key == "agent"))
        ids[name] = topic_id, indexed
        topic = (topic_id, name, end, indexed, compacted)
        connection.execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", topic)
    connection.executemany("INSERT INTO positions VALUES (?, ?, ?)", source.head.positions)
    connection.executemany("INSERT INTO producers VALUES (?, ?)", source.head.producers.items())
    insert = INSERT + "(?, ?, ?, ?, ?, ?, ?, ?)"
    connection.execute("BEGIN")
    expected: dict[str, int] = {}
    sparse: dict[str, None] = {}
    for count, record in enumerate(source.records(), 1):
        if record.topic not in ids or not 0 <= record.offset < source.head.topics[record.topic]:
            raise Unreadable(
                f"{source.path} is damaged ({record.topic} offset {record.offset} is beyond what "
                "its first line says); restore it from a copy"
            )
        topic_id, indexed = ids[record.topic]
        if expected.get(record.topic, record.offset) != record.offset:
            sparse[record.topic] = None
        expected[record.topic] = record.offset + 1
        message = Message(record.topic, record.key, record.value, record.headers)
        row = encode(record.topic, topic_id, record.offset, message, record.time_s, indexed)
        connection.execute(insert, row)
        if count % _ROWS == 0:
            connection.execute("COMMIT")
            connection.execute("BEGIN")
        if progress is not None and count % PROGRESS == 0:
            progress(count)
    for name, following in expected.items():
        if name in sparse or following < source.head.topics[name]:
            # The source was whole, so its gaps are no damage: nobody shall miss a record there.
            connection.execute("UPDATE topics SET compacted = 1 WHERE name = ?", (name,))
    connection.execute("COMMIT")
