"""Opening a log that an operator names, to ask it something or to add to it.

A log is a SQLite file, or Kafka's: `kafka:`, `kafka:/NAMESPACE`, `kafka://HOST:PORT/NAMESPACE`.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from bus.clock import Clock, SystemClock
from bus.contract import Bus
from bus.sqlite import SqliteBus
from console.kafka import is_kafka, open_kafka, resolved
from console.output import fail
from explain import reading
from explain.answer import Reading
from explain.reading import WhichCell

#: Where `tidegate demo` records unless told otherwise.
DEFAULT_LOG = "tidegate-demo.db"
LogAddress = Annotated[
    str,
    typer.Option(
        "--log",
        help="The log, finished or live: a file, or kafka:. It wins over a context.",
        envvar="TIDEGATE_LOG",
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


def ask_log(log: str, cell: str | None, ask: Callable[[Bus], Awaitable[Answer]]) -> Answer:
    """Open a log that was `located` for reading, ask it something of a cell, close it.

    Raises:
        Unreadable: it is not a Tidegate log, or damaged.
        BusError: it is on Kafka, which does not answer.
    """

    async def run() -> Answer:
        clock = SystemClock()
        bus: Bus
        if is_kafka(log):
            bus = open_kafka(log, clock, cell)
        else:
            bus = SqliteBus.open_readonly(log, clock)
        try:
            return await ask(bus)
        finally:
            await bus.close()

    return asyncio.run(run())


def open_to_write(log: str, clock: Clock, cell: str) -> Bus:
    """Open a log that was `located`, to add to a cell of it."""
    return open_kafka(log, clock, cell) if is_kafka(log) else SqliteBus.open(log, clock)


def located(log: str) -> str:
    """Give the full address of a log, or say what to do if none of ours can be there."""
    if is_kafka(log):
        return resolved(log)
    path = Path(log)
    if log.startswith("sqlite:") and not path.exists():
        fail(f"--log: leave out sqlite:, which `bus` of a service has: {log[7:]}")
    if path.is_dir():
        fail(f"--log: {path} is a folder; name a log file in it.")
    if not path.exists() and log == DEFAULT_LOG:
        how = "name the log of a scheduler with --log, or a gateway: tidegate context add NAME URL"
        fail(f"--log: {path} does not exist; {how}. tidegate demo makes a log.")
    if not path.exists():
        how = "start the scheduler that writes it, or name another log."
        fail(f"--log: {path} does not exist; {how}")
    if path.name.endswith((".jsonl", ".jsonl.zst")):
        made = path.with_name(f"{path.name.partition('.jsonl')[0]}-imported.db")
        command = shlex.join(["tidegate", "journal", "import", str(path), "--log", str(made)])
        fail(f"--log: {path} is an exported log; make a database of it: {command}")
    return log


async def read_bus(bus: Bus, cell: str | None = None) -> Reading:
    """Recover the state of a cell from an open bus, or say which cells there are."""
    try:
        return await reading.read_bus(bus, cell)
    except WhichCell as error:
        names = ", ".join(error.held)
        if error.cell is not None:
            fail(f"--cell: {cell} is not in this log; it holds {names}.")
        fail(f"This log holds several cells; choose one with --cell: {names}.")
