"""The device of docs/device.py, which knows MQTT and nothing of Tidegate, in a fleet."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import TypeVar

import pytest

from bus.bridge import Bridge
from bus.clock import SystemClock
from bus.contract import Message
from schemas.codec import Rejected, decode_event
from schemas.commands import CommandData, Rebirth
from schemas.events import (
    CommandAcknowledged,
    InferenceLoad,
    LinkLost,
    NodeBorn,
    WorkerStarted,
    WorkerStopped,
)
from schemas.topics import COMMANDS, EVENTS, TELEMETRY, dead_letters
from schemas.values import Strict
from tests.brokers import need_brokers
from tests.gangs import start, stop
from tests.memory_bus import MemoryBus
from tests.mosquitto import Mosquitto, wired
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.post import ordered

pytestmark = pytest.mark.broker
DEVICE = Path(__file__).resolve().parents[2] / "docs" / "device.py"
CLOCK = SystemClock()
Said = TypeVar("Said", bound=Strict)


def order(number: int, data: CommandData) -> Message:
    return Message(COMMANDS.name, "jetson", ordered(data, number, "jetson", CLOCK.now_s()))


async def heard(bus: MemoryBus, kind: type[Said], topic: str = EVENTS.name) -> list[Said]:
    """What arrived of a kind, each message once."""
    values = {record.value or b"": None async for record in bus.read(topic)}
    decoded = [decode_event(value) for value in values]
    assert not any(isinstance(one, Rejected) for one in decoded)
    return [one.data for one in decoded if not isinstance(one, Rejected) and type(one.data) is kind]


async def until_heard(
    bus: MemoryBus, kind: type[Said], count: int = 1, topic: str = EVENTS.name
) -> Said:
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found := await heard(bus, kind, topic)) < count:
        assert time.monotonic() < deadline_s, f"no {kind.__name__} came"
        await asyncio.sleep(0.02)
    assert len(found) == count
    return found[-1]


@pytest.mark.parametrize(
    "settings",
    ["allow_anonymous false\n", "allow_anonymous true\nacl_file {}/nothing\n"],
    ids=["the connection", "what it says"],
)
async def test_it_says_that_the_broker_refuses(tmp_path: Path, settings: str) -> None:
    need_brokers()
    (tmp_path / "nothing").write_text("topic read tidegate/v1/jetson/down/command\n")
    broker = Mosquitto(tmp_path, settings.format(tmp_path))
    device = await asyncio.create_subprocess_exec(
        sys.executable, DEVICE, "127.0.0.1", str(broker.port), "jetson", stdout=PIPE
    )
    assert device.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            said = await device.stdout.readline()
        assert said == b"refused by the broker: Not authorized\n"
    finally:
        device.kill()
        assert b"joined" not in await device.stdout.read()
        await device.wait()
        broker.stop(forget=True)


async def test_it_says_that_nobody_answers() -> None:
    port = free_port()
    device = await asyncio.create_subprocess_exec(
        sys.executable, DEVICE, "127.0.0.1", str(port), "jetson", stdout=PIPE
    )
    assert device.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            said = await device.stdout.readline()
        assert said == f"127.0.0.1:{port} does not answer\n".encode()
    finally:
        device.kill()
        await device.wait()


async def test_it_joins_obeys_and_goes_on_after_the_broker_was_away(tmp_path: Path) -> None:
    need_brokers()
    broker, bus = Mosquitto(tmp_path), MemoryBus(CLOCK)
    wire = wired(broker.options, "bridge", CLOCK)
    bridge = Bridge(name="b", wire=wire, buses={"default": bus}, clock=CLOCK)
    running = asyncio.create_task(bridge.run(["default"]))
    await until(lambda: bridge.wire.connected)
    device = await asyncio.create_subprocess_exec(
        sys.executable, DEVICE, "127.0.0.1", str(broker.port), "jetson"
    )
    try:
        assert (await until_heard(bus, NodeBorn)).held == []
        await until_heard(bus, InferenceLoad, topic=TELEMETRY.name)
        begin = start("j", 3, 5, jetson=[0])
        await bus.publish(order(0, begin), order(0, begin))  # the same command twice
        ack = await until_heard(bus, CommandAcknowledged, 2)
        assert (ack.command, ack.outcome) == ("default-0-0", "done")
        started = await until_heard(bus, WorkerStarted)
        assert (started.job, started.epoch, started.gpus, started.step) == ("j", 3, [0], 5)
        broker.stop()
        broker.start()
        number, deadline_s = 1, time.monotonic() + PATIENCE_S
        while len(born := await heard(bus, NodeBorn)) < 2:
            assert time.monotonic() < deadline_s, "it did not come back"
            await bus.publish(order(number, Rebirth()))  # unheard until it listens again
            number += 1
            await asyncio.sleep(0.5)
        assert [gang.job for gang in born[-1].held] == ["j"]
        await bus.publish(order(number, stop(epoch=3, checkpoint=False, grace_s=1.0)))
        assert (await until_heard(bus, WorkerStopped)).reason == "preempted"
        device.kill()
        assert (await until_heard(bus, LinkLost)).agent == "jetson"
        letters = [record async for record in bus.read(dead_letters(EVENTS).name)]
        assert (letters, bridge.counters.refused) == ([], {})
    finally:
        if device.returncode is None:
            device.kill()
        await device.wait()
        bridge.stop()
        await running
        broker.stop(forget=True)
