"""The agent's state file: the core's state and the spool, stored in one transaction per turn.

`synchronous=NORMAL` outlives a crash of the process, `FULL` also a loss of power. One process has
the file open at a time; a second one is refused.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import orjson

from bus.contract import Message
from runtime.spool import DropPriority, SpooledMessage

#: What a stored turn outlives.
Durability = Literal["process_crash", "power_loss"]

#: Both are written into the file, see `_TABLES`; a change of layout raises the first.
_LAYOUT = 1
_APPLICATION_ID = int.from_bytes(b"TGAG")
_TABLES = """
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE boot (id INTEGER PRIMARY KEY CHECK (id = 1), bootid INTEGER NOT NULL);
INSERT INTO boot VALUES (1, -1);
CREATE TABLE spool (
    row INTEGER PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL, value BLOB,
    headers BLOB, telemetry INTEGER NOT NULL -- a `runtime.spool.DropPriority`
);
PRAGMA application_id = 1413955911;
PRAGMA user_version = 1;
"""


class StoreError(Exception):
    """The agent's file cannot be used; the text says why and what to do."""


class AgentStore:
    """An open agent file. Each opening is a boot: `bootid` rises, sequences begin at 0."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path | str, bootid: int, next_row: int
    ) -> None:
        self._connection = connection
        self._path = path
        self._next_row = next_row
        #: How often the agent has started before.
        self.bootid = bootid
        #: The sequence that the next message of this boot gets.
        self.sequence = 0

    @classmethod
    def open(
        cls, path: Path | str, durability: Durability = "power_loss", first_boot: int = 0
    ) -> Self:
        """Open or create the file and begin a boot; `:memory:` keeps nothing.

        The boot id is at least `first_boot`. So it is above all ids of a file that was lost or
        restored from a copy; otherwise the agent would be taken for an earlier start of itself.

        Raises:
            StoreError: another process has it open, or it is not an agent's file.
        """
        with _asking(path):
            connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
            try:
                return cls._begun(connection, path, durability, first_boot)
            except BaseException:
                connection.close()
                raise

    @classmethod
    def _begun(
        cls,
        connection: sqlite3.Connection,
        path: Path | str,
        durability: Durability,
        first_boot: int,
    ) -> Self:
        is_new = cls._is_new(connection)
        if is_new and str(path) != ":memory:":
            Path(path).chmod(0o600)  # it holds the programs of jobs, with their environment
        # Locked for the life of the process: two agents on one file would be one source.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        # A boot id that a loss of power undoes would be used again, for other messages.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        if is_new:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
        connection.execute("UPDATE boot SET bootid = max(bootid + 1, ?)", (first_boot,))
        (bootid,) = connection.execute("SELECT bootid FROM boot").fetchone()
        (last,) = connection.execute("SELECT coalesce(max(row), -1) FROM spool").fetchone()
        connection.execute("COMMIT")
        if durability == "process_crash":
            connection.execute("PRAGMA synchronous=NORMAL")
        return cls(connection, path, bootid, last + 1)

    @staticmethod
    def _is_new(connection: sqlite3.Connection) -> bool:
        """Whether the file is empty; one that is not an agent's is refused before any change."""
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (layout,) = connection.execute("PRAGMA user_version").fetchone()
        if tables and application != _APPLICATION_ID:
            raise StoreError("is no agent's state file")
        if tables and layout != _LAYOUT:
            raise StoreError(f"has layout {layout}, this version reads {_LAYOUT}")
        return not tables

    def load_state(self) -> dict[str, Any]:
        """Give the core's rows.

        Raises:
            StoreError: they cannot be read.
        """
        with _asking(self._path):
            rows = self._connection.execute("SELECT key, value FROM state ORDER BY key")
            return {key: orjson.loads(value) for key, value in rows}

    def load_spool(self) -> list[SpooledMessage]:
        """Give the messages that earlier boots left unsent, in order.

        Raises:
            StoreError: it cannot be read.
        """
        with _asking(self._path):
            rows = self._connection.execute(
                "SELECT row, topic, key, value, headers, telemetry FROM spool ORDER BY row"
            )
            return [
                SpooledMessage.of(
                    row, Message(topic, key, value, _headers(headers)), DropPriority(loss)
                )
                for row, topic, key, value, headers, loss in rows
            ]

    def next_row(self) -> int:
        """Give a message its place in the spool."""
        self._next_row += 1
        return self._next_row - 1

    def next_sequence(self) -> int:
        """Give a message its sequence in this boot."""
        self.sequence += 1
        return self.sequence - 1

    def write(
        self, changes: Mapping[str, Any], added: Sequence[SpooledMessage], freed: Iterable[int]
    ) -> None:
        """Store a turn in one transaction: changed rows (None removes one), new and sent messages.

        Raises:
            StoreError: it cannot be written, as when the disk is full or the file was damaged.
                Nothing is stored, or all if the disk failed at the end; the next opening tells.
        """
        execute, many = self._connection.execute, self._connection.executemany
        try:
            execute("BEGIN IMMEDIATE")
            if changes:
                many(
                    "INSERT INTO state VALUES (?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                    [(key, orjson.dumps(row)) for key, row in changes.items() if row is not None],
                )
                gone = [(key,) for key, row in changes.items() if row is None]
                if gone:
                    many("DELETE FROM state WHERE key = ?", gone)
            if added:
                many("INSERT INTO spool VALUES (?, ?, ?, ?, ?, ?)", map(_spool_row, added))
            many("DELETE FROM spool WHERE row = ?", [(row,) for row in freed])
            execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:  # SQLite may have rolled back by itself
                execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(
                    f"state file {self._path}: {error}; make room on the disk, or replace it if it "
                    "fails, and start the agent again: what it had stored is whole"
                ) from error
            if type(error) is sqlite3.DatabaseError:  # not our SQL: what the file holds
                raise StoreError(
                    f"state file {self._path}: {error}; move it away to begin afresh, and see "
                    "whether its disk fails"
                ) from error
            raise

    def close(self) -> None:
        """Close the file; what was written stays."""
        self._connection.close()


def held_gangs(path: Path | str) -> dict[str, int]:
    """Give the jobs and epochs of the gangs that an agent had when it ended, from its file.

    Call this before the file is opened; empty if there is no file.

    Raises:
        StoreError: another process has it open, or it is not an agent's file.
    """
    if not Path(path).exists():
        return {}
    with _asking(path), closing(sqlite3.connect(path, timeout=1.0)) as connection:
        if AgentStore._is_new(connection):
            return {}
        rows = connection.execute("SELECT key, value FROM state WHERE key LIKE 'gang/%'").fetchall()
    return {key.removeprefix("gang/"): int(orjson.loads(row)["epoch"]) for key, row in rows}


@contextmanager
def _asking(path: Path | str) -> Iterator[None]:
    """Add to an error of the file what to do about it."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"state file {path}: {error}; stop the other agent that uses it, or check that the "
            "folder exists and can be read and written, and that its disk has room and does not "
            "fail"
        ) from error
    except (sqlite3.DatabaseError, StoreError) as error:
        raise StoreError(f"state file {path}: {error}; move it away to begin afresh") from error


def _spool_row(waiting: SpooledMessage) -> tuple[int, str, str, bytes | None, bytes | None, int]:
    message = waiting.message
    headers = orjson.dumps(dict(message.headers)) if message.headers else None
    return waiting.row, message.topic, message.key, message.value, headers, waiting.loss


def _headers(stored: bytes | None) -> dict[str, str]:
    return {} if stored is None else orjson.loads(stored)
