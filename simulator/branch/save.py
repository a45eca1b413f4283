"""A branch as a log: the entries of the log until the entry, then those of the branch."""

import asyncio
from collections.abc import Iterable
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


class Recorder:
    """Keeps what a branch decides, as entries of a journal that follow the origin's."""

    def __init__(self, origin: Origin) -> None:
        """Begin with none."""
        self._origin, self._digest = origin, origin.digest
        self.entries: list[bytes] = []

    def saw(self, state: ClusterState, stimulus: Stimulus, decision: Decision) -> None:
        """Take a decision; a watch of `run.branch`."""
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
        asyncio.run(self._save(records, path))

    async def _save(self, records: Iterable[Record], path: Path) -> None:
        cell, left = self._origin.cell, self._origin.entry + 1
        values: list[bytes] = []
        for record in records:
            if left and record.key == cell and record.value is not None:
                values.append(record.value)
                left -= 1
        values += self.entries
        bus = SqliteBus.open(path, SystemClock(), durability="process_crash")
        try:
            for begin in range(0, len(values), _BATCH):
                batch = values[begin : begin + _BATCH]
                await bus.publish(*(Message(JOURNAL.name, cell, value) for value in batch))
        finally:
            await bus.close()
