"""Choosing a backend by its address."""

import re

from bus.clock import Clock
from bus.contract import Bus, BusError
from bus.memory import MemoryBus
from bus.sqlite import Durability, SqliteBus

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


def open_bus(address: str, clock: Clock, *, durability: Durability = "power_loss") -> Bus:
    """Open `memory:`, `sqlite:PATH`, or a plain path, which means SQLite.

    Raises:
        BusError: the scheme is unknown, or not in this release.
        Unreadable: the file is not a Tidegate log.
    """
    match = _SCHEME.fullmatch(address)
    scheme, rest = match.groups() if match else ("sqlite", address)
    if scheme == "memory":
        return MemoryBus(clock)
    if scheme in {"kafka", "mqtt"}:
        raise BusError(
            f"{address}: the {scheme} backend is not in this release; use sqlite:PATH or memory:"
        )
    if scheme != "sqlite":
        raise BusError(f"{address}: {scheme!r} is no bus; use sqlite:PATH, a path, or memory:")
    if not rest:
        raise BusError("the address of the bus names no file; write sqlite:PATH")
    return SqliteBus.open(rest, clock, durability=durability)
