"""What nodes last measured, kept from one question to the next: only what is new is read."""

import asyncio
from collections.abc import Collection

from bus.contract import Bus
from explain.measured import Heard
from explain.reading import measured_between, read_measured
from schemas.topics import TELEMETRY


class Meter:
    """The newest measurements of a cell's nodes."""

    def __init__(self) -> None:
        """Begin with none."""
        self._heard: dict[str, Heard] = {}
        self._end: int | None = None
        self._alone = asyncio.Lock()

    async def read(self, bus: Bus, nodes: Collection[str]) -> dict[str, Heard]:
        """Give each node's newest measurement.

        Args:
            bus: The log.
            nodes: Those to look for; the log is read further back if some are missing.
        """
        async with self._alone:
            end = await bus.end(TELEMETRY.name)
            if self._end is None or self._end > end:
                self._heard = await read_measured(bus, nodes)
            else:
                self._heard |= await measured_between(bus, self._end, end)
            self._end = end
            return dict(self._heard)
