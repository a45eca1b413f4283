"""The link of an edge agent against a real broker: what it is told. The test plays the bridge."""

import asyncio

import pytest

from bus import mqtt_inbox
from bus.clock import PacedClock
from bus.contract import BusError, Closed, Record
from bus.mqtt import MqttLink
from bus.options import MqttOptions
from schemas.topics import COMMANDS, EVENTS
from tests.far import CLOCK, Far, far, link, options
from tests.patience import PATIENCE_S, until

__all__ = ["far", "link", "options"]  # the fixtures
pytestmark = pytest.mark.broker


async def test_commands_are_kept_until_they_are_committed(
    link: MqttLink, far: Far, options: MqttOptions
) -> None:
    consumer = await link.consumer("agent-n0", [COMMANDS.name], keys=["n0"])
    await until(lambda: link.connected)
    for number in range(6):
        far.say("command", b"%d" % number)
    await until(lambda: link.client.received == 6)
    assert await consumer.lag() == 6
    first = await consumer.poll(2)
    await consumer.commit()
    await consumer.poll(2)
    assert consumer.positions == {COMMANDS.name: 4}
    assert [(r.topic, r.key, r.offset, r.value, dict(r.headers)) for r in first] == [
        (COMMANDS.name, "n0", n, b"%d" % n, {"sig": "s"}) for n in range(2)
    ]
    await link.publish()
    await link.close()
    with pytest.raises(Closed):
        await consumer.poll()
    heir = MqttLink.open(options, CLOCK, "n0")
    again = await heir.consumer("agent-n0", [COMMANDS.name])
    await until(lambda: heir.client.received == 4)
    assert [record.value for record in await again.poll()] == [b"2", b"3", b"4", b"5"]
    await again.commit()
    assert await again.poll(timeout_s=0.05) == []
    await heir.close()


async def test_a_command_that_comes_again_while_it_waits_is_one(link: MqttLink, far: Far) -> None:
    consumer = await link.consumer("g", [COMMANDS.name])
    await until(lambda: link.connected)
    far.say("command", b"0")
    far.say("command", b"1")
    assert len(await consumer.poll(1)) == 1  # 0 is handed over, not committed
    await until(lambda: link.client.received == 2)
    link.client.renew()
    await until(lambda: link.client.received == 4)
    assert [record.value for record in await consumer.poll()] == [b"1"]
    await consumer.commit()
    await until(lambda: link.connected)
    link.client.renew()
    await until(lambda: link.client.reconnects == 2)
    far.say("command", b"2")
    assert [record.value for record in await consumer.poll()] == [b"2"]


async def test_more_commands_than_there_is_room_for_come_later(
    link: MqttLink, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_inbox, "HELD_MAX", 3)
    consumer = await link.consumer("g", [COMMANDS.name])
    await until(lambda: link.connected)
    for number in range(8):
        far.say("command", b"%d" % number)
    await until(lambda: link.client.received == 8)
    found: list[bytes | None] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 8:
            found += [record.value for record in await consumer.poll(timeout_s=1.0)]
            await consumer.commit()
    assert found == [b"%d" % number for number in range(8)]


async def test_one_reader_of_commands_and_of_nothing_else(link: MqttLink) -> None:
    for topics, keys in (([EVENTS.name], None), ([COMMANDS.name], ["n1"])):
        with pytest.raises(BusError, match=r"hears tidegate.commands.v1 of n0 only"):
            await link.consumer("g", topics, keys=keys)
    first = await link.consumer("g", [COMMANDS.name])
    with pytest.raises(BusError, match="have a reader already; close that first"):
        await link.consumer("g", [COMMANDS.name])
    await first.close()
    await link.consumer("g", [COMMANDS.name])


async def test_waiting_for_commands_lets_simulated_time_pass(
    options: MqttOptions, far: Far
) -> None:
    clock = PacedClock(1_000_000.0, None)
    link = MqttLink.open(options, clock, "n0")
    consumer = await link.consumer("g", [COMMANDS.name])
    await until(lambda: link.connected)
    heard: list[list[Record]] = []

    async def agent() -> None:
        heard.append(await consumer.poll(timeout_s=3600.0))
        heard.append(await consumer.poll(timeout_s=3600.0))
        clock.leave()

    clock.enter()
    agent_runs = asyncio.create_task(agent())
    async with asyncio.timeout(PATIENCE_S):
        await clock.run_until(1_003_600.0)
        far.say("command", b"{}")
        await agent_runs
    assert [len(records) for records in heard] == [0, 1]
    assert heard[1][0].time_s == 1_003_600.0
    await link.close()
