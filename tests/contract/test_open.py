"""Choosing a backend by its address."""

from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.contract import BusError
from bus.memory import MemoryBus
from bus.open import open_bus
from bus.sqlite import SqliteBus


async def test_address_chooses_the_backend(tmp_path: Path) -> None:
    clock = SystemClock()
    assert isinstance(open_bus("memory:", clock), MemoryBus)
    for address in (str(tmp_path / "a.db"), f"sqlite:{tmp_path / 'b.db'}"):
        bus = open_bus(address, clock)
        assert isinstance(bus, SqliteBus)
        await bus.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("kafka://broker:9092", "kafka backend is not in this release"),
        ("mqtt:broker", "mqtt backend is not in this release"),
        ("redis:host", "'redis' is no bus"),
        ("sqlite:", "names no file"),
        ("", "names no file"),
    ],
)
def test_other_addresses_are_refused(address: str, words: str) -> None:
    with pytest.raises(BusError, match=words):
        open_bus(address, SystemClock())
