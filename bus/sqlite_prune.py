"""What retention and compaction remove from a SQLite log, a step at a time."""

import sqlite3
from collections.abc import Callable, Iterator

from bus.log import TOMBSTONE_S, expired
from schemas.topics import Topic

#: Records looked at in one transaction, so that publishers never wait long.
STEP = 2000

#: Does one step in a transaction and gives the number of records removed.
Step = Callable[[sqlite3.Connection], int]


class _Expire:
    """Remove records from the front while they are too old."""

    def __init__(self, topic_id: int, before_s: float, now_s: float) -> None:
        self._topic_id = topic_id
        self._before_s, self._now_s = before_s, now_s
        self._start = 0
        self.done = False

    def __call__(self, connection: sqlite3.Connection) -> int:
        rows = connection.execute(
            "SELECT offset, time_s FROM records WHERE topic = ? AND offset >= ?"
            " ORDER BY offset LIMIT ?",
            (self._topic_id, self._start, STEP),
        ).fetchall()
        old, met = expired((time_s for _, time_s in rows), self._before_s, self._now_s)
        self.done = met or len(rows) < STEP
        self._start = rows[-1][0] + 1 if rows else 0
        if not old:
            return 0
        return connection.execute(
            "DELETE FROM records WHERE topic = ? AND offset <= ?",
            (self._topic_id, rows[old - 1][0]),
        ).rowcount


class _Compact:
    """Remove records that a newer one of their key replaces, and old tombstones."""

    def __init__(self, topic_id: int, tombstones_before_s: float) -> None:
        self._topic_id = topic_id
        self._before_s = tombstones_before_s
        self._start = 0
        self.done = False

    def __call__(self, connection: sqlite3.Connection) -> int:
        rows = connection.execute(
            "SELECT offset,"
            " offset < (SELECT max(offset) FROM records n INDEXED BY by_key"
            "  WHERE n.topic = r.topic AND n.key = r.key AND n.indexed = 1)"
            " OR (value IS NULL AND time_s <= ?)"
            " FROM records r WHERE topic = ? AND offset >= ? ORDER BY offset LIMIT ?",
            (self._before_s, self._topic_id, self._start, STEP),
        ).fetchall()
        gone = [(self._topic_id, offset) for offset, replaced in rows if replaced]
        connection.executemany("DELETE FROM records WHERE topic = ? AND offset = ?", gone)
        self.done = len(rows) < STEP
        self._start = rows[-1][0] + 1 if rows else 0
        return len(gone)


def steps(topic_id: int, topic: Topic, now_s: float) -> Iterator[Step]:
    """Give the steps for a topic, each to be done before the next one is asked for."""
    work: list[_Expire | _Compact] = []
    if topic.retention_s is not None:
        work.append(_Expire(topic_id, now_s - topic.retention_s, now_s))
    if topic.compacted:
        work.append(_Compact(topic_id, now_s - TOMBSTONE_S))
    for step in work:
        while not step.done:
            yield step
