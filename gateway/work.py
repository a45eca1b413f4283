"""What processes of the gateway do: they read its log for themselves, and branch it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from bus.contract import Bus, Record
from gateway.assignment import Tell
from gateway.index import Mark
from schemas.topics import JOURNAL
from simulator.branch.change import Change
from simulator.branch.document import document, drawn, tried
from simulator.branch.forecast import forecast
from simulator.branch.origin import Begun, Origin, origin
from simulator.branch.save import Recorder, read_tail, write_log, write_tail

#: How far a work must have come since it was told last, 0 to 1.
_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Journal:
    """A cell's journal, as a process of its own reads it."""

    opening: Callable[[str], Bus]  #: Opens a cell of the log; it must be a plain function.
    cell: str
    origin_s: float  #: When the log began.
    mark: Mark | None = None  #: Where to begin; None: at the beginning.

    def records(self, offset: int | None = None) -> Iterator[Record]:
        """Read on from an offset; without one, from the mark."""
        bus = self.opening(self.cell)
        if offset is None:
            offset = 0 if self.mark is None else self.mark.place.offset
        with closing(asyncio.new_event_loop()) as loop:
            found = bus.read(JOURNAL.name, offset)
            try:
                while True:
                    try:
                        yield loop.run_until_complete(anext(found))
                    except StopAsyncIteration:
                        return
            finally:
                # Whoever has enough of it leaves a reader of Kafka open, which only its loop ends.
                loop.run_until_complete(_let_go(found, bus))

    @property
    def begun(self) -> Begun | None:
        """The state at the mark."""
        if self.mark is None:
            return None
        state = zstandard.ZstdDecompressor().decompress(self.mark.state)
        return Begun(state, self.mark.place.digest, self.origin_s)

    def origin(self, entry: int, hours: float) -> Origin:
        """Read what a branch begins from."""
        return origin(self.records(), entry, hours, cell=self.cell, begun=self.begun)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A branch that somebody wants."""

    entry: int
    hours: float
    runs: int
    change: Change
    log: str  #: What the log is called.
    tail: Path  #: Where its own entries go.


def branched(journal: Journal, wanted: Wanted, tell: Tell) -> dict[str, Any]:
    """Run a branch; give what came of it.

    Raises:
        BranchError: it cannot be.
    """
    begin = journal.origin(wanted.entry, wanted.hours)
    recorder = Recorder(begin)
    found = tried(begin, wanted.change, wanted.runs, watch=recorder.saw, told=_steps(tell))
    write_tail(recorder.entries, wanted.tail)
    return {**document(found, wanted.log), **drawn(found)}


def foretold(journal: Journal, entry: int, hours: float, runs: int, tell: Tell) -> dict[str, Any]:
    """Say of each job of a state when it starts and ends, over several runs.

    Raises:
        BranchError: it cannot be.
    """
    return forecast(journal.origin(entry, hours), runs, told=_steps(tell))


def saved(journal: Journal, entry: int, tail: Path, path: Path, _: Tell) -> None:
    """Write a branch as a log: the entries until the one that it goes on after, then its own."""
    write_log(path, journal.cell, journal.records(), entry + 1, read_tail(tail))


async def _let_go(found: AsyncIterator[Record], bus: Bus) -> None:
    await found.aclose()  # type: ignore[attr-defined]
    await bus.close()


def _steps(tell: Tell) -> Callable[[float], None]:
    """Tell how far it is, where it is a step further."""
    last = 0.0

    def told(done: float) -> None:
        nonlocal last
        if done >= last + _STEP:
            last = done
            tell({"done": min(1.0, done)})

    return told
