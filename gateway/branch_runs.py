"""What the gateway has done in processes of their own: branches, forecasts, and logs of branches.

Each such process reads the journal for itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from bus.contract import Bus, Record
from gateway.assignment import Report
from gateway.index import Mark
from schemas.topics import JOURNAL
from simulator.branch.change import Change
from simulator.branch.control import run_with_control
from simulator.branch.document import charts, document
from simulator.branch.forecast import forecast
from simulator.branch.origin import BranchError, Origin, StartState, read_origin
from simulator.branch.save import Recorder, read_tail, write_log, write_tail

#: Progress is reported where it has grown by so much, of 1.
_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Journal:
    """A cell's journal, as another process than the gateway's reads it."""

    open_cell: Callable[[str], Bus]  #: Opens a cell of the log; it must be possible to pickle it.
    cell: str
    origin_s: float  #: When the log began.
    mark: Mark | None = None  #: Where to begin; None: at the beginning.

    def records(self, offset: int | None = None) -> Iterator[Record]:
        """Read on from an offset; without one, from the mark."""
        bus = self.open_cell(self.cell)
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
    def start(self) -> StartState | None:
        """The state at the mark."""
        if self.mark is None:
            return None
        state = zstandard.ZstdDecompressor().decompress(self.mark.state)
        return StartState(state, self.mark.place.digest, self.origin_s)

    def origin(self, entry: int, hours: float) -> Origin:
        """Read what a branch begins from."""
        return read_origin(self.records(), entry, hours, cell=self.cell, start=self.start)


@dataclass(frozen=True, slots=True)
class BranchSpec:
    """A branch to be run."""

    entry: int
    hours: float
    runs: int
    change: Change
    log: str  #: What the log is called.
    tail: Path  #: The file for its own entries.


def field_of(error: BranchError) -> str:
    """Give the field of a body that an error is about."""
    return error.part if error.part in ("entry", "runs") else f"change.{error.part}"


def run_branch(journal: Journal, spec: BranchSpec, report: Report) -> dict[str, Any]:
    """Run a branch beside its control; give what came of it.

    Raises:
        BranchError: it cannot be.
    """
    begin = journal.origin(spec.entry, spec.hours)
    recorder = Recorder(begin)
    progress = _in_steps(report)
    found = run_with_control(
        begin, spec.change, spec.runs, watch=recorder.saw, on_progress=progress
    )
    write_tail(recorder.entries, spec.tail)
    return {**document(found, spec.log), **charts(found)}


def run_forecast(
    journal: Journal, entry: int, hours: float, runs: int, report: Report
) -> dict[str, Any]:
    """Say of each job of a state when it starts and ends, over several runs.

    Raises:
        BranchError: it cannot be.
    """
    return forecast(journal.origin(entry, hours), runs, on_progress=_in_steps(report))


def save_branch(journal: Journal, entry: int, tail: Path, path: Path, _: Report) -> None:
    """Write a branch as a log: the entries until the one that it goes on after, then its own."""
    write_log(path, journal.cell, journal.records(), entry + 1, read_tail(tail))


async def _let_go(found: AsyncIterator[Record], bus: Bus) -> None:
    await found.aclose()  # type: ignore[attr-defined]
    await bus.close()


def _in_steps(report: Report) -> Callable[[float], None]:
    """Give what reports progress, though not more often than it grows by a step."""
    last = 0.0

    def on_progress(done: float) -> None:
        nonlocal last
        if done >= last + _STEP:
            last = done
            report({"done": min(1.0, done)})

    return on_progress
