"""The backends that the conformance suite runs over. Adding one is one entry in `BACKENDS`."""

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bus.clock import Clock, SystemClock
from bus.contract import Bus, Message
from bus.faults import Faults
from bus.memory import MemoryBus
from bus.sqlite import Durability, SqliteBus

#: Small, so that back-pressure shows quickly.
IN_FLIGHT_MAX = 8


@dataclass(frozen=True)
class Backend:
    """How to make a bus of one kind, and what it can do beyond what every one must."""

    open: Callable[[Path, Clock], Bus]
    #: Of: durable (a second `open` finds what the first one stored), latest, prune, slow_storage.
    capabilities: frozenset[str]
    #: Why it cannot run here, None if it can.
    missing: Callable[[], str | None] = lambda: None
    #: A bus whose storage is slow or stalled while the context is open.
    slow: Callable[[Path, Clock], AbstractContextManager[Bus]] | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()


@contextmanager
def _slow_memory(_: Path, clock: Clock) -> Iterator[Bus]:
    faults = Faults(storage_s=0.05)
    yield MemoryBus(clock, faults, in_flight_max=IN_FLIGHT_MAX)


def _sqlite(durability: Durability) -> Callable[[Path, Clock], Bus]:
    def open_log(folder: Path, clock: Clock) -> Bus:
        return SqliteBus.open(
            folder / "log.db", clock, durability=durability, in_flight_max=IN_FLIGHT_MAX
        )

    return open_log


@contextmanager
def _stalled_sqlite(folder: Path, clock: Clock) -> Iterator[Bus]:
    bus = _sqlite("process_crash")(folder, clock)
    with closing(sqlite3.connect(folder / "log.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")  # as a slow disk would, it keeps the writer waiting
        yield bus


_EVERYTHING = frozenset({"latest", "prune", "slow_storage"})
_ON_DISK = _EVERYTHING | {"durable"}

BACKENDS: dict[str, Backend] = {
    "memory": Backend(
        lambda _, clock: MemoryBus(clock, in_flight_max=IN_FLIGHT_MAX),
        _EVERYTHING,
        slow=_slow_memory,
    ),
    "sqlite-power_loss": Backend(_sqlite("power_loss"), _ON_DISK, slow=_stalled_sqlite),
    "sqlite-process_crash": Backend(_sqlite("process_crash"), _ON_DISK, slow=_stalled_sqlite),
}


class ManualClock(SystemClock):
    """Real waiting, but the time that records get is moved by the test."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


@dataclass
class Bench:
    """A backend, ready to be opened (again)."""

    name: str
    backend: Backend
    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    opened: list[Bus] = field(default_factory=list)

    def open(self) -> Bus:
        """Open the bus; on a durable backend, the same one each time."""
        bus = self.backend.open(self.folder, self.clock)
        self.opened.append(bus)
        return bus

    def slow(self) -> AbstractContextManager[Bus]:
        """Open a bus with slow storage; the test closes it."""
        assert self.backend.slow is not None
        return self.backend.slow(self.folder, self.clock)

    def need(self, capability: str) -> None:
        """Skip the test where the backend does not promise this."""
        if capability not in self.backend.capabilities:
            pytest.skip(f"{self.name} does not promise {capability}")


@pytest.fixture(params=[pytest.param(n, id=n, marks=b.marks) for n, b in BACKENDS.items()])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    backend = BACKENDS[request.param]
    if (reason := backend.missing()) is not None:
        if os.environ.get("CI"):
            pytest.fail(f"{request.param}: {reason}; on CI every backend must be there")
        pytest.skip(f"{request.param} is NOT TESTED here: {reason}")
    found = Bench(request.param, backend, tmp_path)
    yield found
    for bus in found.opened:
        await bus.close()


@pytest.fixture
async def bus(bench: Bench) -> Bus:
    return bench.open()


@pytest.fixture
def event() -> Callable[..., Message]:
    """Make a message to the events topic: key, then value (text, or None for a tombstone)."""

    def make(key: str, value: str | None, topic: str = "tidegate.events.v1") -> Message:
        return Message(topic, key, None if value is None else value.encode())

    return make
