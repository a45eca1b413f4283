"""Requests on their way: in the log since a short while, and in no entry of the journal yet."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gateway.feed import Feed
from schemas.topics import JOURNAL, REQUESTS, dead_letters

#: The newest records of which it is known which request they hold.
_KEPT = 10_000
_TURN = 200
_LETTERS = dead_letters(REQUESTS).name


@dataclass(frozen=True, slots=True)
class Letter:
    """Why a scheduler did not take a record."""

    field: str
    reason: str
    journal_end: int  #: If an entry is why it was refused, it is before this offset of the journal.


class Mailbox:
    """The newest requests of one cell, by id. `look` brings it up to date."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = asyncio.Lock()
        self._forget(-1)

    def _forget(self, generation: int) -> None:
        self._generation = generation
        self._next: dict[str, int] = {}
        self._offsets: OrderedDict[str, list[int]] = OrderedDict()
        self._letters: OrderedDict[int, Letter] = OrderedDict()

    def offsets(self, name: str) -> list[int]:
        """Give where the records of a request are."""
        return self._offsets.get(name, [])

    def letter(self, name: str) -> Letter | None:
        """Give why a request was not taken; None if one of its records may be taken still."""
        found = [self._letters.get(offset) for offset in self.offsets(name)]
        return found[0] if found and None not in found else None

    async def look(self, feed: Feed) -> None:
        """Read what was written since.

        Raises:
            BusError: the log cannot be read.
        """
        async with self._lock:
            bus = feed.log.bus
            ends = {name: await bus.end(name) for name in (REQUESTS.name, _LETTERS)}
            shorter = any(end < self._next.get(name, 0) for name, end in ends.items())
            if shorter or self._generation != feed.generation:
                self._forget(feed.generation)
            # A dead letter is stored together with the entry that may be its cause.
            journal_end = await bus.end(JOURNAL.name)
            for name, end in ends.items():
                begin = self._next.get(name, max(0, end - _KEPT))
                if begin == end:
                    continue
                count = 0
                async for record in feed.log.read(name, begin, end):
                    if name == _LETTERS:
                        self._bury(record.headers, journal_end)
                    elif record.key == feed.cell:
                        self._take(record.value or b"", record.offset)
                    count += 1
                    if count % _TURN == 0:
                        await asyncio.sleep(0)
                self._next[name] = end

    def _take(self, value: bytes, offset: int) -> None:
        try:
            name = orjson.loads(value)["id"]
        except (ValueError, TypeError, KeyError):
            return
        if isinstance(name, str):
            self._offsets.setdefault(name, []).append(offset)
            if len(self._offsets) > _KEPT:
                self._offsets.popitem(last=False)

    def _bury(self, headers: Mapping[str, str], journal_end: int) -> None:
        text = headers.get("dlq_origin_offset", "")
        if text.isdecimal():
            field, reason = headers.get("dlq_field", ""), headers.get("dlq_error", "")
            self._letters[int(text)] = Letter(field.removeprefix("data."), reason, journal_end)
            if len(self._letters) > _KEPT:
                self._letters.popitem(last=False)
