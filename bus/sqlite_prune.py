"""What retention and compaction remove from a SQLite log, a step at a time."""

import sqlite3
from collections.abc import Callable, Iterator

from bus.log import TOMBSTONE_S, expired
from schemas.topics import Topic

#: Records looked at in one transaction, so that publishers never wait long.
STEP = 2000

#: Does one step in a transaction and gives the number of records removed.
Step = Callable[[sqlite3.Connection], int]


def steps(topic_id: int, topic: Topic, now_s: float) -> Iterator[Step]:
    """Give the steps for a topic, each to be done before the next one is asked for."""
    if topic.retention_s is not None:
        yield from _expiring(topic_id, now_s - topic.retention_s, now_s)
    if topic.compacted:
        yield from _compacting(topic_id, now_s - TOMBSTONE_S)


def _expiring(topic_id: int, before_s: float, now_s: float) -> Iterator[Step]:
    """Remove records from the front while they are too old."""
    start, done = 0, False

    def step(connection: sqlite3.Connection) -> int:
        nonlocal start, done
        rows = connection.execute(
            "SELECT offset, time_s FROM records WHERE topic = ? AND offset >= ?"
            " ORDER BY offset LIMIT ?",
            (topic_id, start, STEP),
        ).fetchall()
        old, met = expired((time_s for _, time_s in rows), before_s, now_s)
        done = met or len(rows) < STEP
        start = rows[-1][0] + 1 if rows else 0
        if not old:
            return 0
        return connection.execute(
            "DELETE FROM records WHERE topic = ? AND offset <= ?", (topic_id, rows[old - 1][0])
        ).rowcount

    while not done:
        yield step


def _compacting(topic_id: int, tombstones_before_s: float) -> Iterator[Step]:
    """Remove records that a newer one of their key replaces, and old tombstones."""
    start, done = 0, False

    def step(connection: sqlite3.Connection) -> int:
        nonlocal start, done
        rows = connection.execute(
            "SELECT offset,"
            " offset < (SELECT max(offset) FROM records n INDEXED BY by_key"
            "  WHERE n.topic = r.topic AND n.key = r.key AND n.indexed = 1)"
            " OR (value IS NULL AND time_s <= ?)"
            " FROM records r WHERE topic = ? AND offset >= ? ORDER BY offset LIMIT ?",
            (tombstones_before_s, topic_id, start, STEP),
        ).fetchall()
        gone = [(topic_id, offset) for offset, replaced in rows if replaced]
        connection.executemany("DELETE FROM records WHERE topic = ? AND offset = ?", gone)
        done = len(rows) < STEP
        start = rows[-1][0] + 1 if rows else 0
        return len(gone)

    while not done:
        yield step
