"""Choosing a backend by its address."""

import re

from bus.clock import Clock
from bus.contract import Bus, BusError
from bus.memory import MemoryBus
from bus.options import kafka_options
from bus.sqlite import SqliteBus

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


def open_bus(address: str, clock: Clock) -> Bus:
    """Open `memory:`, `sqlite:PATH`, a plain path, which means SQLite, or `kafka://HOST:PORT`.

    A Kafka address without a host (`kafka:`) takes it from the environment; see `bus.options`.

    Raises:
        BusError: the scheme is unknown, or what it needs is missing.
        Unreadable: the file is not a Tidegate log.
    """
    match = _SCHEME.fullmatch(address)
    scheme, rest = match.groups() if match else ("sqlite", address)
    if scheme == "memory":
        return MemoryBus(clock)
    if scheme == "kafka":
        return _open_kafka(address, clock)
    if scheme in {"mqtt", "mqtts"}:
        raise BusError(
            f"{scheme}: is an edge agent's link, not a bus; use kafka://HOST:PORT or sqlite:PATH"
        )
    if scheme != "sqlite":
        raise BusError(f"{address}: {scheme!r} is no bus; use sqlite:PATH, kafka:, or memory:")
    if not rest:
        raise BusError("the address of the bus names no file; write sqlite:PATH")
    return SqliteBus.open(rest, clock)


def _open_kafka(address: str, clock: Clock) -> Bus:
    options = kafka_options(address)
    try:
        # Only who speaks to Kafka needs its client installed.
        from bus.kafka import KafkaBus
    except ModuleNotFoundError as error:
        raise BusError(
            f"{address} needs {error.name}: pip install 'tidegate[scheduler]'"
        ) from error
    return KafkaBus.open(options, clock)
