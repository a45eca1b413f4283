"""An MQTT broker in memory, a bus that fails when told to, and what nodes and schedulers say."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bus.bridge import Bridge
from bus.bridge_limits import BridgeLimits
from bus.clock import SystemClock
from bus.contract import Bus, BusError, Message, Record
from bus.wire import Incoming, LinkDown, Outgoing
from schemas.codec import command, decode_horizon, encode, event
from schemas.commands import AnyCommand
from schemas.events import EventData, JobProgressed, NodeMeasured
from schemas.horizon import HorizonReached
from tests.memory_bus import MemoryBus
from tests.patience import PATIENCE_S


class MovedClock(SystemClock):
    """Real waiting, but the test moves the time; once it stands still, nobody else does."""

    ahead_s = 0.0
    _still_s: float | None = None

    def now_s(self) -> float:
        return (super().now_s() if self._still_s is None else self._still_s) + self.ahead_s

    def stand_still(self) -> None:
        self._still_s = super().now_s()


class ShakyBus(MemoryBus):
    """Stores nothing while `down`; counts what it is asked to store, and when."""

    down = False
    asked = 0

    async def append(self, messages: Sequence[Message], *rest: Any) -> None:
        self.asked += 1
        if self.down:
            await asyncio.sleep(0)
            raise BusError("no broker answers")
        await super().append(messages, *rest)


@contextlib.asynccontextmanager
async def running(made: Bridge, cells: Sequence[str]) -> AsyncIterator[Bridge]:
    """Run a bridge that takes the orders of these cells down; end it in good order."""
    run = asyncio.create_task(made.run(tuple(cells)))
    try:
        yield made
    finally:
        made.stop()
        async with asyncio.timeout(PATIENCE_S):
            await run


@dataclass
class Post:
    """The broker: delivers to the bridges in turn, again what a lost one did not acknowledge.

    It comes with a clock and a bus for what is stored.
    """

    sent: list[Outgoing] = field(default_factory=list)
    acked: list[Incoming] = field(default_factory=list)
    #: So many publishes still succeed; then the connection is lost at each. None: all.
    working: int | None = None
    #: The broker's answer to a publish; raises to refuse.
    answer: Callable[[Outgoing], None] = lambda _: None

    def __post_init__(self) -> None:
        self.clock = MovedClock()
        self.bus = ShakyBus(self.clock)
        self.wires: list[PostWire] = []
        self._turn = itertools.count()
        self._packets = itertools.count(1)

    def connect(self, subscriptions: Sequence[str], hear: Callable[[Incoming], None]) -> "PostWire":
        assert list(subscriptions) == ["$share/bridge/tidegate/v1/+/up/+"]
        wire = PostWire(self, hear)
        self.wires.append(wire)
        for other in self.wires:
            if not other.connected:
                self.redeliver(other)
        return wire

    def deliver(
        self, address: str, value: bytes, properties: Mapping[str, str] | None = None
    ) -> Incoming:
        return self._give(Incoming(address, value, properties=properties or {}))

    def say(self, node: str, kind: str, value: bytes) -> Incoming:
        return self.deliver(f"tidegate/v1/{node}/up/{kind}", value)

    def _give(self, incoming: Incoming) -> Incoming:
        wires = [wire for wire in self.wires if wire.connected]
        wire = wires[next(self._turn) % len(wires)]
        given = replace(incoming, token=(self.wires.index(wire), next(self._packets), 1))
        wire.unacked.append(given)
        wire.hear(given)
        return given

    def redeliver(self, lost: "PostWire") -> None:
        left, lost.unacked = lost.unacked, []
        for incoming in left:
            self._give(incoming)

    def bridge(
        self, buses: Mapping[str, Bus] | None = None, name: str = "b0", **limits: Any
    ) -> Bridge:
        """A bridge, to the bus if no others are given, that tries again quickly."""
        return Bridge(
            name=name,
            wire=self.connect,
            buses={"default": self.bus} if buses is None else buses,
            clock=self.clock,
            limits=BridgeLimits(**{"retry_s": 0.01, **limits}),
        )

    @contextlib.asynccontextmanager
    async def bridged(
        self, buses: Mapping[str, Bus] | None = None, *, down: bool = False, **rest: Any
    ) -> AsyncIterator[Bridge]:
        """Run a bridge, up alone or down too; end it in good order."""
        async with running(
            self.bridge(buses, **rest), list(buses or ["default"]) if down else []
        ) as made:
            yield made

    def horizons(self, node: str) -> list[HorizonReached]:
        address = f"tidegate/v1/{node}/down/horizon"
        found = [message for message in self.sent if message.address == address]
        assert all(message.qos == 0 and not message.retain for message in found)
        decoded = [decode_horizon(message.value) for message in found]
        return [envelope.data for envelope in decoded if hasattr(envelope, "data")]

    def stored(self, node: str, boot: int = 1) -> list[int]:
        """Every number of the node that a horizon named, as often as it did."""
        return [
            number
            for horizon in self.horizons(node)
            if horizon.boot == boot
            for part in horizon.stored
            for number in range(part.first, part.last + 1)
        ]


class PostWire:
    """A `Wire` to a `Post`."""

    def __init__(self, post: Post, hear: Callable[[Incoming], None]) -> None:
        self.connected, self.held = True, False
        self.hear = hear
        self.unacked: list[Incoming] = []
        self._post = post

    async def publish(self, message: Outgoing) -> None:
        await asyncio.sleep(0)
        post = self._post
        if not self.connected or post.working == 0:
            raise LinkDown("the connection broke; send it again")
        if post.working is not None:
            post.working -= 1
        post.answer(message)
        post.sent.append(message)

    def ack(self, message: Incoming) -> None:
        if self.connected and message in self.unacked:
            assert message is self.unacked[0], "acknowledged out of order"
            self.unacked.remove(message)
            self._post.acked.append(message)

    def hold(self, held: bool) -> None:
        self.held = held

    async def close(self) -> None:
        self.lose()

    def lose(self) -> None:
        """Break the connection; what it did not acknowledge goes to another."""
        self.connected = False
        if any(wire.connected for wire in self._post.wires):
            self._post.redeliver(self)


def said(
    data: EventData,
    sequence: int = 0,
    *,
    node: str = "n0",
    boot: int = 1,
    source: str | None = None,
    cell: str = "default",
) -> bytes:
    """What a node says, as bytes."""
    source = source or f"/agents/{node}"
    envelope = event(
        data, source=source, sequence=sequence, bootid=boot, time_s=1_000_000.0, cell=cell
    )
    return encode(envelope)


def ordered(
    data: AnyCommand,
    number: int,
    agent: str,
    time_s: float,
    *,
    id: str | None = None,
    expiry_s: float | None = None,
) -> bytes:
    """What a scheduler orders, as bytes."""
    envelope = command(
        data,
        id=id or f"default-{number}-0",
        source="/schedulers/default",
        sequence=number,
        bootid=1,
        time_s=time_s,
        subject=agent,
        expiry_s=expiry_s,
    )
    return encode(envelope)


def readings(node: str, gpus: int = 1) -> NodeMeasured:
    """What a meter reads of GPUs that are half used."""
    none: list[float | None] = [None] * gpus
    return NodeMeasured(
        node=node,
        window_s=60.0,
        gpu_utilisation=[0.5] * gpus,
        gpu_memory_used_mib=[None] * gpus,
        gpu_temperature_c=none,
        gpu_power_w=none,
    )


def measured(sequence: int, node: str = "n0", **rest: Any) -> bytes:
    """One piece of telemetry."""
    return said(readings(node), sequence, node=node, **rest)


def progressed(sequence: int, node: str = "n0", **rest: Any) -> bytes:
    """One event."""
    data = JobProgressed(
        job="j", epoch=1, step=1, samples_per_s=1.0, checkpoint_step=0, checkpoint_cost_s=1.0
    )
    return said(data, sequence, node=node, **rest)


async def records(bus: Bus, topic: str) -> list[Record]:
    """All that a topic holds."""
    return [record async for record in bus.read(topic)]


@pytest.fixture
def post() -> Post:
    """A broker for one test."""
    return Post()
