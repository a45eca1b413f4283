"""What Kafka and Mosquitto carry for Tidegate, beside what the bare clients carry in the same run.

Hops one by one, ours over raw; then whole fleets: devices on MQTT, a bridge and two schedulers as
processes of their own, all on this machine together with both brokers and this measurement.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from benchmarks import raw_clients
from benchmarks.device_fleet import DeviceFleet, cause_of
from benchmarks.flood import telemetry
from bus.bridge import Bridge
from bus.bridge_limits import BridgeLimits
from bus.clock import SystemClock
from bus.contract import Message, Record
from bus.kafka import KafkaBus
from bus.kafka_namespaces import remove_namespace
from bus.options import (
    KAFKA_VARIABLE,
    MQTT_VARIABLE,
    KafkaOptions,
    MqttOptions,
    kafka_options,
    mqtt_options,
)
from schemas.topics import EVENTS, JOURNAL, TELEMETRY
from tests.mosquitto import wired
from tests.ports import free_port

DEVICES = (100, 1_000, 10_000)
#: Far from what this machine can do, and what is aimed at.
RATES_PER_S = (100.0, 1_000.0)
#: After the births the scheduler asks every idle owner for its node; this measures a steady state.
SETTLE_S = 10.0
BATCH = 500
#: So many devices share the hop of a fleet.
BRIDGED_DEVICES = 200
#: One device carries all of another hop's messages.
_NO_LIMIT = BridgeLimits(rate_per_s=1e9, burst=1e9, bytes_per_s=1e12)


def missing() -> str | None:
    """Say which broker is not named, None if both are."""
    for name in (KAFKA_VARIABLE, MQTT_VARIABLE):
        if not os.environ.get(name):
            return f'{name} is not set: compose/brokers up, then eval "$(compose/brokers env)"'
    return None


def run(seconds: float) -> dict[str, float]:
    """Measure; `seconds` scales the number of messages and how long fleets report at each rate."""
    return asyncio.run(_run(seconds))


async def _run(seconds: float) -> dict[str, float]:
    count = max(2_000, int(4_000 * seconds))
    figures: dict[str, float] = {}
    async with _space("hops") as (kafka, mqtt):
        figures |= await _hops(kafka, mqtt, count)
    for devices in DEVICES:
        async with _space(f"fleet{devices}") as (kafka, mqtt):
            figures |= await _fleet(kafka, mqtt, devices, max(10.0, 2.0 * seconds))
    async with _space("takeover") as (kafka, mqtt):
        figures |= await _takeover(kafka, mqtt)
    return figures


@contextlib.asynccontextmanager
async def _space(name: str) -> AsyncIterator[tuple[KafkaOptions, MqttOptions]]:
    space = f"bench-{name}-{os.getpid()}"
    kafka = replace(kafka_options(f"kafka:/{space}"), replication=1)
    mqtt = mqtt_options(f"mqtt:/{space}")
    try:
        yield kafka, mqtt
    finally:
        await remove_namespace(kafka)


# --- hops ---------------------------------------------------------------------------------------


async def _hops(kafka: KafkaOptions, mqtt: MqttOptions, count: int) -> dict[str, float]:
    values = [value for _, value in telemetry(count)]
    topic = kafka.topic("raw")
    await raw_clients.make_topic(kafka.bootstrap, topic)
    rates = {
        "raw_aiokafka_publish_per_s": await raw_clients.produce(kafka.bootstrap, topic, values),
        "raw_aiokafka_read_per_s": await raw_clients.consume(kafka.bootstrap, topic, count),
    }
    bus = KafkaBus.open(kafka, SystemClock())
    messages = [Message(EVENTS.name, "cell", value) for value in values]
    await bus.publish(messages[0])  # the first makes the topics
    began = time.perf_counter()
    batches = [messages[start : start + BATCH] for start in range(0, count, BATCH)]
    await asyncio.gather(*(bus.publish(*batch) for batch in batches))
    rates["kafka_publish_per_s"] = count / (time.perf_counter() - began)
    consumer = await bus.consumer("reader", [EVENTS.name])
    began, found = time.perf_counter(), 0
    while found < count:
        found += len(await consumer.poll(1000, 5.0))
    rates["kafka_read_per_s"] = found / (time.perf_counter() - began)
    await consumer.close()
    await bus.close()
    rates["raw_bridge_per_s"] = await _raw_bridge(kafka, mqtt, values)
    rates["bridge_per_s"] = await _our_bridge(kafka, mqtt, values)
    rates["bridge_of_fleet_per_s"] = await _fleet_bridge(kafka, mqtt, count)
    for ours, raw in (
        ("kafka_publish", "raw_aiokafka_publish"),
        ("kafka_read", "raw_aiokafka_read"),
        ("bridge", "raw_bridge"),
    ):
        rates[f"{ours}_over_raw"] = rates[f"{ours}_per_s"] / rates[f"{raw}_per_s"]
    return rates


async def _raw_bridge(kafka: KafkaOptions, mqtt: MqttOptions, values: Sequence[bytes]) -> float:
    topic = kafka.topic("raw-bridge")
    await raw_clients.make_topic(kafka.bootstrap, topic)
    address = mqtt.address("raw/up")
    bridge = raw_clients.RawBridge(mqtt.host, mqtt.port, address, kafka.bootstrap, topic)
    running = asyncio.create_task(bridge.run())
    await bridge.ready.wait()
    rate = await _flooded(mqtt, address, values, lambda: bridge.forwarded)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return rate


async def _our_bridge(kafka: KafkaOptions, mqtt: MqttOptions, values: Sequence[bytes]) -> float:
    address = mqtt.address("tidegate/v1/device-0/up/telemetry")
    async with _bridge(kafka, mqtt) as bridge:
        return await _flooded(mqtt, address, values, lambda: bridge.counters.forwarded_up)


async def _fleet_bridge(kafka: KafkaOptions, mqtt: MqttOptions, count: int) -> float:
    """As `_our_bridge`, but of many devices: a batch is confirmed to each of them."""
    arguments = (mqtt.host, mqtt.port, mqtt.namespace, count, BRIDGED_DEVICES)
    async with _bridge(kafka, mqtt) as bridge:
        flood = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.flood", *map(str, arguments),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert flood.stdin is not None
        assert flood.stdout is not None
        await flood.stdout.readline()
        began = time.perf_counter()
        flood.stdin.write(b"\n")
        while bridge.counters.forwarded_up < count:
            await asyncio.sleep(0.005)
        rate = count / (time.perf_counter() - began)
        await flood.wait()
    return rate


@contextlib.asynccontextmanager
async def _bridge(kafka: KafkaOptions, mqtt: MqttOptions) -> AsyncIterator[Bridge]:
    bus, clock = KafkaBus.open(kafka, SystemClock()), SystemClock()
    wire = wired(mqtt, "bench-bridge", clock)
    bridge = Bridge(name="bench", wire=wire, buses={"default": bus}, clock=clock, limits=_NO_LIMIT)
    running = asyncio.create_task(bridge.run())
    while not bridge.wire.connected:
        await asyncio.sleep(0.01)
    yield bridge
    bridge.stop()
    await running
    await bus.close()


async def _flooded(
    mqtt: MqttOptions, address: str, values: Sequence[bytes], forwarded: Callable[[], int]
) -> float:
    """Publish from a process of its own, so that only the bridge is on this one's core."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "messages"
        lines.write_bytes(b"\n".join(values) + b"\n")
        with lines.open("rb") as source:
            began = time.perf_counter()
            flood = await asyncio.create_subprocess_exec(
                "mosquitto_pub", "-V", "5", "-h", mqtt.host, "-p", str(mqtt.port),
                "-q", "1", "-t", address, "-l", stdin=source,
            )  # fmt: skip
            while forwarded() < len(values):
                await asyncio.sleep(0.005)
            rate = len(values) / (time.perf_counter() - began)
        await flood.wait()
    return rate


# --- whole fleets -------------------------------------------------------------------------------


class Processes:
    """Roles as processes of their own, with one configuration."""

    def __init__(self, folder: Path, kafka: KafkaOptions, mqtt: MqttOptions) -> None:
        self._folder = folder
        self._config = folder / "tidegate.toml"
        self._config.write_text(
            f'[kafka]\nbootstrap = "{kafka.bootstrap}"\nnamespace = "{kafka.namespace}"\n'
            "replication = 1\n"
            f'[mqtt]\nurl = "mqtt://{mqtt.host}:{mqtt.port}"\nnamespace = "{mqtt.namespace}"\n'
            '[log]\nlevel = "warning"\n[scheduler]\nbirths = "any"\n'
        )
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, role: str, name: str) -> None:
        """Start a role and return when it is ready."""
        port_file = self._folder / f"{name}.log"
        port = free_port()
        with port_file.open("wb") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "console.main", role, "--config", str(self._config),
                "--set", f"{role}.name={name}", "--set", f"http.port={port}",
                stdout=log, stderr=log,
            )  # fmt: skip
        await _until(lambda: _answers(port), 60.0, f"{name} is not ready: {port_file}")

    async def stop(self) -> None:
        """End all of them."""
        for process in self.running.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        await asyncio.gather(*(process.wait() for process in self.running.values()))


async def _fleet(
    kafka: KafkaOptions, mqtt: MqttOptions, count: int, seconds: float
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder), kafka, mqtt)
        bus = KafkaBus.open(kafka, SystemClock())
        fleet = DeviceFleet(mqtt, count, f"d{count}")
        watch = asyncio.create_task(_follow(bus, fleet))
        try:
            await processes.start("scheduler", "scheduler-1")
            await processes.start("bridge", "bridge-1")
            began = time.perf_counter()
            await fleet.start()
            await _until(lambda: _consumed(bus), 120.0, "the births are not consumed")
            births_s = time.perf_counter() - began
            await asyncio.sleep(SETTLE_S)
            name = f"multiplexed_{count}_devices"
            figures = {f"{name}_births_per_s": count / births_s}
            for rate_per_s in RATES_PER_S:
                figures |= await _reported(bus, fleet, rate_per_s, seconds, name)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await fleet.close()
            await processes.stop()
            await bus.close()
    return figures


async def _reported(
    bus: KafkaBus, fleet: DeviceFleet, rate_per_s: float, seconds: float, name: str
) -> dict[str, float]:
    name = f"{name}_at_{rate_per_s:.0f}_per_s"
    fleet.forget()
    began = time.perf_counter()
    await fleet.report(rate_per_s, seconds)
    rate = fleet.sent / (time.perf_counter() - began)
    await _until(lambda: _consumed(bus), 120.0, "the reports are not consumed")
    await asyncio.sleep(1.0)
    seen = len(fleet.samples.to_journal_s)
    return {
        f"{name}_events_per_s": rate,
        f"{name}_journalled_of_sent": seen / max(1, seen + len(fleet.left)),
        **_percentiles(f"{name}_edge_to_journal", fleet.samples.to_journal_s),
        **_percentiles(f"{name}_event_to_command", fleet.samples.to_command_s),
    }


async def _follow(bus: KafkaBus, fleet: DeviceFleet) -> None:
    consumer = await bus.consumer("bench-journal", [JOURNAL.name])
    while True:
        records = await consumer.poll(1000, None)
        seen = time.perf_counter()
        for record in records:
            if record.value is not None:
                fleet.journalled(cause_of(record.value), seen)


async def _consumed(bus: KafkaBus) -> bool:
    """Whether the scheduler has taken all that is stored."""
    reader = await bus.consumer("scheduler-default", [EVENTS.name, TELEMETRY.name])
    try:
        return await reader.lag() == 0
    finally:
        await reader.close()


async def _takeover(kafka: KafkaOptions, mqtt: MqttOptions) -> dict[str, float]:
    """From the end of a leader to the first word of the next one in the journal."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder), kafka, mqtt)
        bus = KafkaBus.open(kafka, SystemClock())
        try:
            for name in ("scheduler-1", "scheduler-2", "scheduler-3"):
                await processes.start("scheduler", name)
            for what, number in (("killed", signal.SIGKILL), ("paused", signal.SIGSTOP)):
                leader = await _leader(bus)
                began = time.perf_counter()
                processes.running[leader].send_signal(number)
                await _until(partial(_other_than, bus, leader), 60.0, "nobody takes over")
                figures[f"takeover_{what}_s"] = time.perf_counter() - began
        finally:
            await processes.stop()
            await bus.close()
    return figures


async def _leader(bus: KafkaBus) -> str:
    found = ""
    async for record in bus.read(JOURNAL.name):
        found = _named(record) or found
    return found


async def _other_than(bus: KafkaBus, former: str) -> bool:
    return await _leader(bus) != former


def _named(record: Record) -> str:
    stimulus = orjson.loads(record.value or b"{}")["data"]["stimulus"]
    return str(stimulus.get("data", stimulus).get("leader", ""))


async def _until(done: Callable[[], Awaitable[bool]], limit_s: float, problem: str) -> None:
    until = time.perf_counter() + limit_s
    while not await done():
        if time.perf_counter() > until:
            raise RuntimeError(problem)
        await asyncio.sleep(0.05)


async def _answers(port: int) -> bool:
    def ask() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1.0) as page:
                return bool(page.status == 200)
        except OSError:
            return False

    return await asyncio.to_thread(ask)


def _percentiles(name: str, samples: Sequence[float]) -> dict[str, float]:
    if not samples:
        return {f"{name}_samples": 0.0}
    p50, p99 = np.percentile(np.array(samples) * 1000.0, [50, 99])
    return {
        f"{name}_p50_ms": float(p50),
        f"{name}_p99_ms": float(p99),
        f"{name}_samples": float(len(samples)),
    }
