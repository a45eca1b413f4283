"""The disk under an agent's state file: it forgets what was not synced, and it fails.

SQLite syncs each commit under `synchronous=FULL`. Under `NORMAL` it writes the log (WAL) and leaves
the rest to Linux: a loss of power takes a tail of the log, as much as Linux had not yet written.
Source: https://www.sqlite.org/pragma.html#pragma_synchronous, https://www.sqlite.org/walformat.html.
"""

import sqlite3
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from bus.clock import PacedClock

#: Linux writes to disk what is older than this.
FLUSH_S = 30.0
#: Commits remembered; SQLite begins its log afresh after far fewer.
_REMEMBERED = 10_000
_HEADER, _FRAME_HEADER = 32, 24
_CONNECT = sqlite3.connect


class Disk:
    """What one machine's disk keeps, from one life of its agent to the next."""

    def __init__(self, world: PacedClock, rng: np.random.Generator) -> None:
        self._world, self._rng = world, rng
        self._commits: deque[float] = deque(maxlen=_REMEMBERED)  # when each is sure to be kept
        self.unreadable_until_s = 0.0
        #: How likely a statement that writes fails; nobody knows whether a failed commit counts.
        self.errs = 0.0

    @property
    def fails(self) -> bool:
        """Whether it fails at times, or at all."""
        return self.errs > 0 or self._world.now_s() < self.unreadable_until_s

    def connect(self, path: Path | str, **given: Any) -> sqlite3.Connection:
        """Open a file on it, in place of `sqlite3.connect`.

        Raises:
            sqlite3.OperationalError: it cannot be read.
        """
        connection: _Connection = _CONNECT(path, factory=_Connection, **given)
        connection.disk = self
        return connection

    def committed(self, *, synced: bool) -> None:
        """Note a commit; one that is synced takes all before it with it."""
        now_s = self._world.now_s()
        if synced:
            self._kept()
        self._commits.append(now_s if synced else now_s + FLUSH_S)

    def lose_power(self, log: Path) -> None:
        """Forget a tail of what was not yet written, and leave half a write behind."""
        if not log.exists():
            return
        held = log.read_bytes()
        if len(held) <= _HEADER:
            return
        ends = _commit_ends(held)
        lost = sum(1 for sure_s in self._commits if sure_s > self._world.now_s())
        kept = ends[: max(0, len(ends) - lost)]
        least, most = kept[-1] if kept else _HEADER, ends[-1] if ends else _HEADER
        end = int(self._rng.integers(least, most + 1))
        torn = self._rng.integers(0, 256, 1500, dtype=np.uint8).tobytes()
        log.write_bytes(held[:end] + torn)
        gone = sum(1 for one in ends if one > end)
        for _ in range(min(gone, len(self._commits))):
            self._commits.pop()
        self._kept()

    def _kept(self) -> None:
        now_s = self._world.now_s()
        for index in range(len(self._commits) - 1, -1, -1):
            if self._commits[index] <= now_s:
                break
            self._commits[index] = now_s

    def strike(self, statement: str) -> None:
        """Fail, or not.

        Raises:
            sqlite3.OperationalError: it failed.
        """
        if self._world.now_s() < self.unreadable_until_s and statement != "ROLLBACK":
            raise sqlite3.OperationalError("disk I/O error")
        writes = statement.startswith(("INSERT", "DELETE", "UPDATE", "COMMIT", "BEGIN"))
        if writes and self.errs and self._rng.random() < self.errs:
            raise sqlite3.OperationalError("disk I/O error")


class _Connection(sqlite3.Connection):
    disk: Disk
    _synced = True  # SQLite's default
    _changes = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        late = None
        try:
            self.disk.strike(sql)
        except sqlite3.OperationalError as error:
            if sql != "COMMIT" or self.disk._rng.random() < 0.5:
                raise
            late = error  # it could not be synced, and is there all the same
        cursor = super().execute(sql, parameters)
        if sql.startswith("PRAGMA synchronous="):
            self._synced = sql.endswith("FULL")
        elif sql == "COMMIT" and self.total_changes != self._changes:
            self._changes = self.total_changes
            self.disk.committed(synced=self._synced and late is None)
        if late is not None:
            raise late
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        self.disk.strike(sql)
        return super().executemany(sql, parameters)


def _commit_ends(log: bytes) -> list[int]:
    """Say where each transaction of the log that counts ends, in bytes."""
    page = int.from_bytes(log[8:12])
    salts, size = log[16:24], _FRAME_HEADER + page
    ends = []
    for begin in range(_HEADER, len(log) - size + 1, size):
        if log[begin + 8 : begin + 16] != salts:
            break
        if log[begin + 4 : begin + 8] != b"\0\0\0\0":  # the size of the database: a commit
            ends.append(begin + size)
    return ends
