"""The MQTT client when a consumer, the broker or the way between them fails, and is back."""

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bus.options import MqttOptions
from bus.wire import LinkDown, Outgoing
from tests.contract.mqtt_peers import Make, broker, carrier, options, peer
from tests.mosquitto import Mosquitto
from tests.patience import until

pytestmark = pytest.mark.broker
__all__ = ["broker", "carrier", "options", "peer"]  # the fixtures
ROOT = Path(__file__).resolve().parents[2]

CONSUMER = """
import asyncio, sys
from bus.clock import SystemClock
from bus.mqtt_client import MqttClient
from bus.options import mqtt_options

async def main():
    def hear(message):
        number = int(message.value)
        if number < 300:
            client.ack(message)
        print(number, flush=True)
    options = mqtt_options(sys.argv[1])
    client = MqttClient(options, f"{options.namespace}-consumer", subscriptions=["q"], hear=hear,
                        clock=SystemClock())
    client.start()
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_killed_consumer_loses_nothing_it_had_not_acknowledged(
    peer: Make, options: MqttOptions
) -> None:
    url = f"mqtt://{options.host}:{options.port}/{options.namespace}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONSUMER, url, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    speaker, pipe = await peer().up(), process.stdout
    assert pipe is not None
    try:
        seen: list[int] = []
        while not seen:  # until it has subscribed
            await speaker.client.publish(Outgoing("q", b"0"))
            try:
                async with asyncio.timeout(0.3):
                    seen.append(int(await pipe.readline()))
            except TimeoutError:
                continue
        await asyncio.gather(
            *(speaker.client.send(Outgoing("q", b"%d" % number)) for number in range(1, 600))
        )
        while seen[-1] < 400:
            seen.append(int(await pipe.readline()))
    finally:
        process.kill()
        await process.wait()
    heir = await peer("q", client_id="consumer").up()
    await until(lambda: b"599" in heir.values)
    left = [int(value) for value in heir.values]
    assert left[-300:] == list(range(300, 600))
    assert len(left) < 600  # most of what was acknowledged does not come again


@pytest.mark.parametrize("forget", [False, True], ids=["sessions-kept", "sessions-lost"])
async def test_it_comes_back_after_a_restart_of_the_broker(
    peer: Make, broker: Mosquitto, forget: bool
) -> None:
    hearer = await peer("q", of=broker.options).up()
    speaker = await peer(of=broker.options).up()
    await speaker.client.publish(Outgoing("q", b"before"))
    await until(lambda: hearer.heard)
    broker.stop(forget=forget)
    await until(lambda: not (hearer.client.connected or speaker.client.connected))
    with pytest.raises(LinkDown, match=f"127.0.0.1:{broker.port}.*connection"):
        await speaker.client.publish(Outgoing("q", b"lost"))
    broker.start()
    await until(lambda: hearer.client.connected and speaker.client.connected)
    assert hearer.client.problem == ""
    await speaker.client.publish(Outgoing("q", b"after"))
    await until(lambda: b"after" in hearer.values)
    expected = [b"before", b"after"] if forget else [b"before", b"before", b"after"]
    assert hearer.values == expected


async def test_what_waits_for_the_broker_fails_when_the_connection_breaks(
    peer: Make, broker: Mosquitto
) -> None:
    speaker = await peer(of=broker.options).up()
    broker.signal(signal.SIGSTOP)
    waiting = [speaker.client.send(Outgoing("q", b"x" * 1000)) for _ in range(3000)]
    broker.stop(forget=True)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    broker.start()
    assert all(isinstance(answer, LinkDown) for answer in answers)


async def test_a_silent_broker_is_noticed(peer: Make, broker: Mosquitto) -> None:
    speaker = await peer(of=replace(broker.options, keepalive_s=1)).up()
    broker.signal(signal.SIGSTOP)
    with pytest.raises(LinkDown):
        await speaker.client.publish(Outgoing("q", b""))
    broker.signal(signal.SIGCONT)
    await until(lambda: speaker.client.connected)
