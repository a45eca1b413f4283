"""Logs on Kafka, for the verbs: which namespace an address means, and how it is opened."""

import asyncio
import logging
import re
from dataclasses import replace

from bus.clock import Clock, SystemClock
from bus.contract import Bus, BusError
from bus.options import SILENT_HINT, KafkaOptions, kafka_options
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
    return asyncio.run(_found(log)).address if is_kafka(log) else log


def open_kafka(log: str, clock: Clock) -> Bus:
    """Open a log on Kafka whose address is `resolved`."""
    from bus.kafka import KafkaBus

    return KafkaBus.open(kafka_options(log), clock)


async def _found(log: str) -> KafkaOptions:
    options = kafka_options(log)
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
        others = f"there are {named}" if named else "`tidegate demo --bus kafka` makes one"
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

    bus = KafkaBus.open(options, SystemClock())
    try:
        return await bus.last(JOURNAL.name) is not None
    finally:
        await bus.close()


def demo_namespace(number: int) -> str:
    """Give the namespace of a demo."""
    return f"demo-{number}"


def numbered(namespaces: list[str]) -> list[int]:
    """Give the numbers of the demos among the namespaces, ascending."""
    return sorted(int(found[1]) for name in namespaces if (found := _DEMO.fullmatch(name)))
