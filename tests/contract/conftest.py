"""The backends that the conformance suite runs over. Adding one is one entry in `BACKENDS`."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from bus.bridge import Bridge
from bus.clock import SystemClock
from bus.contract import Bus, Link, Message
from bus.kafka import KafkaBus
from bus.mqtt import MqttLink
from bus.options import KafkaOptions, MqttOptions, mqtt_options
from bus.sqlite import Durability, SqliteBus
from tests.brokers import fresh_namespace
from tests.memory_bus import MemoryBus
from tests.message_faults import Faults
from tests.mosquitto import wired
from tests.patience import until

#: Small, so that back-pressure shows quickly.
IN_FLIGHT_MAX = 8


@dataclass(frozen=True)
class Backend:
    """How to make a bus, or a link, of one kind, and what it can do beyond what every one must."""

    open: Callable[["Bench"], Link]
    #: Of: log (it is a `Bus`: offsets, groups, transactions), durable (a second `open` finds what
    #: the first one stored), latest (and `last`), prune, slow_storage, counted_lag (`lag` counts
    #: the records that would be given, not offsets).
    capabilities: frozenset[str]
    #: A bus whose storage is slow or stalled while the context is open.
    slow: Callable[["Bench"], AbstractContextManager[Bus]] | None = None
    #: Where a link leads: the bus that holds what it publishes. None: the link is that bus.
    far: Callable[["Bench"], Awaitable[Bus]] | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()


@contextmanager
def _slow_memory(bench: "Bench") -> Iterator[Bus]:
    faults = Faults(storage_s=0.5)  # longer than a busy machine holds a test up
    yield MemoryBus(bench.clock, faults, in_flight_max=IN_FLIGHT_MAX)


def _sqlite(durability: Durability) -> Callable[["Bench"], Bus]:
    def open_log(bench: "Bench") -> Bus:
        return SqliteBus.open(
            bench.folder / "log.db",
            bench.clock,
            durability=durability,
            in_flight_max=IN_FLIGHT_MAX,
        )

    return open_log


@contextmanager
def _stalled_sqlite(bench: "Bench") -> Iterator[Bus]:
    bus = _sqlite("process_crash")(bench)
    with closing(sqlite3.connect(bench.folder / "log.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")  # as a slow disk would, it keeps the writer waiting
        yield bus


def _kafka(bench: "Bench") -> Bus:
    options = KafkaOptions(bench.fixture("kafka_bootstrap"), bench.namespace, replication=1)
    return KafkaBus.open(options, bench.clock, in_flight_max=IN_FLIGHT_MAX)


class _Bridged(MemoryBus):
    """What a link over MQTT leads to: a bus, and the bridge before it."""

    async def begin(self, bench: "Bench") -> "_Bridged":
        """Return when the bridge hears what links say, and the link what the bridge says."""
        options = _mqtt_options(bench)
        wire = wired(options, f"{options.namespace}-bridge", bench.clock)
        self._bridge = Bridge(name="b0", wire=wire, buses={"default": self}, clock=bench.clock)
        self._running = asyncio.create_task(self._bridge.run(["default"]))
        link = cast("MqttLink", bench.opened[-1])
        await link.publish()  # it connects on first use
        await until(lambda: self._bridge.wire.connected and link.connected)
        return self

    async def close(self) -> None:
        self._bridge.stop()
        await self._running
        await super().close()


def _mqtt_options(bench: "Bench") -> MqttOptions:
    found = mqtt_options(bench.fixture("mqtt_url"))
    return replace(found, namespace=bench.namespace, session_s=60)


def _mqtt(bench: "Bench") -> Link:
    return MqttLink.open(_mqtt_options(bench), bench.clock, "edge-1", in_flight_max=IN_FLIGHT_MAX)


_EVERYTHING = frozenset({"log", "latest", "prune", "slow_storage", "counted_lag"})
_ON_DISK = _EVERYTHING | {"durable"}

BACKENDS: dict[str, Backend] = {
    "memory": Backend(
        lambda bench: MemoryBus(bench.clock, in_flight_max=IN_FLIGHT_MAX),
        _EVERYTHING,
        slow=_slow_memory,
    ),
    "sqlite-power_loss": Backend(_sqlite("power_loss"), _ON_DISK, slow=_stalled_sqlite),
    "sqlite-process_crash": Backend(_sqlite("process_crash"), _ON_DISK, slow=_stalled_sqlite),
    "kafka": Backend(_kafka, frozenset({"log", "latest", "durable"}), marks=(pytest.mark.broker,)),
    "mqtt": Backend(
        _mqtt,
        frozenset(),
        far=lambda bench: _Bridged(bench.clock).begin(bench),
        marks=(pytest.mark.broker,),
    ),
}


class ManualClock(SystemClock):
    """Real waiting, but the time that records get is moved by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


@dataclass
class Bench:
    """A backend, ready to be opened (again)."""

    name: str
    backend: Backend
    folder: Path
    #: Gives a fixture by its name: addresses of brokers are asked for only where they are needed.
    fixture: Callable[[str], Any]
    namespace: str = field(default_factory=fresh_namespace)
    clock: ManualClock = field(default_factory=ManualClock)
    opened: list[Link] = field(default_factory=list)

    def link(self) -> Link:
        """Open a link; on a durable backend, the same one each time."""
        link = self.backend.open(self)
        self.opened.append(link)
        return link

    async def far(self, link: Link) -> Bus:
        """Give the bus at the far end of a link."""
        if self.backend.far is None:
            return cast("Bus", link)
        self.opened.insert(0, far := await self.backend.far(self))
        return far

    def open(self) -> Bus:
        """Open the bus; on a durable backend, the same one each time."""
        assert self.promises("log"), "mark the test: promises log"
        return cast("Bus", self.link())

    def slow(self) -> AbstractContextManager[Bus]:
        """Open a bus with slow storage; the test closes it."""
        assert self.backend.slow is not None
        return self.backend.slow(self)

    def promises(self, capability: str) -> bool:
        """True if the backend has this capability."""
        return capability in self.backend.capabilities


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test over the backends that promise what it is about."""
    if "bench" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("promises")
    needed = {name for mark in marks for name in mark.args}
    if "bus" in metafunc.fixturenames:
        needed.add("log")
    able = {name: one for name, one in BACKENDS.items() if needed <= one.capabilities}
    assert able, f"no backend promises {needed}"
    params = [pytest.param(name, id=name, marks=one.marks) for name, one in able.items()]
    metafunc.parametrize("bench", params, indirect=True)


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    found = Bench(request.param, BACKENDS[request.param], tmp_path, request.getfixturevalue)
    yield found
    for link in reversed(found.opened):
        await link.close()


@pytest.fixture
async def bus(bench: Bench) -> Bus:
    return bench.open()


@pytest.fixture
def event() -> Callable[..., Message]:
    """Make a message to the events topic: key, then value (text, or None for a tombstone)."""

    def make(key: str, value: str | None, topic: str = "tidegate.events.v1") -> Message:
        return Message(topic, key, None if value is None else value.encode())

    return make
