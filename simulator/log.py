"""The journals of runs as one log: each run a cell, as a scheduler would have written it.

Runs may be made side by side, and a log has one writer. So each run keeps its records in a file of
its own, a line each, and `join` puts them into the log one run after the other.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from scheduler.core.engine import Engine
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.journal import write_entry
from scheduler.snapshots import Writing
from schemas.journal import NO_DIGEST
from schemas.topics import JOURNAL, SNAPSHOTS

#: A snapshot after so many entries, so that stretches of a run can be replayed side by side.
SNAPSHOT_ENTRIES = 5000
_BATCH = 500
_ENTRY, _SNAPSHOT = b"J", b"S"


class Recorder:
    """Writes what an engine decides into a file."""

    def __init__(self, path: Path, engine: Engine) -> None:
        """Make the file.

        Raises:
            OSError: It cannot be made.
        """
        self._file = path.open("wb")
        self._engine, self._digest = engine, NO_DIGEST

    def __enter__(self) -> Self:
        """Record within a `with`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._file.close()

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        """Write one entry, and a snapshot now and then."""
        state = self._engine.state
        value, self._digest = write_entry(state, stimulus, decision, self._digest)
        self._file.write(_ENTRY + value + b"\n")
        if state.number % SNAPSHOT_ENTRIES == 0:
            # Runs may be joined before it, none between: a later entry is never before this.
            writing = Writing(state, self._digest, {}, journal_offset=state.number)
            for key, piece in writing.pieces():
                suffix = key.removeprefix(state.cell).encode()
                self._file.write(_SNAPSHOT + suffix + b" " + piece + b"\n")


def join(log: Path, parts: Sequence[tuple[str, Path]]) -> None:
    """Put the records of runs, (cell, file) each, into a new log.

    Raises:
        BusError: The log cannot be written.
        OSError: A file cannot be read.
    """
    asyncio.run(_join(log, parts))


async def _join(log: Path, parts: Sequence[tuple[str, Path]]) -> None:
    bus = SqliteBus.open(log, SystemClock(), durability="process_crash")
    try:
        for cell, path in parts:
            for batch in _batches(cell, path):
                await bus.publish(*batch)
    finally:
        await bus.close()


def _batches(cell: str, path: Path) -> Iterator[list[Message]]:
    batch: list[Message] = []
    with path.open("rb") as file:
        for line in file:
            if line.startswith(_ENTRY):
                batch.append(Message(JOURNAL.name, cell, line[1:-1]))
            else:
                suffix, _, value = line[1:-1].partition(b" ")
                batch.append(Message(SNAPSHOTS.name, cell + suffix.decode(), value))
            if len(batch) == _BATCH:
                yield batch
                batch = []
    yield batch
