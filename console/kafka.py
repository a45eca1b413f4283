"""Logs on Kafka, for the verbs: which namespace an address means, and how it is opened."""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bus.clock import Clock, SystemClock
from bus.contract import Bus, BusError, Unreadable
from bus.logfile import ReadLog
from bus.options import SILENT_HINT, KafkaOptions
from bus.reading import open_log
from console.output import fail, say
from schemas.topics import JOURNAL

#: Each demo on Kafka has a namespace of its own, numbered.
_DEMO = re.compile(r"demo-([1-9][0-9]{0,8})")

#: Namespaces that an error names.
_NAMED_MOST = 5

# What a verb has to say of its broker it says itself, in one sentence.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


def is_kafka(log: str) -> bool:
    """Tell whether a log is on Kafka."""
    return log.startswith("kafka:")


def resolved(log: str) -> str:
    """Give the full address of a log; of one that is not on Kafka, what was given.

    Without a namespace it is the deployment's, the default one, if that has a journal, else the
    newest demo's; a sentence on standard error says which.
    """
    return asyncio.run(settled(log, options_of(log))).address if is_kafka(log) else log


def options_of(log: str, config: Path | None = None, flags: Sequence[str] = ()) -> KafkaOptions:
    """Give the cluster of an address: what it does not say is in `[kafka]`, as for services.

    That is a file's, or the environment's: TIDEGATE_KAFKA__CELLS, TIDEGATE_KAFKA__SASL and so on.

    Raises:
        BusError: the address is none, or names no host and nothing else does.
    """
    from services.config import ConfigError, load

    try:
        return load(config, list(flags)).kafka.at(log)
    except ConfigError as error:
        fail(str(error))


def open_kafka(log: str, clock: Clock, cell: str | None = None) -> Bus:
    """Open a cell of a log on Kafka whose address is `resolved`; without a name, the first."""
    options = options_of(log)
    return kafka_bus(options, clock, cell or options.cells[0])


def kafka_bus(options: KafkaOptions, clock: Clock, cell: str) -> Bus:
    """Open a cell of a cluster."""
    from bus.kafka import KafkaBus

    return KafkaBus.open(options, clock, cell)


def opened_log(log: str, cell: str | None = None) -> ReadLog:
    """Open a log that is `resolved`, to read it whole.

    On Kafka that is one cell: without a name the one of $TIDEGATE_CELL, or the first, and if
    there are more, standard error says so.

    Raises:
        Unreadable: it is not a Tidegate log, or damaged.
        BusError: it is on Kafka, which does not answer.
    """
    if not is_kafka(log):
        return open_log(log)
    from bus.kafka_log import KafkaLog
    from bus.kafka_namespaces import cell_count

    options = options_of(log)
    named = cell or os.environ.get("TIDEGATE_CELL")
    if named is None and (count := asyncio.run(cell_count(options))) > 1:
        names = "" if len(options.cells) >= count else ", and TIDEGATE_KAFKA__CELLS has all names"
        first = options.cells[0]
        say(f"Of {count} cells this is {first} alone; TIDEGATE_CELL=NAME is another{names}.")
    return KafkaLog(options, named or options.cells[0])


def cells_read(log: str, cell: str | None = None) -> list[str | None]:
    """List the cells of a log that is `resolved` which are read whole, one after the other.

    That is the one that is named, here or by $TIDEGATE_CELL. None means what `opened_log` makes
    of no name: a file has all cells in it. Of cells that nothing names standard error says so.
    """
    if not is_kafka(log):
        return [cell]
    options = options_of(log)
    named = cell or os.environ.get("TIDEGATE_CELL")
    if named or len(options.cells) == 1:
        return [named or None]
    from bus.kafka_namespaces import cell_count

    count = asyncio.run(cell_count(options))
    if count > len(options.cells):
        known = ", ".join(options.cells)
        say(f"Of {count} cells these are read: {known}; TIDEGATE_KAFKA__CELLS has all names.")
    return [*options.cells[:count]]  # one that was added is not there before its partition is


@contextlib.contextmanager
def told_of_cell(cell: str | None, unreadable: list[str | None]) -> Iterator[None]:
    """Say why one of several cells cannot be read, and note it: the others are read as well.

    Raises:
        Unreadable: it is one of no others.
    """
    try:
        yield
    except Unreadable as error:
        if cell is None:
            raise
        say(f"Cell {cell}: {error}.")
        unreadable.append(cell)


async def settled(log: str, options: KafkaOptions) -> KafkaOptions:
    """Give the options with the namespace that is meant, as `resolved` tells."""
    there = await known_namespaces(options)
    if options.namespace and options.namespace in there:
        return options
    if options.namespace in there and await _has_journal(options):
        say(f"The log is {options.address}, the deployment's.")
        return options
    demos = numbered(there)
    if options.namespace or not demos:
        names = [name for name in there if name]
        named = ", ".join(names[:_NAMED_MOST]) + (", ..." if len(names) > _NAMED_MOST else "")
        others = (
            f"there are {named}"
            if named
            else "a scheduler makes one once it leads, and so does `tidegate demo --bus kafka`"
        )
        fail(f"{log}: Kafka has no journal there; {others}.")
    newest = replace(options, namespace=demo_namespace(demos[-1]))
    say(f"The log is {newest.address}, the newest demo's.")
    return newest


async def known_namespaces(options: KafkaOptions) -> list[str]:
    """Give the namespaces that a cluster holds.

    Raises:
        BusError: it does not answer, or its client is not installed; the text says what to do.
    """
    try:
        from bus.kafka_namespaces import namespaces
    except ModuleNotFoundError as error:
        raise BusError(f"kafka: {error}; pip install 'tidegate[console]'") from error
    try:
        return await namespaces(options)
    except BusError as error:
        raise BusError(f"{error}; {SILENT_HINT}") from error


async def _has_journal(options: KafkaOptions) -> bool:
    from bus.kafka import KafkaBus

    for cell in options.cells:
        bus = KafkaBus.open(options, SystemClock(), cell)
        try:
            if await bus.last(JOURNAL.name) is not None:
                return True
        finally:
            await bus.close()
    return False


def demo_namespace(number: int) -> str:
    """Give the namespace of a demo."""
    return f"demo-{number}"


def numbered(namespaces: list[str]) -> list[int]:
    """Give the numbers of the demos among the namespaces, ascending."""
    return sorted(int(found[1]) for name in namespaces if (found := _DEMO.fullmatch(name)))
