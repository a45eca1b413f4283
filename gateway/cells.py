"""All cells of a log: the loops that follow it, and those who wait for new entries."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from bus.clock import Clock
from bus.contract import BusError
from bus.sqlite import SqliteBus
from explain.reading import CELL
from gateway.feed import Feed
from gateway.log import ServedLog
from gateway.problems import Problem, later
from schemas.topics import CELLS, JOURNAL, SNAPSHOTS

#: How often the log is looked at, in seconds.
_POLL_S = 0.1
#: And how often after it could not be read.
_RETRY_S = 1.0
#: And after a bug, which may come again.
_AFRESH_S = 10.0
#: How often other cells are looked for.
_DISCOVER_S = 5.0
#: A question about an entry that is not folded yet waits so long for it, in seconds.
_LEVEL_S = 5.0
#: Nothing is wrong yet.
OPENING = "the log is being opened"
_log = logging.getLogger("tidegate.gateway")
KNOWN = (BusError, OSError, sqlite3.Error)


class Cells:
    """The cells of a log, kept up to date by `run`."""

    def __init__(
        self,
        log: ServedLog,
        clock: Clock,
        *,
        keep_index: bool = True,
        others: Sequence[ServedLog] = (),
    ) -> None:
        """Begin with the cells that are named.

        Args:
            log: The log.
            clock: Says when other cells are looked for.
            keep_index: Whether indexes are kept in files.
            others: More parts of it, where each cell has one of its own, as on Kafka.
        """
        self.log, self.clock = log, clock
        self._logs = (log, *others)
        self._keep_index = keep_index
        self.feeds: dict[str, Feed] = {}
        for one in self._logs:
            if one.cell is not None:
                self._add(one, one.cell)
        #: Why nothing can be read now; of one cell alone its feed says so.
        self.problem = "" if others else OPENING
        #: Branches that people look at, each as one more cell, by name; not in `feeds`.
        self.branches: dict[str, Feed] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._looked_s = -_DISCOVER_S
        self._changed: dict[str, asyncio.Event] = {}
        self._told: dict[str, tuple[object, ...]] = {}

    async def run(self) -> None:
        """Follow the log until cancelled; nothing that a log can do ends it."""
        try:
            async with asyncio.TaskGroup() as following:
                for log in self._logs:  # a part that is away keeps nobody else waiting
                    following.create_task(self._follow(log))
        finally:
            for name in [*self.branches]:
                self.drop(name)
            await asyncio.gather(*self._leaving, return_exceptions=True)
            for feed in self.feeds.values():
                feed.index.close()
            for log in self._logs:
                await log.close()

    async def _follow(self, log: ServedLog) -> None:
        while True:
            try:
                busy = await self._advance(log)
                wait_s = 0.0 if busy else _POLL_S
            except KNOWN as error:
                if len(self._logs) == 1:
                    self.problem = str(error)
                for feed in self._of(log):  # each cell's, as who follows one is told of it alone
                    feed.problem = str(error)
                wait_s = _RETRY_S
                with contextlib.suppress(*KNOWN):
                    await log.close()
            except Exception as error:  # noqa: BLE001 - told where it is asked for
                # Nobody may be shown a state that goes on no more as if it were of now.
                _log.exception("%s cannot be followed, which is a bug; it is begun anew", log.name)
                for feed in self._of(log):
                    feed.reset()
                    feed.problem = f"the gateway failed at it ({type(error).__name__}): a bug"
                wait_s = _AFRESH_S
            self._tell()
            await asyncio.sleep(wait_s)

    def _of(self, log: ServedLog) -> list[Feed]:
        return [feed for feed in self.feeds.values() if feed.log is log]

    def _add(self, log: ServedLog, cell: str) -> None:
        self.feeds[cell] = Feed(log, cell, keep_index=self._keep_index)

    async def _advance(self, log: ServedLog) -> bool:
        if await log.keep_open():
            self._looked_s = -_DISCOVER_S
            for feed in self._of(log):
                await feed.check()
        if log.cell is None:
            await self._discover()
        busy = False
        feeds = self._of(log)
        for feed in feeds:
            try:
                busy = await feed.advance() or busy
                if feed.live is not None:
                    state, origin_s = feed.live.state, feed.origin_s
                    await feed.leading.look(log, feed.cell, state, origin_s, self.clock.now_s())
            except KNOWN as error:
                feed.problem = str(error)
                if len(feeds) == 1:
                    raise
        self.problem = ""
        return busy

    async def _discover(self) -> None:
        """Find the cells that the log holds; one of which nobody ever spoke is `default`."""
        now_s = self.clock.now_s()
        if 0.0 <= now_s - self._looked_s < _DISCOVER_S:
            return
        bus, self._looked_s = self.log.bus, now_s
        found = [record.key async for record in bus.read(CELLS.name)]
        for topic in (SNAPSHOTS, JOURNAL):
            newest = await bus.last(topic.name)
            if newest is not None:
                found.append(newest.key.partition("/")[0])
        for cell in dict.fromkeys(found or ([] if self.feeds else [CELL])):
            if cell not in self.feeds:
                self._add(self.log, cell)
        blank = self.feeds.get(CELL)
        if blank is not None and found and CELL not in found and not blank.entries:
            blank.index.close()
            del self.feeds[CELL]

    def add_branch(self, name: str, path: Path, cell: str) -> None:
        """Take on a log that never changes, as one more cell; it is read in the background."""
        clock = self.clock
        log = ServedLog(name, lambda: SqliteBus.open_readonly(path, clock), path, path.parent)
        feed = self.branches[name] = Feed(log, cell, keep_index=False, name=name)
        self._reading[name] = asyncio.create_task(_read_through(feed))

    def drop(self, name: str) -> None:
        """Let go of a branch, if it is here."""
        reading, feed = self._reading.pop(name, None), self.branches.pop(name, None)
        if reading is not None and feed is not None:
            leaving = asyncio.create_task(_let_go(reading, feed))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def has_read(self, name: str) -> None:
        """Wait until a branch can be asked, for a while."""
        await asyncio.wait([self._reading[name]], timeout=_LEVEL_S)

    def _tell(self) -> None:
        """Wake those who wait, where something is new."""
        for cell, feed in self.feeds.items():
            now = (self.problem, *feed.told_by)
            if self._told.get(cell) != now:
                self._told[cell] = now
                self._changed.pop(cell, asyncio.Event()).set()

    async def changed(self, cell: str, timeout_s: float) -> bool:
        """Wait until there is something new of a cell, for so long; tell whether there is."""
        event = self._changed.setdefault(cell, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True

    async def reach(self, feed: Feed, entries: int | None = None) -> None:
        """Return when so many entries are folded, or all that the log has now, or after a while.

        Another gateway of the same log may have told of what is not folded here yet.
        """
        if entries is not None and feed.entries >= entries:
            return
        try:
            end = await feed.log.bus.end(JOURNAL.name)
            async with asyncio.timeout(_LEVEL_S):
                while feed.live is not None and feed.live.offset < end:
                    await self.changed(feed.name, _POLL_S)
        except (TimeoutError, *KNOWN):
            return  # what is folded is what can be answered of

    def feed(self, cell: str | None) -> Feed:
        """Give a cell; without a name, `default`, or the only one.

        Raises:
            Problem: there is no such cell, or there are several.
        """
        names = ", ".join(self.feeds)
        if cell in self.branches:
            return self.branches[cell]
        if cell is None:
            only = len(self.feeds) == 1
            cell = next(iter(self.feeds)) if only else CELL
            if cell not in self.feeds and self.feeds:
                raise Problem(400, f"this gateway shows several cells; name one of: {names}",
                              parameter="cell")  # fmt: skip
        found = self.feeds.get(cell)
        if found is None and self.feeds:
            raise Problem(
                404, f"there is no cell {cell}; this gateway shows {names}", parameter="cell"
            )
        if found is None:
            raise later(f"the log cannot be read: {self.problem}", _RETRY_S)
        return found

    def live(self, cell: str | None) -> Feed:
        """Give a cell that can be asked.

        Raises:
            Problem: there is none, or it cannot be read now.
        """
        feed = self.feed(cell)
        problem = feed.problem or ("" if feed.name in self.branches else self.problem)
        if problem:
            raise later(f"the log cannot be read now: {problem}. See GET /api/v1/health", _RETRY_S)
        if feed.live is None:
            raise later(
                f"the log is being read for the first time and is at {feed.done:.0%}", _RETRY_S
            )
        return feed


async def _read_through(feed: Feed) -> None:
    """Read a log that never changes, and keep it open."""
    try:
        await feed.log.keep_open()
        while await feed.advance():
            pass
    except KNOWN as error:
        feed.problem = str(error)


async def _let_go(reading: asyncio.Task[None], feed: Feed) -> None:
    reading.cancel()
    await asyncio.wait([reading])
    feed.index.close()
    await feed.log.close()


def facts(feed: Feed) -> dict[str, object]:
    """Say where a cell is, and whether it goes on: what the stream tells of it."""
    return {
        "cell": feed.name,
        "entry": feed.entries - 1 if feed.entries else None,
        "now_s": None if feed.live is None else feed.live.state.now_s,
        "problem": feed.problem or None,
        "nobody_leads": feed.nobody or None,
        "closed": feed.closed or None,
    }
