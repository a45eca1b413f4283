"""The file of a SQLite log: its format, how it is opened, how a record is written and checked."""

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

import orjson

from bus.contract import BusError, Message, Record, Unreadable

#: "TGL1" in the file's header: a Tidegate log.
APPLICATION_ID = 0x54474C31
FORMAT = 1

_MARK = f"""
PRAGMA journal_mode = WAL;
BEGIN EXCLUSIVE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, next INTEGER NOT NULL,
    indexed INTEGER NOT NULL, compacted INTEGER NOT NULL
);
CREATE TABLE records (
    topic INTEGER NOT NULL, offset INTEGER NOT NULL, key TEXT NOT NULL, value BLOB,
    headers BLOB NOT NULL, time_s REAL NOT NULL, indexed INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (topic, offset)
) WITHOUT ROWID;
CREATE INDEX by_key ON records (topic, key, offset) WHERE indexed = 1;
CREATE TABLE positions (
    "group" TEXT NOT NULL, topic TEXT NOT NULL, next INTEGER NOT NULL, PRIMARY KEY ("group", topic)
) WITHOUT ROWID;
CREATE TABLE producers (id TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
"""

#: What `decode` wants, in its order.
COLUMNS = "offset, key, value, headers, time_s, crc"
COLUMNS_WRITTEN = 8
INSERT = "INSERT INTO records VALUES "

Row = tuple[int, int, str, bytes | None, bytes, float, int, int]

_HEAD = struct.Struct("<qdqqq")
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}


def _checksum(
    topic: str, offset: int, key: bytes, value: bytes | None, headers: bytes, time_s: float
) -> int:
    size = -1 if value is None else len(value)
    head = _HEAD.pack(offset, time_s, len(key), len(headers), size)
    return crc32(b"".join((topic.encode(), head, key, headers, value or b"")))


def encode(
    topic: str, topic_id: int, offset: int, message: Message, time_s: float, indexed: int
) -> Row:
    """Make the row of a record."""
    headers = orjson.dumps(dict(message.headers)) if message.headers else b""
    crc = _checksum(topic, offset, message.key.encode(), message.value, headers, time_s)
    return topic_id, offset, message.key, message.value, headers, time_s, indexed, crc


def decode(topic: str, row: tuple[int, bytes, bytes | None, bytes, float, int]) -> Record:
    """Make the record of a row whose text was read as bytes.

    Raises:
        Unreadable: its checksum does not fit, naming topic and offset.
    """
    offset, key, value, headers, time_s, crc = row
    try:
        if crc == _checksum(topic, offset, key, value, headers, time_s):
            names = orjson.loads(headers) if headers else {}
            return Record(topic, offset, key.decode(), value, names, time_s)
    except (TypeError, ValueError, struct.error):
        pass  # a damaged column may have any type
    raise Unreadable(
        f"{topic} offset {offset}: the record is damaged (its checksum does not fit); "
        "restore the log from a copy"
    )


@contextlib.contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into the contract's, naming the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise Unreadable(f"{path} is not a Tidegate log; name another file") from error
        if code in _DAMAGE:
            wal, left = path.with_name(f"{path.name}-wal"), ""
            if wal.exists():  # SQLite takes it for this file's
                left = f". If {path} is a copy already, {wal} is of the file before: move it away"
            raise Unreadable(
                f"{path} is damaged or cut short ({error}); restore it from a copy{left}"
            ) from error
        if code == sqlite3.SQLITE_BUSY:
            raise BusError(f"{path}: another process kept it locked; try again") from error
        if code == sqlite3.SQLITE_READONLY:
            raise BusError(
                f"{path} can only be read; write to it as somebody who may, to its folder, too"
            ) from error
        raise BusError(f"{path}: {error}") from error


def create(path: Path) -> None:
    """Make an empty log at `path` in one step, unless another process is quicker."""
    if not path.parent.is_dir():
        raise BusError(f"{path}: the folder {path.parent} does not exist; make it first")
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    try:
        with errors_named(path), contextlib.closing(sqlite3.connect(draft)) as connection:
            connection.executescript(_MARK + _TABLES)
            word = f"tidegate log {FORMAT}"
            connection.execute("INSERT INTO meta VALUES ('format', ?)", (word,))
            connection.commit()
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def connect(path: Path, *, readonly: bool, busy_timeout_s: float) -> sqlite3.Connection:
    """Connect to an existing log, having checked that it is one we can read.

    The file is looked at through SQLite alone: opening and closing it otherwise would drop the
    locks that other connections of this process hold on it.

    Raises:
        Unreadable: the file is missing, empty, foreign, damaged or of a newer version.
    """
    if not path.is_file():
        raise Unreadable(f"{path} does not exist or is no file; name an existing log")
    if path.stat().st_size == 0:
        raise Unreadable(f"{path} is empty, not a Tidegate log; remove it or name another file")
    how = "mode=rw"
    if readonly:
        # Without a -wal file nobody writes: then not even a lock file is made.
        finished = not path.with_name(f"{path.name}-wal").exists()
        how = "immutable=1" if finished else "mode=ro"
    with errors_named(path):
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?{how}",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            _check_format(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise Unreadable(f"{path} is not a Tidegate log; name another file")
    if version > FORMAT:
        raise Unreadable(
            f"{path} has format {version} and this release reads up to {FORMAT}; "
            "use a newer release of Tidegate"
        )
    found = connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    if found is None or found[0] != f"tidegate log {version}":
        raise Unreadable(f"{path} is damaged (its meta table is wrong); restore it from a copy")


def verify(connection: sqlite3.Connection, path: Path) -> int:
    """Check every record and the file's structure; give the number of records.

    Raises:
        Unreadable: the first thing wrong, naming topic and offset where it can.
    """
    total = 0
    with errors_named(path):
        topics = connection.execute("SELECT id, name, next, compacted FROM topics ORDER BY id")
        for topic_id, name_bytes, end, compacted in topics.fetchall():
            name = name_bytes.decode(errors="replace")
            expected: int | None = None
            rows = connection.execute(
                f"SELECT {COLUMNS} FROM records WHERE topic = ? ORDER BY offset",  # noqa: S608
                (topic_id,),
            )
            for row in rows:
                record = decode(name, row)
                if not compacted and expected not in (None, record.offset):
                    raise Unreadable(f"{name} offset {expected}: the record is missing in {path}")
                expected = record.offset + 1
                total += 1
            if expected is not None and (expected > end or (expected < end and not compacted)):
                raise Unreadable(f"{name}: {path} ends at offset {expected} instead of {end}")
        (known,) = connection.execute(
            "SELECT count(*) FROM records WHERE topic IN (SELECT id FROM topics)"
        ).fetchone()
        (stored,) = connection.execute("SELECT count(*) FROM records").fetchone()
        if known != stored:
            raise Unreadable(f"{path} holds {stored - known} records of no known topic")
        (word,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if word not in (b"ok", "ok"):
            raise Unreadable(f"{path} is damaged ({word.decode(errors='replace')})")
    return total
