"""Follows one cell of a log: its state now, and the index of its past. Each entry is folded once.

The live state begins at the newest snapshot, or at the index's newest mark if that is near the
end. While the index is far behind, a second state catches up; from then on one fold does both.
"""

import asyncio
import sqlite3
from pathlib import Path

import orjson

from bus.contract import Record, Unreadable
from explain.answer import Reading
from explain.metrics import samples_in
from explain.reading import entries
from gateway import sidecar
from gateway.about import mentions
from gateway.index import Index, Mark, Place, open_index
from gateway.leading import Leading
from gateway.log import ServedLog
from gateway.meter import Meter
from scheduler.blame import blamed_on
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader, folding, recover
from schemas.journal import NO_DIGEST, decode_entry
from schemas.parse import Rejected
from schemas.topics import JOURNAL, SNAPSHOTS

#: Entries folded before the event loop runs others.
_TURN = 20
#: Entries that the index catches up by before new ones are looked for.
_SLICE = 2000
#: A damaged journal is read again after so long, in seconds, then after twice as long each time.
_REST_S, _REST_MOST_S = 1.0, 60.0
#: If the index is at most so many entries behind, it catches up before anything is answered.
_NEAR = 20_000


class Fold:
    """A state, and the place in the journal of the next entry to fold into it."""

    def __init__(self, cell: str, state: ClusterState, digest: str, offset: int) -> None:
        """Go on from a state."""
        self.state, self.offset = state, offset
        self._after = offset  # the last entry of the cell; other cells' may follow it
        self._reader = JournalReader(cell, state.number, digest)

    @property
    def place(self) -> Place:
        """Where the next entry may be, right after the last one."""
        return Place(self.state.number, self._after, self._reader.digest)

    async def go_on(
        self,
        log: ServedLog,
        end: int,
        *,
        until: int | None = None,
        index: Index | None = None,
        shown: bool = False,
    ) -> None:
        """Fold what is stored before the offset `end`, or until so many entries are folded.

        Others have their turns between entries; also within one, unless the state is `shown` to
        them: nobody may see half an entry.

        Raises:
            Unreadable: the journal is damaged, or goes on otherwise.
        """
        turn = 0
        async for record in log.read(JOURNAL.name, self.offset, end):
            if self.state.number == until:
                return
            entry = self._reader.read(record)
            self.offset = record.offset + 1
            if entry is None:
                continue
            self._after = self.offset
            with blamed_on(entry.number):
                decision = orjson.loads(entry.decision)
                subjects = [] if index is None else mentions(orjson.loads(entry.stimulus), decision)
                if index is not None:
                    index.before(self.state, entry)
                for _ in folding(self.state, entry, decision):
                    if not shown:
                        await asyncio.sleep(0)
                if index is not None:
                    size = len(record.value or b"")
                    samples = dict(samples_in(entry.at_s, decision))
                    index.take(self.state, entry, subjects, record.offset, size, samples)
                    await index.mark_if_due(self.state)
            turn += 1
            if turn % _TURN == 0:
                await asyncio.sleep(0)
        # Not all offsets have a record: on Kafka the end of a transaction takes one, too.
        self.offset = max(self.offset, end)


async def from_mark(cell: str, mark: Mark | None) -> Fold:
    """Begin at a mark; without one, at the beginning.

    Raises:
        sidecar.Damaged: the mark is not as it was written.
    """
    if mark is None:
        return Fold(cell, ClusterState(cell=cell), NO_DIGEST, 0)
    found: ClusterState | None = None
    for state in mark.restored():
        await asyncio.sleep(0)
        found = found if state is None else state
    assert found is not None
    return Fold(cell, found, mark.place.digest, mark.place.offset)


class Feed:
    """Follows a cell. `live`, its state now, is None until all of the log was folded once."""

    def __init__(
        self, log: ServedLog, cell: str, *, keep_index: bool = True, name: str | None = None
    ) -> None:
        """Begin with nothing; `advance` does the rest.

        Args:
            log: The log.
            cell: The cell, as its records name it.
            keep_index: Whether the index has a file, or only memory.
            name: The cell's name in this gateway, if another: a branch is named after its id.
        """
        self.log, self.cell, self.name = log, cell, name or cell
        self.live: Fold | None = None
        self.index = Index(sidecar.in_memory())
        self.origin_s = 0.0
        self.identity = ""  #: The digest of the first entry that the journal has.
        self.end = 0  #: Of the journal, as far as it was looked at.
        self.generation = 0  #: Grows when the log turns out to be another one.
        self.problem = ""  #: Why the cell cannot be read now.
        self.meter = Meter()  #: What its nodes measured last.
        self.leading = Leading()  #: Whether a scheduler speaks; `nobody` says what comes of it.
        self._keeps = keep_index
        self._past: Fold | None = None  #: The state with which the index catches up.
        self._begun = self._failed = False
        self._notice = ""
        self._rest_s = _REST_S  #: For how long a journal that is found to be damaged rests next.
        #: Until when it is not read again, by the loop's time, unless it is another file; and why.
        self._rests: tuple[float, tuple[object, ...], str] = (0.0, (), "")

    def reading(self, state: ClusterState) -> Reading:
        """Give a state as `explain` reads it."""
        return Reading(self.name, state, self.origin_s, state.now_s, state.now_s)

    @property
    def closed(self) -> str:
        """Why nothing can be asked of it, whoever asks; empty where it can."""
        if self.name != self.cell:
            return "this is a branch, with which nobody goes on"
        if self.live is not None and self.reading(self.live.state).virtual:
            return "this log is the record of a simulation, with which nobody goes on"
        return ""

    @property
    def nobody(self) -> str:
        """Why nobody decides in it now, and what to do; empty while somebody does, or may."""
        return self.closed or self.leading.nobody

    @property
    def told_by(self) -> tuple[object, ...]:
        """All that changes what is told of it: who follows it waits for another."""
        return self.generation, self.entries, self.problem, self.nobody

    @property
    def notice(self) -> str:
        """Why the index is not as it was left; empty if it is."""
        return self.index.notice or self._notice

    @property
    def entries(self) -> int:
        """How many entries are folded: the last one has one number less."""
        return 0 if self.live is None else self.live.state.number

    @property
    def done(self) -> float:
        """How much of the journal the index knows, 0 to 1."""
        if not self.end:  # not read yet, or empty
            return float(self._begun)
        return min(1.0, self.index.place.offset / self.end)

    @property
    def building(self) -> bool:
        """Whether the index is still behind."""
        return self._past is not None or not self._begun

    async def advance(self) -> bool:
        """Fold what is new; tell whether there is more to do at once.

        Raises:
            BusError: the log cannot be read.
        """
        generation = self.generation
        until_s, file, damage = self._rests
        if damage and file == self.log.file and _loop_s() < until_s:
            raise Unreadable(damage)  # all of it would be read to find the same
        try:
            if not self._begun:
                await self._begin()
            self.end = await self.log.bus.end(JOURNAL.name)
            return await self._go_on()
        except Unreadable as error:
            self.reset()
            self._rests = _loop_s() + self._rest_s, self.log.file, str(error)
            self._rest_s = min(2.0 * self._rest_s, _REST_MOST_S)
            raise
        except (sidecar.Damaged, sqlite3.Error) as error:
            if generation == self.generation:  # else who asked found it out, and it is closed
                self.rebuild(str(error))
            return True

    async def _go_on(self) -> bool:
        live, past = self.live, self._past
        if live is not None and self.end < live.offset:
            raise Unreadable(f"{self.log.name} has become shorter: it is another log now")
        if live is not None and self.end > live.offset:
            index = None if past else self.index
            await live.go_on(self.log, self.end, index=index, shown=True)
        if past is not None:
            until = None if live is None else live.state.number
            await past.go_on(
                self.log, min(self.end, past.offset + _SLICE), until=until, index=self.index
            )
            if live is None and past.offset >= self.end:
                self.live = live = past
            if live is not None and past.state.number == live.state.number:
                self._past = None
        if self.entries and not self.identity:
            await self._first()
        self.index.commit()
        self.problem = ""
        if self._past is None:  # all of it was read
            self._rest_s = _REST_S
        return self._past is not None

    async def _begin(self) -> None:
        """Open the index, and find where to go on from."""
        bus = self.log.bus
        await self._open_index()
        first = await self._first()
        snapshot = await bus.latest(SNAPSHOTS.name, self.cell)
        if first > 0 and self.index.entries == 0:
            await self._begin_late()
        elif snapshot is not None and await bus.end(JOURNAL.name) - self.index.place.offset > _NEAR:
            found = await recover(bus, self.cell)
            self.live = Fold(self.cell, found.state, found.digest, found.offset)
            self._past = await self._caught_up()
        else:
            self._past = await self._caught_up()
        self._begun = True

    async def _caught_up(self) -> Fold:
        """Give the state at which the index goes on."""
        place = self.index.place
        found = await from_mark(self.cell, self.index.mark_before(place.number))
        try:
            await found.go_on(self.log, place.offset, until=place.number)
        except Unreadable as error:
            # It is the index's or the journal's fault: the journal, read anew, will tell.
            raise sidecar.Damaged(str(error)) from error
        if found.place != place:
            raise sidecar.Damaged("it does not fit the journal")
        return found

    async def _begin_late(self) -> None:
        """Begin at the snapshot: what was before is not in the journal any more."""
        found = await recover(self.log.bus, self.cell)
        self.live = Fold(self.cell, found.state, found.digest, found.offset)
        await self.index.begin(found.state, self.live.place, self.origin_s)

    async def _open_index(self) -> None:
        path = self.log.index_path(self.cell) if self._keeps else None
        await self._opened(path)
        if not await self.holds(self.index.place):
            if path is not None:
                self.index.close()
                sidecar.remove(path)
            await self._opened(path)
            self._notice = f"the index {path} was of another log and is built again"

    async def _opened(self, path: Path | None) -> None:
        """Open the index; a large one is looked through for seconds, in which health is asked."""
        self.index.close()
        self.index = Index(sidecar.in_memory())
        found = await asyncio.to_thread(open_index, path)
        self.index.close()
        self.index = found

    async def _first(self) -> int:
        """Give the number of the first entry that the journal has, and learn when the log began."""
        async for entry in entries(self.log.bus, self.cell, (b"",), 2**62):
            self.origin_s, self.identity = entry.at_s, entry.digest
            return entry.number
        return 0

    async def holds(self, place: Place) -> bool:
        """Whether the log still holds the entry before a place as it was read."""
        if place.number == 0:
            return True
        record = await self.log.record(JOURNAL.name, place.offset - 1)
        entry = None if record is None else _entry(record)
        return entry is not None and entry == (place.number - 1, place.digest)

    async def check(self) -> None:
        """Begin anew if the log, opened again, is another one."""
        begun = self.live or self._past
        if begun is not None and not await self.holds(begun.place):
            self.reset()

    def rebuild(self, reason: str) -> None:
        """Throw the index away, and make it anew; after a second failure, in memory."""
        path = self.log.index_path(self.cell)
        self.index.close()
        if self._keeps:
            sidecar.remove(path)
        self._keeps, self._failed = self._keeps and not self._failed, True
        self.index = Index(sidecar.in_memory())
        anew = "is built again" if self._keeps else "is kept in memory"
        self._notice = f"the index {path} was of no use ({reason}) and {anew}"
        self.reset()

    def reset(self) -> None:
        """Forget all: the log is another one, or cannot be read."""
        self.live = self._past = None
        self._begun = False
        self.generation += 1
        self.meter = Meter()
        self.leading = Leading()
        self.origin_s, self.identity = 0.0, ""


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


def _entry(record: Record) -> tuple[int, str] | None:
    found = None if record.value is None else decode_entry(record.value)
    return None if found is None or isinstance(found, Rejected) else (found.number, found.digest)
