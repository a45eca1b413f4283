"""Opens the bus of a role: the Kafka cluster of the configuration, or one SQLite file.

Kafka's client is imported only where it is used: a single machine does without it.
"""

from typing import TYPE_CHECKING

from bus.clock import Clock
from bus.contract import Bus, BusError
from bus.options import KafkaOptions
from bus.sqlite import SqliteBus
from services.config import Config

if TYPE_CHECKING:
    from bus.kafka_cells import KafkaCells


def kafka_of(config: Config) -> KafkaOptions | None:
    """Give the cluster, None if the bus is a file.

    Raises:
        BusError: the address is of neither, or names no server.
    """
    address = config.bus
    if address.startswith("sqlite:"):
        return None
    if not address.startswith("kafka:"):
        raise BusError(f"bus: {address!r} is no bus of a service; write kafka: or sqlite:PATH")
    return config.kafka.options() if address == "kafka:" else config.kafka.at(address)


def open_bus_of(config: Config, options: KafkaOptions | None, clock: Clock, cell: str) -> Bus:
    """Open the bus of a cell; `options` is what `kafka_of` gave.

    Raises:
        BusError: there is no such cell, or the file cannot be used.
    """
    if options is not None:
        from bus.kafka import KafkaBus

        return KafkaBus.open(options, clock, cell)
    path = config.bus.removeprefix("sqlite:")
    if not path:
        raise BusError("bus: names no file; write sqlite:PATH")
    return SqliteBus.open(path, clock)


def join(options: KafkaOptions, clock: Clock, group: str, member: str) -> "KafkaCells":
    """Prepare to share the cells out with the other members of a group."""
    from bus.kafka_cells import KafkaCells

    return KafkaCells(options, clock, group=group, member=member)
