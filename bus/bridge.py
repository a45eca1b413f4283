"""The bridge between MQTT and Kafka: the edge speaks the one, the scheduler the other.

Bytes pass unchanged both ways. Up, each message is checked to be its node's own, stored, confirmed
to the agent (`schemas.horizon`), and only then acknowledged to the broker. Down, a command counts
as read when the broker has confirmed it. So nothing is lost, some comes twice, and both ends bear
that. Any number of bridges share the work.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from bus.bridge_down import Down
from bus.bridge_limits import BridgeCounters, BridgeLimits
from bus.bridge_up import Up, subscription
from bus.clock import Clock
from bus.contract import Bus, BusError
from bus.wire import Incoming, Wire

#: Given subscriptions and who is to hear what comes, connects.
WireMaker = Callable[[Sequence[str], Callable[[Incoming], None]], Wire]


class Bridge:
    """One bridge. Make it in the loop that runs it: it connects to MQTT at once."""

    def __init__(
        self,
        *,
        name: str,
        wire: WireMaker,
        buses: Mapping[str, Bus],
        clock: Clock,
        limits: BridgeLimits | None = None,
        group: str = "bridge",
    ) -> None:
        """Connect.

        Args:
            name: Of this bridge among those that share the work.
            wire: Makes the connection.
            buses: By cell, where its records are.
            clock: Where time comes from.
            limits: What bounds it.
            group: The bridges of one group share the work. Where devices are not trusted it is a
                secret: Mosquitto deals a share to whoever names it, and then delivers it to nobody.

        Raises:
            BusError: there is no cell.
        """
        if not buses:
            raise BusError("a bridge without cells carries nothing; name at least one")
        self.counters = BridgeCounters()
        self._buses, self._clock = dict(buses), clock
        self._limits = limits or BridgeLimits()
        self._up = Up(name, self._buses, clock, self._limits, self.counters)
        #: What was refused of late; to be taken from here by who tells operators of it.
        self.refused = self._up.refused
        self._downs: dict[str, Down] = {}
        self._own: list[Down] = []
        self._stopping = False
        self.wire = wire([subscription(group)], self._up.hear)

    @property
    def unacked(self) -> int:
        """How many messages came that Kafka does not have yet."""
        return self._up.unacked

    def oldest_unacked_s(self) -> float:
        """How long the oldest of them has waited."""
        return self._up.oldest_unacked_s()

    @property
    def problem(self) -> str:
        """Why it does not carry everything now, in a sentence; empty if it does."""
        if not self.wire.connected:
            return "there is no connection to the MQTT broker; trying again"
        return self._up.problem or next(
            (down.problem for down in self._downs.values() if down.problem), ""
        )

    def down(self, cell: str) -> Down:
        """Give what carries the commands of a cell; run it while the cell is this bridge's."""
        if cell not in self._buses:
            raise BusError(f"cell {cell!r} is not among those of this bridge; name it in buses")
        down = Down(cell, self._buses[cell], self.wire, self._clock, self._limits, self.counters)
        self._downs[cell] = down
        return down

    async def run(self, cells: Sequence[str] = ()) -> None:
        """Carry up until `stop`, then disconnect; also down, the commands of `cells`.

        Where bridges share the cells, `KafkaCells.run(bridge.down)` does that beside it, and is to
        be stopped before: without connection no command can be sent.
        """
        self._own = [self.down(cell) for cell in cells]
        if self._stopping:
            self.stop()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up.run(self.wire), name="bridge up")
                for down in self._own:
                    group.create_task(down.run(), name=f"bridge down {down.cell}")
        finally:
            await self.wire.close()

    def stop(self) -> None:
        """Take no more, finish what is on its way and answer it; `run` returns then."""
        self._stopping = True
        self._up.stop()
        for down in self._own:
            down.stop()
