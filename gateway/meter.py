"""What nodes last measured, kept from one question to the next: only what is new is read."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from bus.contract import Bus
from explain.measured import Measured
from schemas.codec import decode_event
from schemas.events import NodeMeasured
from schemas.parse import Rejected
from schemas.topics import TELEMETRY

#: Records read before the event loop runs others.
_TURN = 100
#: How far back is read, in records for each node: at first, and then, if nodes are still missing.
#: Each measures once a minute, and owners report in between.
_LOOKS = (1.25, 5.0)
_MORE = 50


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest measurement of a node."""

    used: Measured
    at_s: float  #: When it was stored.
    said_s: float  #: When it was said, by its agent's clock.


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
                self._heard, upper = {}, end
                for times in _LOOKS:
                    lower = max(0, end - int(times * len(nodes)) - _MORE)
                    # Further back is older: what is known already stays.
                    self._heard = await self._read(bus, lower, upper) | self._heard
                    upper = lower
                    if all(node in self._heard for node in nodes):
                        break
            else:
                self._heard |= await self._read(bus, self._end, end)
            self._end = end
            return dict(self._heard)

    async def _read(self, bus: Bus, begin: int, end: int) -> dict[str, Heard]:
        found: dict[str, Heard] = {}
        if begin >= end:
            return found
        count = 0
        async for record in bus.read(TELEMETRY.name, begin, end):
            count += 1
            if count % _TURN == 0:
                await asyncio.sleep(0)
            said = None if record.value is None else decode_event(record.value)
            if said is None or isinstance(said, Rejected):
                continue
            if isinstance(said.data, NodeMeasured):
                used = Measured.of(said.data)
                found[said.data.node] = Heard(used, record.time_s, said.time_s)
        return found
