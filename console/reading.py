"""Reading a log without changing it: the recovered state, and the moments that frame it.

A log is a SQLite file, or Kafka's: `kafka:`, `kafka:/NAMESPACE`, `kafka://HOST:PORT/NAMESPACE`.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from bus.clock import Clock, SystemClock
from bus.contract import Bus, Unreadable
from bus.sqlite import SqliteBus
from console.kafka import is_kafka, open_kafka, resolved
from console.output import day_clock, duration, fail, is_demo, is_simulated, say
from scheduler.core.state import ClusterState
from scheduler.journal import recover
from schemas.journal import JournalEntry, brought_up, decode_entry
from schemas.parse import Rejected
from schemas.topics import CELLS, JOURNAL, TOPICS, Topic
from schemas.upcast import CannotUpcast

#: The cell that is meant where none is named.
CELL = "default"
#: Where `tidegate demo` records unless told otherwise.
DEFAULT_LOG = "tidegate-demo.db"
#: A scheduler says at least once a minute that it leads: `scheduler.heartbeat_s` is 60 at most.
_OLD_S = 180.0
LogAddress = Annotated[
    str,
    typer.Option(
        "--log", help="The log, finished or live: a file, or kafka:.", envvar="TIDEGATE_LOG"
    ),
]
CellName = Annotated[
    str | None,
    typer.Option(
        "--cell",
        help="Which cell of the log; if not given, `default`, or the only one.",
        envvar="TIDEGATE_CELL",
    ),
]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says of one cell. Moments in seconds since the Unix epoch."""

    cell: str
    state: ClusterState
    origin_s: float  #: When the log began; day 0 is the day of it.
    newest_s: float  #: Of the newest record; a log of simulated time lives in that time.
    heard_s: float  #: When a scheduler last decided, or said that it leads.

    @property
    def simulated(self) -> bool:
        """Whether the log is a demo's or a simulation's, which live in times of their own."""
        return self.virtual or is_demo(self.origin_s or self.newest_s)

    @property
    def virtual(self) -> bool:
        """Whether it is the record of `tidegate simulate`: nobody goes on with that."""
        return self.state.number > 0 and is_simulated(self.origin_s) and not is_demo(self.origin_s)

    def as_of(self) -> str:
        """Say which moment the state is of."""
        zone = "" if self.simulated else " UTC"
        return f"as of {day_clock(self.state.now_s, self.origin_s)}{zone}"

    def say_age(self, now_s: float) -> None:
        """Say on standard error if no scheduler spoke for long; `now_s` is real time."""
        age_s = now_s - self.heard_s
        if self.state.number and not self.simulated and age_s >= _OLD_S:
            say(f"The newest entry is {duration(age_s)} old; is a scheduler running?")


def read_log(log: str, cell: str | None = None) -> Reading:
    """Recover the state that a cell of a finished or a live log has come to.

    Raises:
        Unreadable: it is not a Tidegate log, or damaged.
    """
    return with_log(log, lambda bus: read_bus(bus, cell))


def with_log(log: str, ask: Callable[[Bus], Awaitable[Answer]]) -> Answer:
    """Open a log for reading, ask it something, close it.

    Raises:
        Unreadable: it is not a Tidegate log, or damaged.
        BusError: it is on Kafka, which does not answer.
    """
    return ask_log(located(log), ask)


def ask_log(log: str, ask: Callable[[Bus], Awaitable[Answer]]) -> Answer:
    """Do the same with a log that was `located`."""

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
        fail(
            f"--log: {path} does not exist; name the file that `bus` names in a scheduler's "
            f"configuration, or make one: tidegate demo --log {path}"
        )
    if path.name.endswith((".jsonl", ".jsonl.zst")):
        made = path.with_name(f"{path.name.partition('.jsonl')[0]}-imported.db")
        command = shlex.join(["tidegate", "journal", "import", str(path), "--log", str(made)])
        fail(f"--log: {path} is an exported log; make a database of it: {command}")
    return log


async def read_bus(bus: Bus, cell: str | None = None) -> Reading:
    """Recover the state of a cell from an open bus."""
    cell = await _chosen(bus, cell)
    found = await recover(bus, cell)
    newest_s = await newest(bus, TOPICS)
    said_s = await newest(bus, [CELLS])
    now_s = found.state.now_s
    origin_s = now_s
    async for entry in entries(bus, cell, (b"",), found.state.number):
        origin_s = entry.at_s
        break
    return Reading(cell, found.state, origin_s, max(newest_s, now_s), max(said_s, now_s))


async def _chosen(bus: Bus, cell: str | None) -> str:
    """Find which cell is meant; where nobody has decided anything, any name is as good."""
    if await bus.latest(JOURNAL.name, cell or CELL) is not None:
        return cell or CELL
    held = dict.fromkeys([record.key async for record in bus.read(JOURNAL.name)])
    names = ", ".join(held)
    if cell is not None and held:
        fail(f"--cell: {cell} is not in this log; it holds {names}.")
    if len(held) > 1:
        fail(f"This log holds several cells; choose one with --cell: {names}.")
    return cell or next(iter(held), CELL)


async def entries(
    bus: Bus, cell: str, wanted: Collection[bytes], end: int
) -> AsyncIterator[JournalEntry]:
    """Read a cell's entries that hold one of these bytes, before that of number `end`.

    Raises:
        Unreadable: one of them cannot be read.
    """
    async for record in bus.read(JOURNAL.name):
        value = record.value
        if value is None or record.key != cell or not any(part in value for part in wanted):
            continue
        entry = decode_entry(value)
        if isinstance(entry, Rejected):
            raise Unreadable(f"journal record {record.offset}: {entry.field}: {entry.reason}")
        if entry.number >= end:
            return
        try:
            current = brought_up(entry)
        except CannotUpcast as error:
            raise Unreadable(f"journal record {record.offset}: {error}") from error
        yield current


async def newest(bus: Bus, topics: Iterable[Topic]) -> float:
    """Give the moment of the newest record of some topics; 0 if there is none."""
    found_s = 0.0
    for topic in topics:
        record = await bus.last(topic.name)
        found_s = found_s if record is None else max(found_s, record.time_s)
    return found_s
