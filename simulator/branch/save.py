"""A branch as a log: the entries of the log until the entry, then those of the branch."""

import asyncio
import struct
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from bus.clock import SystemClock
from bus.contract import Message, Record
from bus.sqlite import SqliteBus
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.journal import write_entry
from schemas.topics import JOURNAL
from simulator.branch.origin import Origin

_BATCH = 500
_LENGTH = struct.Struct(">Q")


class Recorder:
    """Keeps what a branch decides, as entries of a journal that follow the origin's."""

    def __init__(self, origin: Origin) -> None:
        """Begin with none."""
        self._origin, self._digest = origin, origin.digest
        self.entries: list[bytes] = []

    def saw(self, state: ClusterState, stimulus: Stimulus, decision: Decision) -> None:
        """Keep a decision; to be given to `run.branch` as its `watch`."""
        value, self._digest = write_entry(state, stimulus, decision, self._digest)
        self.entries.append(value)

    def save(self, records: Iterable[Record], path: Path) -> None:
        """Write a new SQLite log.

        Args:
            records: The records of the journal of the log that was branched.
            path: Where; there must be nothing yet.

        Raises:
            BusError: the file cannot be written.
        """
        write_log(path, self._origin.cell, records, self._origin.entry + 1, self.entries)


def write_log(
    path: Path, cell: str, records: Iterable[Record], count: int, entries: Iterable[bytes]
) -> None:
    """Write a new SQLite log.

    Args:
        path: Where; there must be nothing yet.
        cell: Whose entries.
        records: The records of the journal of the log that was branched.
        count: How many entries of it.
        entries: Those that follow.

    Raises:
        BusError: the file cannot be written.
    """
    before = (record.value for record in records if record.key == cell and record.value is not None)
    values = chain(islice(before, count), entries)
    with asyncio.Runner() as runner:
        bus = SqliteBus.open(path, SystemClock(), durability="process_crash")
        try:
            # Read between its turns: records may come from a bus that has a loop of its own.
            while batch := [*islice(values, _BATCH)]:
                runner.run(bus.publish(*(Message(JOURNAL.name, cell, one) for one in batch)))
        finally:
            runner.run(bus.close())


def write_tail(entries: Iterable[bytes], path: Path) -> None:
    """Write the entries of a branch alone, from which a log can be made later."""
    with path.open("wb") as file:
        for value in entries:
            file.write(_LENGTH.pack(len(value)) + value)


def read_tail(path: Path) -> Iterator[bytes]:
    """Read the entries that `write_tail` wrote."""
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            yield file.read(_LENGTH.unpack(head)[0])
