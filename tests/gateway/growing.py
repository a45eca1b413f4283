"""A log that has a part of another's journal, and grows."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bus.sqlite_file import create
from schemas.topics import JOURNAL


@dataclass
class Growing:
    """A log that has a part of another's journal, and grows."""

    source: Path
    path: Path
    entries: int = 0

    def to(self, entries: int) -> None:
        """Let it have so many entries."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("ATTACH ? AS source", (str(self.source),))
            (topic,) = connection.execute(
                "SELECT id FROM source.topics WHERE name = ?", (JOURNAL.name,)
            ).fetchone()
            connection.execute(
                "INSERT OR IGNORE INTO topics SELECT id, name, 0, indexed, compacted "
                "FROM source.topics WHERE id = ?",
                (topic,),
            )
            connection.execute(
                "INSERT INTO records SELECT * FROM source.records "
                "WHERE topic = ? AND offset >= ? AND offset < ?",
                (topic, self.entries, entries),
            )
            connection.execute("UPDATE topics SET next = ? WHERE id = ?", (entries, topic))
        self.entries = entries


def grow(source: Path, path: Path, entries: int) -> Growing:
    """Make a log with the first entries of another."""
    create(path)
    growing = Growing(source, path)
    if entries:
        growing.to(entries)
    return growing
