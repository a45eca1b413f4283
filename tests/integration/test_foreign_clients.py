"""Clients that nobody of Tidegate wrote: the brokers' own tools, and the manual's device."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import urlsplit

import pytest

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from schemas.codec import Rejected, decode_cell, decode_command, encode, event
from schemas.events import EventData, JobCancelled
from schemas.journal import CellState, decode_entry
from schemas.topics import EVENTS, JOURNAL, dead_letters
from tests.brokers import JARS, JAVA
from tests.builders import node_born
from tests.composed import ROOT
from tests.integration.processes import Fleet, Service, job, ready, submit, until
from tests.patience import PATIENCE_S, whole_lines

pytestmark = [pytest.mark.broker, pytest.mark.slow]
BORN = node_born("jetson", agent="jetson", pool="edge", kind="edge", gpus=1)


@pytest.fixture
def fleet(
    tmp_path: Path,
    fleets: Callable[[Path, str], Fleet],
    kafka_bootstrap: str,
    mqtt_url: str,
    namespace: str,
) -> Fleet:
    """One cell: Kafka's producer chooses the partition by the key, and so finds the only one."""
    kafka = (
        f'[kafka]\nbootstrap = "{kafka_bootstrap}"\nnamespace = "{namespace}"\nreplication = 1\n'
    )
    mqtt = f'[mqtt]\nurl = "{mqtt_url}"\nnamespace = "{namespace}"\n'
    return fleets(tmp_path, kafka + mqtt)


@pytest.fixture
async def bus(kafka_bootstrap: str, namespace: str) -> AsyncIterator[KafkaBus]:
    opened = KafkaBus.open(
        KafkaOptions(kafka_bootstrap, namespace=namespace, replication=1), SystemClock()
    )
    yield opened
    await opened.close()


class Tools:
    """The brokers' own tools, as a person would call them."""

    def __init__(self, kafka: str, mqtt: str, namespace: str) -> None:
        self.kafka, self.mqtt, self.namespace = kafka, mqtt, namespace

    def publish(self, address: str, file: Path) -> None:
        """Send a file's bytes, and return when the broker has confirmed them."""
        url = f"{self.mqtt}/{self.namespace}/tidegate/v1/{address}"
        command = ["mosquitto_pub", "-V", "5", "-q", "1", "-L", url, "-f", str(file)]
        subprocess.run(command, check=True, timeout=PATIENCE_S)

    @contextmanager
    def hearing(self, address: str, log: Path) -> Iterator[Callable[[], list[bytes]]]:
        """Write what comes to an address to a file, a line each, in hexadecimal digits."""
        url = f"{self.mqtt}/{self.namespace}/tidegate/v1/{address}"
        command = ["mosquitto_sub", "-V", "5", "-q", "1", "-L", url, "-F", "%x"]
        with log.open("wb") as out, subprocess.Popen(command, stdout=out) as process:
            try:
                yield lambda: [bytes.fromhex(line) for line in whole_lines(log)]
            finally:
                process.terminate()

    def produce(self, topic: str, key: str, value: bytes) -> None:
        """Write a record with Kafka's console producer."""
        subprocess.run(
            [
                *JAVA,
                "org.apache.kafka.tools.ConsoleProducer",
                *("--bootstrap-server", self.kafka, "--topic", f"{self.namespace}.{topic}"),
                *("--property", "parse.key=true", "--property", "key.separator=|"),
            ],
            input=key.encode() + b"|" + value + b"\n",
            check=True,
            timeout=2 * PATIENCE_S,
        )

    def consume(self, topic: str, count: int) -> list[bytes]:
        """Read the first records of a topic with Kafka's console consumer: headers|key|value."""
        done = subprocess.run(
            [
                *JAVA,
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
                *("--bootstrap-server", self.kafka, "--topic", f"{self.namespace}.{topic}"),
                *(
                    "--from-beginning",
                    "--max-messages",
                    str(count),
                    "--timeout-ms",
                    f"{PATIENCE_S * 1000:.0f}",
                ),
                *("--property", "print.key=true", "--property", "print.headers=true"),
                *("--property", "key.separator=|"),
            ],
            capture_output=True,
            check=True,
            timeout=2 * PATIENCE_S,
        )
        return done.stdout.splitlines()


@pytest.fixture
def tools(kafka_bootstrap: str, mqtt_url: str, namespace: str) -> Tools:
    lacking = [name for name in ("java", "mosquitto_pub", "mosquitto_sub") if not which(name)]
    if not (JARS / ".complete").exists():
        lacking.append("Kafka's jars (compose/brokers fetch)")
    if lacking:
        assert not os.environ.get("CI"), f"on CI {lacking} must be there"
        pytest.skip(f"NOT TESTED here: {' and '.join(lacking)} not found")
    return Tools(kafka_bootstrap, mqtt_url, namespace)


def said(data: EventData, source: str, sequence: int = 0) -> bytes:
    now_s = SystemClock().now_s()
    return encode(event(data, source=source, sequence=sequence, bootid=1, time_s=now_s))


def jobs(scheduler: Service, state: str) -> float:
    return scheduler.metrics().get("tidegate_jobs", {}).get(("default", state), 0)


async def stimuli(bus: KafkaBus) -> list[dict[str, Any]]:
    """What the scheduler was given, by its journal."""
    entries = [decode_entry(record.value or b"") async for record in bus.read(JOURNAL.name)]
    return [entry.stimulus for entry in entries if not isinstance(entry, Rejected)]


async def test_the_brokers_own_tools_speak_with_a_fleet(
    fleet: Fleet, tools: Tools, bus: KafkaBus
) -> None:
    bridge, scheduler = fleet.start("bridge"), fleet.start("scheduler")
    await ready(bridge, scheduler)
    file = fleet.folder / "said.json"
    with (
        tools.hearing("jetson/down/command", fleet.folder / "commands") as commands,
        tools.hearing("_state/default", fleet.folder / "states") as states,
    ):
        await until(states, "the word on who leads")
        value = said(BORN, "/agents/jetson")
        file.write_bytes(value)
        await asyncio.to_thread(tools.publish, "jetson/up/event", file)
        (line,) = await asyncio.to_thread(tools.consume, EVENTS.name, 1)
        assert line == b"NO_HEADERS|default|" + value, "byte for byte"

        value = said(job("by-hand"), "/tenants/t", 7)
        await asyncio.to_thread(tools.produce, EVENTS.name, "default", value)
        await until(lambda: jobs(scheduler, "queued") == 1, "the scheduler knows the job")
        taken = [one for one in await stimuli(bus) if one["kind"] == "JobSubmitted"]
        assert [one["cause"][:3] for one in taken] == [["/tenants/t", 1, 7]]
        assert taken[0]["data"]["job"] == "by-hand"

        await until(commands, "a command")
        order, state = decode_command(commands()[0]), decode_cell(states()[0])
        assert not isinstance(order, Rejected)
        assert order.subject == "jetson"
        assert not isinstance(state, Rejected)
        assert isinstance(state.data, CellState)
        assert (state.data.online, state.data.leader) == (True, "scheduler-0")


async def test_what_is_malformed_is_found_in_the_dead_letters(fleet: Fleet, tools: Tools) -> None:
    bridge = fleet.start("bridge")
    await ready(bridge)
    file = fleet.folder / "said.json"
    wrong = {
        b"no JSON": b"dlq_field:,dlq_error:malformed: is not JSON",
        said(BORN, "/agents/jetson").replace(b'"gpu_count":1', b'"gpu_count":0'): (
            b"dlq_field:data.gpu_count,dlq_error:invalid_field: should be greater"
        ),
        said(BORN, "/agents/another"): b"dlq_field:source,dlq_error:is /agents/another",
    }
    for value in wrong:
        file.write_bytes(value)
        await asyncio.to_thread(tools.publish, "jetson/up/event", file)
    letters = await asyncio.to_thread(tools.consume, dead_letters(EVENTS).name, len(wrong))
    for letter, (value, reason) in zip(letters, wrong.items(), strict=True):
        headers, key, same = letter.split(b"|", 2)
        assert headers.startswith(reason)
        assert b"dlq_origin_address:tidegate/v1/jetson/up/event" in headers
        assert (key, same) == (b"jetson", value), "byte for byte"

    def told() -> list[dict[str, Any]]:
        return [line for line in bridge.lines() if line["event"] == "message refused"]

    await until(lambda: len(told()) == len(wrong), "the bridge's log has all three")
    assert {line["node"] for line in told()} == {"jetson"}
    assert [line["kind"] for line in told()] == ["malformed", "invalid_field", "source"]
    assert {line["dead_letter_in"] for line in told()} == {dead_letters(EVENTS).name}


async def test_the_manuals_device_takes_a_job_and_gives_it_back(
    fleet: Fleet, tools: Tools, bus: KafkaBus
) -> None:
    bridge, scheduler = fleet.start("bridge"), fleet.start("scheduler")
    await ready(bridge, scheduler)
    broker = urlsplit(tools.mqtt)
    where = (str(broker.hostname), str(broker.port), "jetson", tools.namespace)
    device = subprocess.Popen([sys.executable, ROOT / "docs" / "device.py", *where])
    try:
        await submit(bus, job("first", steps=2000))
        await until(lambda: jobs(scheduler, "running") == 1, "it is lent, and runs a job")
        await submit(bus, JobCancelled(job="first"))
        await until(lambda: jobs(scheduler, "cancelled") == 1, "it stopped the job")
        await submit(bus, job("second", steps=2000))
        await until(lambda: jobs(scheduler, "completed") == 1, "it ran one to its end")
        assert [record async for record in bus.read(dead_letters(EVENTS).name)] == []
    finally:
        device.kill()
        device.wait()
