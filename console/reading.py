"""Reading a log without changing it: the recovered state, and the moments that frame it.

A log is a SQLite file, or Kafka's: `kafka:`, `kafka:/NAMESPACE`, `kafka://HOST:PORT/NAMESPACE`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from bus.clock import Clock, SystemClock
from bus.contract import Bus
from bus.sqlite import SqliteBus
from console.kafka import is_kafka, open_kafka, resolved
from console.output import fail
from scheduler.core.state import ClusterState
from scheduler.journal import recover
from schemas.topics import JOURNAL, TOPICS

CELL = "default"
#: Where `tidegate demo` records unless told otherwise.
DEFAULT_LOG = "tidegate-demo.db"
LogAddress = Annotated[
    str,
    typer.Option(
        "--log", help="The log, finished or live: a file, or kafka:.", envvar="TIDEGATE_LOG"
    ),
]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says. Moments in seconds since the Unix epoch."""

    state: ClusterState
    origin_s: float  #: When the log began; day 0 is the day of it.
    newest_s: float  #: Of the newest record; a log of simulated time lives in that time.


def read_log(log: str) -> Reading:
    """Recover the state that a finished or a live log has come to.

    Raises:
        Unreadable: it is not a Tidegate log, or damaged.
    """
    return with_log(log, read_bus)


def with_log(log: str, ask: Callable[[Bus], Awaitable[Answer]]) -> Answer:
    """Open a log for reading, ask it something, close it.

    Raises:
        Unreadable: it is not a Tidegate log, or damaged.
        BusError: it is on Kafka, which does not answer.
    """
    log = located(log)

    async def run() -> Answer:
        clock = SystemClock()
        bus: Bus = open_kafka(log, clock) if is_kafka(log) else SqliteBus.open_readonly(log, clock)
        try:
            return await ask(bus)
        finally:
            await bus.close()

    return asyncio.run(run())


def open_to_write(log: str, clock: Clock) -> Bus:
    """Open a log that was `located`, to add to it."""
    return open_kafka(log, clock) if is_kafka(log) else SqliteBus.open(log, clock)


def located(log: str) -> str:
    """Give the full address of a log, or say what to do if none of ours can be there."""
    if is_kafka(log):
        return resolved(log)
    path = Path(log)
    if path.is_dir():
        fail(f"--log: {path} is a folder; name a log file in it.")
    if not path.exists():
        fail(f"--log: {path} does not exist; `tidegate demo --log {path}` makes one.")
    if path.name.endswith((".jsonl", ".jsonl.zst")):
        fail(f"--log: {path} is an exported log; make a database of it: tidegate log import.")
    return log


async def read_bus(bus: Bus) -> Reading:
    """Recover the state from an open bus."""
    found = await recover(bus, CELL)
    newest_s = await newest(bus)
    origin_s: float | None = None
    async for record in bus.read(JOURNAL.name):
        origin_s = record.time_s
        break
    now_s = found.state.now_s
    return Reading(found.state, now_s if origin_s is None else origin_s, max(newest_s, now_s))


async def newest(bus: Bus) -> float:
    """Give the moment of the newest record of all topics; 0 if there is none."""
    found_s = 0.0
    for topic in TOPICS:
        record = await bus.last(topic.name)
        found_s = found_s if record is None else max(found_s, record.time_s)
    return found_s
