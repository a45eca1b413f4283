"""The file of an index: tables, and the checks without which nothing in it is believed."""

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

#: Of the tables below; a file of another format is made anew.
FORMAT = "6"
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE marks (
    number INTEGER PRIMARY KEY, offset INTEGER NOT NULL, digest TEXT NOT NULL,
    size INTEGER NOT NULL, state BLOB NOT NULL
);
CREATE TABLE places (
    number INTEGER PRIMARY KEY, offset INTEGER NOT NULL, digest TEXT NOT NULL, at_s REAL NOT NULL
);
CREATE TABLE mentions (
    kind INTEGER NOT NULL, subject TEXT NOT NULL, number INTEGER NOT NULL, ahead INTEGER NOT NULL,
    PRIMARY KEY (kind, subject, number)
) WITHOUT ROWID;
CREATE TABLE tide (
    slot INTEGER PRIMARY KEY, number INTEGER NOT NULL, at_s REAL NOT NULL, need REAL NOT NULL,
    owned INTEGER NOT NULL, lent INTEGER NOT NULL, unused INTEGER NOT NULL, used INTEGER NOT NULL,
    queue INTEGER NOT NULL
);
CREATE TABLE samples (
    job TEXT NOT NULL, number INTEGER NOT NULL, at_s REAL NOT NULL, step INTEGER NOT NULL,
    metrics TEXT NOT NULL, PRIMARY KEY (job, number)
) WITHOUT ROWID;
"""
#: What the sum of an index covers: all but the marks, which zstd checks, and the entries after
#: them, whose digests must go on from theirs.
_SUMMED = ("places", "mentions", "tide", "samples")


class Damaged(Exception):
    """A sidecar is of no use: it says why."""


def summed(rows: Iterable[tuple[object, ...]]) -> int:
    """Add up the checksums of rows, in any order."""
    return sum(crc32(repr(row).encode()) for row in rows)


def in_memory() -> sqlite3.Connection:
    """Make an index that ends with the process."""
    return _made(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))


def open_file(path: Path) -> sqlite3.Connection:
    """Open the sidecar at `path` for this process alone, making it if there is none.

    Raises:
        Damaged: it is none of ours, of another format, or not as it was left.
        OSError: it cannot be written.
        sqlite3.OperationalError: another process has it, or it cannot be written.
    """
    connection = sqlite3.connect(
        path, timeout=0.2, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        # Alone, so that no -shm file is needed and a second gateway notices at once.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
        if connection.execute("PRAGMA schema_version").fetchone() == (0,):
            return _made(connection)
        try:
            _check(connection)
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise Damaged(str(error)) from error
    except sqlite3.OperationalError:
        connection.close()
        raise
    except sqlite3.DatabaseError as error:
        connection.close()
        raise Damaged(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def remove(path: Path) -> None:
    """Remove a sidecar, so that it is made anew."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(name).unlink()


def meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Give what the index says of itself."""
    return dict(connection.execute("SELECT name, value FROM meta"))


def _made(connection: sqlite3.Connection) -> sqlite3.Connection:
    # In one transaction: a file that is ended in between is blank still.
    said = f"INSERT INTO meta VALUES ('format', '{FORMAT}');"  # noqa: S608 - our own constant
    connection.executescript(f"BEGIN;{_SCHEMA}{said}COMMIT;")
    return connection


def _check(connection: sqlite3.Connection) -> None:
    """Raise Damaged unless all is as it was left."""
    (word,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if word != "ok":
        raise Damaged(word)
    said = meta(connection)
    if said.get("format") != FORMAT:
        raise Damaged(f"its format is {said.get('format')}, this release writes {FORMAT}")
    found = sum(
        summed(connection.execute(f"SELECT * FROM {table}"))  # noqa: S608
        for table in _SUMMED
    )
    if found != int(said.get("sum", "0")):
        raise Damaged("its rows do not add up")
