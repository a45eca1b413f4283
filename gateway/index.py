"""The index of a cell's history: marks, places, who is mentioned where, and the tide.

Disposable: all of it is made from the journal, and made again where it is missing or damaged, or
where the journal is another one than that which it was made from.
"""

import asyncio
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import zstandard

from explain.metrics import Sample
from explain.tide import Tide, tide_of
from gateway import sidecar
from gateway.about import Kind, slot_of
from gateway.forks import TABLES
from scheduler.core.restore import state_in_steps
from scheduler.core.state import ClusterState
from schemas.journal import NO_DIGEST, RawEntry

#: There are at least so many entries between two marks.
MARK_EVERY = 1000
#: How many times as long as loading a mark the folding up to the next one may take.
_MARKS_A_LOAD = 3
#: Places in the log are kept of the entries whose number is a multiple of this.
PLACE_EVERY = 250
#: If marks take more bytes, every second one of the older half is removed.
MARKS_BYTES = 2 * 1024**3
#: So many records are written at a time.
_STEP = 500


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the log the entry of a number is, and the digest of the one before it."""

    number: int = 0
    offset: int = 0
    digest: str = NO_DIGEST


@dataclass(frozen=True, slots=True)
class Mark:
    """The state before the entry of a place."""

    place: Place
    size: int  #: Of the state as JSON, in bytes.
    state: bytes

    def restored(self) -> Iterator[ClusterState | None]:
        """Make the state, in steps between which others may work; the last gives it.

        Raises:
            sidecar.Damaged: the mark is not as it was written.
        """
        try:
            text = zstandard.ZstdDecompressor().decompress(self.state)
            yield None
            document = orjson.loads(text)
            yield None
            yield from state_in_steps(document)
        except (zstandard.ZstdError, ValueError, TypeError, KeyError) as error:
            raise sidecar.Damaged(f"mark {self.place.number}: {error}") from error


class Index:
    """What is known of the entries before `place`; it is given each next one, in order."""

    def __init__(self, connection: sqlite3.Connection, notice: str = "") -> None:
        """Go on from what the tables hold; `notice` says why it had to be made anew, if it had."""
        self.notice = notice
        self._db = connection
        said = sidecar.meta(connection)
        number, offset = int(said.get("number", 0)), int(said.get("offset", 0))
        self.place = Place(number, offset, said.get("digest", NO_DIGEST))
        self.origin_s = float(said.get("origin_s", 0.0))
        self._sum = int(said.get("sum", 0))
        newest = self.mark_before(number)
        self._marked = 0 if newest is None else newest.place.number
        self._mark_size = 0 if newest is None else newest.size
        self._folded = 0  #: Bytes of entries since the newest mark.
        (self._marks_bytes,) = self._db.execute(
            "SELECT coalesce(sum(length(state)), 0) FROM marks"
        ).fetchone()
        #: Entries before this one are not known: the journal begins later.
        self.first = int(said.get("first", 0))
        self._db.execute("BEGIN")

    @property
    def entries(self) -> int:
        """How many entries it knows of."""
        return self.place.number

    # --- building ---------------------------------------------------------------------------

    async def begin(self, state: ClusterState, place: Place, origin_s: float) -> None:
        """Begin at a state; the entries before it are no longer in the journal."""
        self.first, self.place, self.origin_s = place.number, place, origin_s
        if place.number % PLACE_EVERY:  # else `take` tells where the first entry is
            self._place(place.number, place.offset, state.now_s)
        await self._mark(state)

    def before(self, state: ClusterState, entry: RawEntry) -> None:
        """Look at the state before the next entry: a slot of the tide may end here."""
        if state.number == 0:
            self.origin_s = entry.at_s
        elif slot_of(entry.at_s) > slot_of(state.now_s):
            tide = tide_of(state)
            row = (slot_of(tide.at_s), state.number, *astuple(tide))
            self._db.execute("INSERT INTO tide VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._sum += sidecar.summed([row])

    def take(
        self,
        state: ClusterState,
        entry: RawEntry,
        about: Collection[tuple[Kind, str]],
        offset: int,
        size: int,
        samples: Mapping[str, Sample] = MappingProxyType({}),
    ) -> None:
        """Add an entry.

        Args:
            state: The state after it.
            entry: The entry.
            about: What it mentions.
            offset: Where it is in the log.
            size: Its bytes.
            samples: What jobs report of themselves in it.
        """
        number = entry.number
        rows = [(int(kind), name, number, offset - number) for kind, name in about]
        self._db.executemany("INSERT INTO mentions VALUES (?, ?, ?, ?)", rows)
        self._sum += sidecar.summed(rows)
        if samples:
            told = [
                (job, number, one.at_s, one.step, orjson.dumps(one.metrics).decode())
                for job, one in samples.items()
            ]
            self._db.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", told)
            self._sum += sidecar.summed(told)
        if number % PLACE_EVERY == 0:
            self._place(number, offset, entry.at_s)
        self.place = Place(state.number, offset + 1, entry.digest)
        self._folded += size

    def _place(self, number: int, offset: int, at_s: float) -> None:
        row = (number, offset, self.place.digest, float(at_s))
        self._db.execute("INSERT INTO places VALUES (?, ?, ?, ?)", row)
        self._sum += sidecar.summed([row])

    async def mark_if_due(self, state: ClusterState) -> None:
        """Keep a mark if the last is far; the state must stay as `take` had it until this ends."""
        # Folding a byte of the journal costs about what loading a byte of the state does: so to
        # reach any moment takes a third more than to load a mark, at most.
        if (
            state.number - self._marked >= MARK_EVERY
            and _MARKS_A_LOAD * self._folded >= self._mark_size
        ):
            await self._mark(state)

    async def _mark(self, state: ClusterState) -> None:
        place = self.place
        parts = []
        for part in written(state):
            parts.append(part)
            await asyncio.sleep(0)
        text = b"".join(parts)
        packed = await asyncio.to_thread(_packed, text)
        row = (place.number, place.offset, place.digest, len(text), packed)
        self._db.execute("INSERT INTO marks VALUES (?, ?, ?, ?, ?)", row)
        self._marked, self._mark_size, self._folded = place.number, len(text), 0
        self._marks_bytes += len(packed)
        if self._marks_bytes > MARKS_BYTES:
            self._thin()

    def _thin(self) -> None:
        """Remove every second mark of the older half."""
        numbers = [number for (number,) in self._db.execute("SELECT number FROM marks ORDER BY 1")]
        gone = [(number,) for number in numbers[: len(numbers) // 2 : 2]]
        self._db.executemany("DELETE FROM marks WHERE number = ?", gone)
        (self._marks_bytes,) = self._db.execute(
            "SELECT coalesce(sum(length(state)), 0) FROM marks"
        ).fetchone()

    def commit(self) -> None:
        """Store what was taken so far, all of it or nothing."""
        place = self.place
        said = {
            "number": place.number,
            "offset": place.offset,
            "digest": place.digest,
            "sum": self._sum,
            "origin_s": self.origin_s,
            "first": self.first,
        }
        rows = [(name, str(value)) for name, value in said.items()]
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")

    def close(self) -> None:
        """Let go of the file; what was not committed is read again from the journal."""
        self._db.close()

    # --- asking -----------------------------------------------------------------------------

    def mark_before(self, number: int) -> Mark | None:
        """Give the newest mark of at most so many entries."""
        found = self._db.execute(
            "SELECT number, offset, digest, size, state FROM marks WHERE number <= ?"
            " ORDER BY number DESC LIMIT 1",
            (number,),
        ).fetchone()
        return None if found is None else Mark(Place(*found[:3]), found[3], found[4])

    def has_mark(self, begin: int, end: int) -> bool:
        """Whether there is a mark of so many entries at least, and at most."""
        found = self._db.execute(
            "SELECT 1 FROM marks WHERE number BETWEEN ? AND ? LIMIT 1", (begin, end)
        ).fetchone()
        return found is not None

    def place_before(self, number: int) -> Place:
        """Give the nearest place that is known at or before an entry."""
        found = self._db.execute(
            "SELECT number, offset, digest FROM places WHERE number <= ?"
            " ORDER BY number DESC LIMIT 1",
            (min(number, self.place.number),),
        ).fetchone()
        return Place() if found is None else Place(*found)

    def place_at(self, at_s: float) -> Place:
        """Give the last place before which no entry is later than a moment."""
        # In time as in number, places ascend.
        low, high = (-(-one // PLACE_EVERY) for one in (self.first, self.place.number))
        while low < high:
            middle = (low + high) // 2
            (found,) = self._db.execute(
                "SELECT at_s FROM places WHERE number = ?", (middle * PLACE_EVERY,)
            ).fetchone()
            low, high = (middle + 1, high) if found <= at_s else (low, middle)
        return self.place_before(max(self.first, (low - 1) * PLACE_EVERY))

    def mentioned(
        self,
        kinds: Collection[Kind],
        subject: str,
        *,
        before: int,
        newest: int | None = None,
        after: int = -1,
    ) -> list[tuple[int, int]]:
        """List (number, offset) of the entries that mention a subject, ascending.

        Args:
            kinds: In which ways.
            subject: The subject, or a rule.
            before: Only entries before that of this number.
            newest: At most so many, the newest; all if None.
            after: Only entries after that of this number.
        """
        marks = ",".join("?" * len(kinds))
        limit = "" if newest is None else f" LIMIT {int(newest)}"
        rows = self._db.execute(
            "SELECT DISTINCT number, ahead FROM mentions"  # noqa: S608
            f" WHERE kind IN ({marks}) AND subject = ? AND number < ?"
            f" AND number > ? ORDER BY number DESC{limit}",
            (*map(int, kinds), subject, before, after),
        ).fetchall()
        return [(number, number + ahead) for number, ahead in reversed(rows)]

    def places(self, before: int, most: int) -> list[tuple[int, float]]:
        """List (number, when) of at most so many entries before that of a number, ascending."""
        apart = PLACE_EVERY * max(1, -(-before // (PLACE_EVERY * most)))
        return self._db.execute(
            "SELECT number, at_s FROM places WHERE number < ? AND number % ? = 0 ORDER BY 1",
            (before, apart),
        ).fetchall()

    def tide(self, before: int, since_s: float, until_s: float) -> list[Tide]:
        """Give what was sampled between two moments, before the entry of a number."""
        rows = self._db.execute(
            "SELECT at_s, need, owned, lent, unused, used, queue FROM tide"
            " WHERE number <= ? AND at_s >= ? AND at_s <= ? ORDER BY slot",
            (before, since_s, until_s),
        )
        return [Tide(*row) for row in rows]

    def samples(self, job: str, before: int, most: int, since_s: float = 0.0) -> list[Sample]:
        """Give what a job reported since a moment, before an entry: so many, the newest stays."""
        rows = self._db.execute(
            "SELECT at_s, step, metrics FROM (SELECT *, row_number() OVER (ORDER BY number DESC)"
            " - 1 AS place, count(*) OVER () AS total FROM samples WHERE job = ? AND number < ?"
            " AND at_s >= ?) WHERE place % ((total + ? - 1) / ?) = 0 ORDER BY number",
            (job, before, since_s, most, most),
        )
        return [Sample(at_s, step, orjson.loads(metrics)) for at_s, step, metrics in rows]

    @property
    def bytes(self) -> int:
        """What it takes, in its file or in memory."""
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        (size,) = self._db.execute("PRAGMA page_size").fetchone()
        return int(pages) * int(size)


def open_index(path: Path | None) -> Index:
    """Open the index at a path, or make one; in memory, with a notice, where that cannot be."""
    if path is None:
        return Index(sidecar.in_memory())
    notice = ""
    for _ in range(2):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Index(sidecar.open_file(path), notice)
        except sidecar.Damaged as error:
            notice = f"the index {path} was damaged ({error}) and is built again"
            sidecar.remove(path)
        except (OSError, sqlite3.OperationalError) as error:
            notice = f"the index {path} cannot be used ({error}); it is kept in memory"
            break
    return Index(sidecar.in_memory(), notice)


def written(state: ClusterState) -> Iterator[bytes]:
    """Write a state as JSON, in parts between which others may work."""
    # What has a record each is written apart, and the rest in one piece around it.
    empty: dict[str, Any] = {table: {} for table in TABLES}
    rest = {
        name: value
        for name, value in orjson.loads(orjson.dumps(replace(state, **empty))).items()
        if name not in TABLES
    }
    yield orjson.dumps(rest)[:-1]
    for table in TABLES:
        left = iter(getattr(state, table).items())
        yield b",%s:{" % orjson.dumps(table)
        between = b""
        while part := dict(islice(left, _STEP)):
            yield between + orjson.dumps(part)[1:-1]
            between = b","
        yield b"}"
    yield b"}"


def _packed(text: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text)
