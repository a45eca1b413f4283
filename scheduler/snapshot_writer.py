"""When a scheduler writes a snapshot, and how it gets into the log."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bus.contract import Bus, Message, Producer
from scheduler.core.state import ClusterState
from scheduler.journal import Recovered
from scheduler.service_config import ServiceConfig
from scheduler.snapshots import Writing
from schemas.topics import JOURNAL, SNAPSHOTS

#: Of a snapshot, about so much is stored at once.
_TRANSACTION_BYTES = 8 * 1024 * 1024


class SnapshotWriter:
    """Writes the snapshots of one leader.

    What they cost a journal entry does not grow with the cell: of a large state one is written
    after half as many entries as it has records. A restart folds no more, which takes less time
    than to read the snapshot.
    """

    def __init__(
        self, bus: Bus, config: ServiceConfig, producer: Producer, found: Recovered
    ) -> None:
        """Go on from what was recovered."""
        self._bus, self._config, self._producer = bus, config, producer
        self._turn, self._entries, self._bytes = found.turn, found.entries, found.bytes

    def saw(self, entries: int, size: int) -> None:
        """Take note of journal entries, and of the bytes that they take."""
        self._entries += entries
        self._bytes += size

    def due(self, state: ClusterState) -> bool:
        """Say whether a snapshot pays now."""
        config = self._config
        records = len(state.nodes) + len(state.jobs) + len(state.commands)
        after = max(config.snapshot_entries, records // 2)
        return self._entries >= after or self._bytes >= config.snapshot_bytes

    async def write(
        self,
        state: ClusterState,
        digest: str,
        sources: dict[str, Any],
        newest: Mapping[str, tuple[int, int]],
    ) -> None:
        """Write the state down, as `Writing` takes it; it must stay as it is meanwhile."""
        self._entries = self._bytes = 0
        self._turn += 1
        journal, pieces = await self._bus.end(JOURNAL.name), await self._bus.end(SNAPSHOTS.name)
        writing = Writing(
            state,
            digest,
            sources,
            newest=newest,
            journal_offset=journal,
            pieces_offset=pieces,
            turn=self._turn,
        )
        messages, size = list[Message](), 0
        for key, value in writing.pieces():
            await asyncio.sleep(0)  # nothing is decided meanwhile, but everything else goes on
            messages.append(Message(SNAPSHOTS.name, key, value))
            size += len(value)
            if size >= _TRANSACTION_BYTES:
                await self._send(messages)
                messages, size = [], 0
        await self._send(messages)

    async def _send(self, messages: Sequence[Message]) -> None:
        async with self._producer.transaction() as transaction:
            for message in messages:
                transaction.send(message)
