"""The journals of runs as one log: each run a cell, as a scheduler would have written it.

Runs may be made side by side, and a log has one writer. So each run keeps its records in a file of
its own, a line each, and `join` puts them into the log one run after the other.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from scheduler.core.engine import Engine
from scheduler.core.record import decision_to_dict, stimulus_to_dict
from scheduler.core.state import canonical
from scheduler.core.stimuli import Decision, Stimulus
from schemas.journal import NO_DIGEST, SnapshotTaken, chain, encode_entry, encode_snapshot
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
        number = state.number - 1
        entry = chain(
            self._digest,
            number,
            stimulus.at_s,
            stimulus_to_dict(stimulus),
            decision_to_dict(decision),
            policy=state.leader.policy,
        )
        self._digest = entry.digest
        self._file.write(_ENTRY + encode_entry(entry, state.cell) + b"\n")
        if state.number % SNAPSHOT_ENTRIES == 0:
            document = orjson.loads(orjson.dumps(state))
            snapshot = SnapshotTaken(
                number=state.number,
                at_s=state.now_s,
                digest=self._digest,
                state_hash=hashlib.sha256(canonical(document)).hexdigest(),
                state=document,
                sources={},
            )
            self._file.write(_SNAPSHOT + encode_snapshot(snapshot, state.cell) + b"\n")


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
            topic = JOURNAL if line.startswith(_ENTRY) else SNAPSHOTS
            batch.append(Message(topic.name, cell, line[1:-1]))
            if len(batch) == _BATCH:
                yield batch
                batch = []
    yield batch
