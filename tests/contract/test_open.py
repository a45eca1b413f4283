"""Choosing a backend by its address."""

import sys
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.contract import BusError
from bus.kafka import KafkaBus
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


async def test_kafka_address_names_host_and_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = open_bus("kafka://broker:9092/fleet-1", SystemClock())
    assert isinstance(bus, KafkaBus)
    assert (bus.options.bootstrap, bus.options.namespace) == ("broker:9092", "fleet-1")
    assert bus.cell == "default"
    await bus.close()  # it never connected
    monkeypatch.setitem(sys.modules, "bus.kafka", None)
    with pytest.raises(BusError, match=r"pip install 'tidegate\[scheduler\]'"):
        open_bus("kafka://broker:9092", SystemClock())


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("kafka:broker", "no Kafka address"),
        ("mqtt://broker", "an edge agent's link, not a bus"),
        ("mqtts://user:secret@broker", "^mqtts: is an edge"),
        ("redis:host", "'redis' is no bus"),
        ("sqlite:", "names no file"),
        ("", "names no file"),
    ],
)
def test_other_addresses_are_refused(address: str, words: str) -> None:
    with pytest.raises(BusError, match=words):
        open_bus(address, SystemClock())
