"""A machine without GPUs: real processes on slots, measured."""

import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping

import psutil
import pytest

from runtime.metering.host import HostSlots
from runtime.metering.sampled import SampledMeter
from tests.patience import wait_until

BUSY = "x = bytearray(100 * 1024 * 1024); print(flush=True)\nwhile True: pass"
IDLE = "import time; print(flush=True); time.sleep(1000)"


@pytest.fixture
def busy() -> Iterator[int]:
    yield from running(BUSY)


@pytest.fixture
def idle() -> Iterator[int]:
    yield from running(IDLE)


def running(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_slot_shows_what_its_gang_uses(busy: int, idle: int) -> None:
    held: Mapping[int, Collection[int]] = {0: [busy], 1: [idle]}
    cpus = psutil.cpu_count() or 1
    slots = HostSlots({"here": max(2, cpus)}, lambda _: held)

    def uses() -> bool:
        first, second = slots.read()["here"][:2]
        assert first.utilisation is not None
        assert second.utilisation is not None
        return first.utilisation > 0.2 and first.utilisation > second.utilisation + 0.1

    wait_until(uses, "the busy process did not get a fifth of a CPU")
    readings = slots.read()["here"]
    assert (readings[0].memory_used_mib or 0) > 100 > (readings[1].memory_used_mib or 0) > 1
    assert all(one.power_w is None for one in readings)
    assert all(0 <= (one.utilisation or 0.0) <= 1 for one in readings)


def test_a_process_on_two_slots_counts_half_on_each(busy: int) -> None:
    slots = HostSlots({"here": 2}, lambda _: {0: [busy], 1: [busy]})
    first, second = slots.read()["here"]
    assert first == second
    whole = psutil.Process(busy).memory_info().rss / 1024**2
    assert first.memory_used_mib == pytest.approx(whole / 2, rel=0.1)


def test_without_gangs_slots_show_the_machine(busy: int) -> None:
    slots = HostSlots({"here": 1, "there": 1})
    used_mib = psutil.virtual_memory().used / 1024**2

    def works() -> bool:
        return (slots.read()["here"][0].utilisation or 0.0) > 0.1

    wait_until(works)
    readings = slots.read()
    assert readings["here"][0].memory_used_mib == pytest.approx(used_mib / 2, rel=0.5)
    assert readings["here"] == readings["there"]


def test_a_process_that_has_ended_uses_nothing(busy: int) -> None:
    slots = HostSlots({"here": 2}, lambda _: {0: [2**22 - 1, 0]})
    assert slots.read()["here"][0].utilisation == 0.0


def test_a_node_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="slots: here has 0"):
        HostSlots({"here": 0})


def test_the_meter_gives_one_entry_per_slot() -> None:
    meter = SampledMeter(HostSlots({"a": 3, "b": 1}), every_s=0.01)
    wait_until(lambda: meter.counters.samples >= 3)
    measured = meter.measure(0.0, 60.0)
    meter.close()
    assert [(one.node, len(one.gpu_utilisation)) for one in measured] == [("a", 3), ("b", 1)]
    assert None not in measured[0].gpu_utilisation
    assert measured[0].gpu_power_w == [None] * 3
