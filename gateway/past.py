"""Any moment of a cell: states as they were after an entry, and the entries themselves."""

import asyncio
import contextlib
import sqlite3
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bus.contract import BusError, Unreadable
from explain.reading import entries, entry_of
from gateway import sidecar
from gateway.about import Kind
from gateway.feed import Feed, Fold, from_mark
from gateway.forks import fork, kept
from gateway.index import MARK_EVERY, Place
from gateway.kept_states import Family, KeptStates, Key, One
from gateway.orders import Orders
from gateway.problems import Problem, later
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader
from schemas.journal import JournalEntry, RawEntry
from schemas.topics import JOURNAL

#: What past states may take in memory, in all.
KEPT_BYTES = 512 * 1024**2
#: A state in memory takes so many times what it takes as JSON.
_BLOWN_UP = 4
#: On the way to a moment, states are kept that are so many entries before it.
_KEPT_BEFORE = (16_000, 8_000, 4_000, 2_000, 1_000, 500, 100, 20)
#: At least so many records are read at once.
_READ = 32
#: Entries read one by one before the event loop runs others.
_TURN = 20
#: The most entries beyond the index that are folded or read for one question.
_FAR = 20_000
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of a cell, which must not be changed: after `entries` entries."""

    feed: Feed
    state: ClusterState
    entries: int
    pinned: bool  #: Somebody named the entry: the answer never changes.

    @property
    def entry(self) -> int | None:
        """The number of the last entry; None before the first."""
        return self.entries - 1 if self.entries else None

    @property
    def is_past(self) -> bool:
        """Whether it was named, or entries came since: what is measured now is not part of it."""
        return self.pinned or self.entries != self.feed.entries


class Past:
    """Past states; those asked for last are kept, within bounds of memory.

    A state near one that is kept is made from it, and shares with it what is alike.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        """Keep states of at most so many bytes."""
        self._kept = KeptStates(kept_bytes)
        #: Lists of such moments, in their order.
        self.orders = Orders()
        self._sought: dict[Key, asyncio.Future[ClusterState]] = {}

    @property
    def bytes(self) -> int:
        """What the states take that are kept, about."""
        return self._kept.bytes

    @property
    def seeking(self) -> bool:
        """Whether a state is being sought."""
        return bool(self._sought)

    def known(self, feed: Feed, number: int) -> ClusterState | None:
        """Give a state that is in memory, such as the live one; None: it is not."""
        if feed.live is not None and feed.live.state.number == number:
            return feed.live.state
        return self._kept.get((feed.name, feed.generation, number))

    async def state(self, feed: Feed, number: int) -> ClusterState:
        """Give the state after so many entries, at hand or not. Two who ask wait for one seek.

        Raises:
            Problem: it cannot be found now.
        """
        key = (feed.name, feed.generation, number)
        if (known := self.known(feed, number)) is not None:
            return known
        if key not in self._sought:
            seek = asyncio.ensure_future(guarded(feed, partial(self._seek, feed, number)))
            self._sought[key] = seek
            seek.add_done_callback(lambda _: self._sought.pop(key, None))
            seek.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Whoever goes away leaves the seek to the others.
        return await asyncio.shield(self._sought[key])

    async def _seek(self, feed: Feed, number: int) -> ClusterState:
        generation = feed.generation
        begin = await self._begin(feed, number)
        place, state = begin.place, begin.state
        if place.number < number:
            fold = Fold(feed.cell, fork(state), place.digest, place.offset)
            for stop in _stops(place.number, number):
                await _fold(fold, feed, stop)
                if generation != feed.generation:
                    raise Unreadable("the log became another one meanwhile")
                state, size = kept(fold.state)
                key = (feed.name, generation, stop)
                self._kept.add(key, state, fold.place, size, begin.family)
        return state

    async def _begin(self, feed: Feed, number: int) -> One:
        """Give the state from which another is reached soonest: one at hand, or a mark's."""
        index, generation = feed.index, feed.generation
        near = self._kept.nearest(feed.name, generation, number)
        if near is not None:
            begun = near.place.number
            if number - begun <= MARK_EVERY or not index.has_mark(begun + 1, number):
                reachable(feed, number - max(begun, index.entries))
                return near
        mark = index.mark_before(number)
        reachable(feed, number if mark is None else number - index.entries)
        fold = await from_mark(feed.cell, mark)
        if generation != feed.generation:
            raise Unreadable("the log became another one meanwhile")
        family = Family(0 if mark is None else _BLOWN_UP * mark.size)
        if mark is not None:
            key = (feed.name, generation, mark.place.number)
            self._kept.add(key, fold.state, fold.place, 0, family)
        return One(fold.state, fold.place, 0, family)


def _stops(begin: int, number: int) -> Iterator[int]:
    """Give after which entries a state is kept on the way to another, which is the last.

    Whoever looks at a moment looks at those before it next: they are nearer to each other there.
    """
    for before in _KEPT_BEFORE:
        if number - before > begin + before // 2:
            yield number - before
    yield number


async def _fold(fold: Fold, feed: Feed, number: int) -> None:
    """Fold on until so many entries are folded, and read little more than these.

    Raises:
        Unreadable: the log has no such entry any more.
    """
    while (left := number - fold.state.number) > 0:
        if fold.offset >= feed.end:
            raise Unreadable(f"it has no entry {fold.state.number} any more")
        # Each entry takes an offset at least; of several cells, more.
        end = min(feed.end, fold.offset + max(left, _READ))
        await fold.go_on(feed.log, end, until=number)


def too_far(feed: Feed, entries: int) -> bool:
    """Whether so many entries are not to be read for one question: the index is being built."""
    return entries > _FAR and feed.building


def reachable(feed: Feed, entries: int) -> None:
    """Refuse what so many entries would have to be read for while the index is being built.

    Raises:
        Problem: 503, and how far the index is.
    """
    if too_far(feed, entries):
        raise later(
            f"the index of the log is being built and is at {feed.done:.0%}; earlier entries are "
            "answered already, this one once GET /api/v1/health says that it is done",
            2.0,
        )


async def guarded(feed: Feed, ask: Callable[[], Awaitable[_Found]]) -> _Found:
    """Ask the index and the log, and say what to do where one of them cannot answer.

    Raises:
        Problem: it cannot be answered now.
    """
    try:
        return await ask()
    except (sidecar.Damaged, sqlite3.Error) as error:
        feed.rebuild(str(error))
        raise later(f"the index is damaged ({error}) and is built again; ask again", 2.0) from error
    except BusError as error:
        raise later(f"the log cannot be read: {error}. See GET /api/v1/health", 2.0) from error


async def raw(feed: Feed, number: int) -> RawEntry:
    """Give an entry as it was written, its digest checked.

    Raises:
        Problem: it cannot be read now.
    """
    (entry,) = await raw_between(feed, number, number + 1)
    return entry


async def raw_between(feed: Feed, begin: int, end: int) -> list[RawEntry]:
    """Give the entries from one number to before another, their digests checked.

    Raises:
        Problem: they cannot be read now.
    """

    async def find() -> list[RawEntry]:
        reachable(feed, begin - feed.index.entries)
        found: list[RawEntry] = []
        if begin >= end:
            return found
        async with contextlib.aclosing(chained(feed, begin)) as entries:
            async for entry in entries:
                if entry.number >= begin:
                    found.append(entry)
                if entry.number == end - 1:
                    break
        if len(found) != end - begin:
            raise Unreadable(f"it has no entry {begin + len(found)} any more")
        return found

    return await guarded(feed, find)


async def last_before(feed: Feed, at_s: float) -> int:
    """Give the number of the last entry that is not later than a moment; -1 if all are.

    Raises:
        Problem: it cannot be found now.
    """

    async def find() -> int:
        place = feed.index.place_at(at_s)
        reachable(feed, feed.entries - feed.index.entries)
        number = place.number - 1
        async with contextlib.aclosing(chained(feed, place.number)) as entries:
            async for entry in entries:
                if entry.at_s > at_s:
                    break
                number = entry.number
        return number

    return await guarded(feed, find)


async def chained(feed: Feed, number: int) -> AsyncGenerator[RawEntry, None]:
    """Read entries from the place before a number on; each must follow the one before."""
    place = feed.index.place_before(number)
    reader = JournalReader(feed.cell, place.number, place.digest)
    end = place.offset
    while end < feed.end:
        # Not the log's rest for an entry that is near.
        begin, end = end, min(feed.end, end + 256)
        async for record in feed.log.read(JOURNAL.name, begin, end):
            entry = reader.read(record)
            if entry is not None:
                yield entry
        await asyncio.sleep(0)


async def mentioning(
    feed: Feed,
    wanted: Sequence[tuple[Collection[Kind], str]],
    before: int,
    words: Collection[bytes] | None = None,
    after: int = -1,
    newest: int | None = None,
) -> list[JournalEntry]:
    """Give the entries after one number and before another that mention one of some subjects.

    The index names those that it knows of, of each subject the `newest`, if given; what came after
    it is read through, for entries that hold one of `words`: if not given, the names of the
    subjects. They ascend.

    Raises:
        Problem: they cannot be read now.
    """

    async def find() -> list[JournalEntry]:
        index = feed.index
        if index.first > after + 1:
            whole = entries(feed.log.bus, feed.cell, (b"",), before)
            return [entry async for entry in whole]
        place = index.place
        offsets = {
            offset
            for kinds, subject in wanted
            for _, offset in index.mentioned(
                kinds, subject, before=min(before, place.number), newest=newest, after=after
            )
        }
        found = await all_picked(feed, offsets)
        names = words or [f'"{subject}"'.encode() for _, subject in wanted]
        return found + await unindexed(feed, place, before, names)

    return await guarded(feed, find)


async def picked(feed: Feed, offsets: Sequence[int]) -> AsyncGenerator[JournalEntry, None]:
    """Give the entries at these offsets, which the index names and which ascend.

    Raises:
        Unreadable: one of them cannot be read. One that is not there any more is left out.
    """
    count = 0
    async with contextlib.aclosing(feed.log.picked(JOURNAL.name, offsets)) as records:
        async for record in records:
            yield entry_of(record)
            count += 1
            if count % _TURN == 0:
                await asyncio.sleep(0)


async def all_picked(feed: Feed, offsets: Collection[int]) -> list[JournalEntry]:
    """Give the entries at these offsets, ascending.

    Raises:
        Unreadable: one of them cannot be read, or is not there any more.
    """
    found = [entry async for entry in picked(feed, sorted(offsets))]
    if len(found) < len(offsets):
        raise Unreadable(f"it has only {len(found)} of {len(offsets)} records any more")
    return found


async def unindexed(
    feed: Feed, place: Place, before: int, words: Collection[bytes]
) -> list[JournalEntry]:
    """Give the entries from a place of the index on and before a number that hold one of `words`.

    Raises:
        Problem: they are too many while the index is being built.
        Unreadable: one of them cannot be read.
    """
    reachable(feed, before - place.number)
    found: list[JournalEntry] = []
    if place.number < before:
        async for record in feed.log.read(JOURNAL.name, place.offset, feed.end):
            value = record.value or b""
            if record.key == feed.cell and any(word in value for word in words):
                entry = entry_of(record)
                if entry.number < before:
                    found.append(entry)
    return found


def held(feed: Feed, name: str, number: int) -> None:
    """Refuse an entry that is not in the log: it has not come yet, or is not there any more.

    Raises:
        Problem: 404, and which entries there are.
    """
    if number >= feed.entries:
        raise beyond(feed, name, number)
    if number < feed.index.first:
        raise Problem(404, f"{name}={number} is not in the log any more: it begins at entry "
                      f"{feed.index.first}; ask for a later one", parameter=name)  # fmt: skip


def beyond(feed: Feed, name: str, value: object) -> Problem:
    """Say that a moment is not in the log."""
    if not feed.entries:
        text = "the log holds no entry yet; leave it out, and follow /api/v1/stream"
    else:
        text = f"the last entry is {feed.entries - 1}; leave {name} out for the newest state"
    return Problem(404, f"{name}={value} is beyond the end of the log: {text}", parameter=name)
