"""The MQTT client against a real broker: what arrives, what comes again, what is refused."""

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from paho.mqtt.client import Client as PahoClient

from bus import mqtt_client, mqtt_connection, mqtt_swift
from bus.clock import SystemClock
from bus.contract import BusError
from bus.mqtt_carrier import Carrier, Terms
from bus.mqtt_client import MqttClient, Refused
from bus.mqtt_connection import Connection
from bus.mqtt_swift import SwiftConnection
from bus.options import MqttOptions, mqtt_options
from bus.wire import Incoming, LinkDown, Outgoing
from tests.brokers import fresh_namespace, need_brokers
from tests.mosquitto import Mosquitto
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.broker
ROOT = Path(__file__).resolve().parents[2]
_names = itertools.count()


class Peer:
    """A client, and what it heard."""

    def __init__(
        self, options: MqttOptions, subscriptions: tuple[str, ...] = (), **more: Any
    ) -> None:
        self.heard: list[Incoming] = []
        self.sessions: list[int] = []
        more.setdefault("hear", self.heard.append)
        self.client = MqttClient(
            options,
            f"{options.namespace or 'test'}-{more.pop('client_id', next(_names))}",
            subscriptions=subscriptions,
            opened=self.sessions.append,
            clock=SystemClock(),
            **more,
        )

    @property
    def values(self) -> list[bytes]:
        return [message.value for message in self.heard]

    def ack_all(self) -> None:
        for message in self.heard:
            self.client.ack(message)

    async def up(self) -> "Peer":
        self.client.start()
        await until(lambda: self.client.connected)
        return self


Make = Callable[..., Peer]


@pytest.fixture
def options(mqtt_url: str) -> MqttOptions:
    return replace(mqtt_options(f"{mqtt_url}/{fresh_namespace()}"), session_s=60)


@pytest.fixture(params=[Connection, SwiftConnection], ids=["aiomqtt", "swift"])
def carrier(request: pytest.FixtureRequest) -> Callable[[Terms], Carrier]:
    return cast("Callable[[Terms], Carrier]", request.param)


@pytest.fixture
async def peer(options: MqttOptions, carrier: Callable[[Terms], Carrier]) -> AsyncIterator[Make]:
    made: list[Peer] = []

    def make(*subscriptions: str, of: MqttOptions = options, **more: Any) -> Peer:
        made.append(Peer(of, subscriptions, carrier=carrier, **more))
        return made[-1]

    yield make
    for one in made:
        await one.client.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    need_brokers()
    found = Mosquitto(tmp_path)
    yield found
    found.stop(forget=True)


async def test_what_is_said_arrives_as_it_was(peer: Make) -> None:
    hearer = await peer("up/+/x").up()
    speaker = await peer().up()
    said = Outgoing("up/1/x", b"\x00\xff", properties={"sig": "ü"}, correlation="c", expiry_s=60)
    await speaker.client.publish(said)
    await speaker.client.publish(Outgoing("up/2/x", b"", qos=0))
    await speaker.client.publish(Outgoing("up/2/y", b"nobody listens"))
    await until(lambda: len(hearer.heard) == 2)
    first, second = hearer.heard
    assert (first.address, first.value, dict(first.properties)) == (
        "up/1/x", b"\x00\xff", {"sig": "ü"},
    )  # fmt: skip
    assert (second.address, second.value, second.retain) == ("up/2/x", b"", False)
    assert (speaker.client.published, hearer.client.received) == (3, 2)
    assert (speaker.client.connections, speaker.client.problem) == (1, "")


async def test_messages_arrive_in_the_order_of_the_calls(peer: Make) -> None:
    heard: list[int] = []

    def hear(message: Incoming) -> None:
        heard.append(int(message.value))
        hearer.client.ack(message)

    hearer = peer("o", hear=hear)
    await hearer.up()
    speaker = await peer().up()
    said = range(3000)  # more than may be unconfirmed
    await asyncio.gather(*(speaker.client.send(Outgoing("o", b"%d" % n)) for n in said))
    await until(lambda: len(heard) == len(said))
    assert heard == list(said)


async def test_a_shared_subscription_gets_each_message_once(peer: Make) -> None:
    one, other = [await peer("$share/bridge/up/+").up() for _ in range(2)]
    speaker = await peer().up()
    for number in range(20):
        await speaker.client.publish(Outgoing(f"up/{number}", b"%d" % number))
    await until(lambda: len(one.heard) + len(other.heard) == 20)
    assert one.heard
    assert other.heard
    assert len({*one.values, *other.values}) == 20


async def test_a_client_that_leaves_for_good_gives_up_its_share(peer: Make) -> None:
    """A broker would go on dealing to a session that it keeps, and nobody would hear its share."""
    leaving = await peer("$share/g/things/+", keep_session=False).up()
    staying, sender = await peer("$share/g/things/+", "end").up(), await peer().up()
    await leaving.client.close()

    async def dealt() -> int:
        """How many of ten reach the one who stays."""
        staying.heard.clear()
        for n in range(10):
            await sender.client.publish(Outgoing(f"things/{n}", b"x"))
        await sender.client.publish(Outgoing("end", b"end"))
        await until(lambda: b"end" in staying.values)
        return staying.values.count(b"x")

    async with asyncio.timeout(PATIENCE_S):
        while await dealt() < 10:  # the broker may need a moment to hear the farewell
            pass


async def test_what_nobody_confirms_goes_out_while_the_client_holds(
    peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a bridge with as many commands on their way as may be waits for itself for ever."""
    for module in (mqtt_connection, mqtt_swift):
        monkeypatch.setattr(module, "IN_FLIGHT_MAX", 1)
    sender, receiver = await peer().up(), await peer("x/#").up()
    sender.client.hold(True)
    unread = [sender.client.send(Outgoing("x/1", b"%d" % n)) for n in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        await sender.client.publish(Outgoing("x/0", b"now", qos=0))
    await until(lambda: b"now" in receiver.values)
    assert receiver.values == [b"0", b"now"]
    sender.client.hold(False)
    await asyncio.gather(*unread)
    await until(lambda: receiver.values == [b"0", b"now", b"1"])


async def test_a_client_that_holds_hears_nothing_until_it_lets_go(peer: Make) -> None:
    receiver, sender = await peer("things/+").up(), await peer().up()
    receiver.client.hold(True)
    for n in range(20):
        await sender.client.publish(Outgoing(f"things/{n}", b"x"))
    assert receiver.heard == []
    receiver.client.hold(False)
    await until(lambda: len(receiver.heard) == 20)


async def test_retained_words_come_once_to_a_session(peer: Make) -> None:
    speaker = await peer().up()
    await speaker.client.publish(Outgoing("state", b"word", retain=True))
    hearer = await peer("state").up()
    await until(lambda: hearer.heard)
    assert hearer.heard[0].retain
    hearer.ack_all()
    hearer.client.renew()
    await until(lambda: hearer.client.reconnects == 1)
    await speaker.client.publish(Outgoing("state", b"newer", retain=True))
    await until(lambda: len(hearer.heard) == 2)
    assert hearer.values == [b"word", b"newer"]


async def test_what_was_not_acknowledged_comes_again(peer: Make) -> None:
    hearer = await peer("q").up()
    speaker = await peer().up()
    for number in range(6):
        await speaker.client.publish(Outgoing("q", b"%d" % number))
    await until(lambda: len(hearer.heard) == 6)
    former = list(hearer.heard)
    hearer.client.ack(former[0])
    hearer.client.ack(former[1])
    hearer.client.renew()
    await until(lambda: len(hearer.heard) == 10 and hearer.client.connected)
    assert hearer.values[6:] == [b"2", b"3", b"4", b"5"]
    for message in former:  # packets of a connection that is gone: nothing is acknowledged
        hearer.client.ack(message)
    hearer.client.renew()
    await until(lambda: len(hearer.heard) == 14 and hearer.client.connected)
    assert hearer.values[10:] == [b"2", b"3", b"4", b"5"]
    assert hearer.sessions == sorted(set(hearer.sessions))
    assert len(hearer.sessions) == 3


async def test_messages_before_the_subscription_is_confirmed_can_be_acknowledged(
    peer: Make,
) -> None:
    first = await peer("q", client_id="again").up()
    speaker = await peer().up()
    await first.client.close()
    await speaker.client.publish(Outgoing("q", b"kept"))
    heard: list[bytes] = []

    def hear(message: Incoming) -> None:
        heard.append(message.value)
        second.client.ack(message)  # at once: it may come before the connection is in use

    second = peer("q", client_id="again", hear=hear)
    await second.up()
    await until(lambda: heard)
    second.client.renew()
    await until(lambda: second.client.reconnects == 1)
    await speaker.client.publish(Outgoing("q", b"next"))
    await until(lambda: len(heard) > 1)
    assert heard == [b"kept", b"next"]


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


async def test_what_expired_is_not_delivered(peer: Make) -> None:
    hearer = await peer("q", client_id="late").up()
    await hearer.client.close()
    speaker = await peer().up()
    await speaker.client.publish(Outgoing("q", b"old", expiry_s=1))
    await speaker.client.publish(Outgoing("q", b"new", expiry_s=60))
    await asyncio.sleep(2.2)
    heir = await peer("q", client_id="late").up()
    await until(lambda: heir.heard)
    assert heir.values == [b"new"]


async def test_a_message_that_cannot_be_handled_comes_again(
    peer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bytes] = []

    def hear(message: Incoming) -> None:
        heard.append(message.value)
        if len(heard) == 1:
            raise RuntimeError("a bug")
        hearer.client.ack(message)

    hearer = peer("q", hear=hear)
    await hearer.up()
    speaker = await peer().up()
    await speaker.client.publish(Outgoing("q", b"once"))
    await until(lambda: len(heard) == 2)
    assert heard == [b"once", b"once"]
    assert "a bug" in caplog.text


async def test_a_message_above_the_brokers_limit_is_refused_before_it_is_sent(peer: Make) -> None:
    speaker = await peer().up()
    with pytest.raises(Refused, match=r"^big: 7000\d\d bytes, the broker takes 600000"):
        await speaker.client.publish(Outgoing("big", bytes(700_000)))
    with pytest.raises(Refused, match=r"^up/\+: .*([Ww]ildcard|topic)"):
        await speaker.client.publish(Outgoing("up/+", b""))
    assert (speaker.client.connected, speaker.client.reconnects) == (True, 0)


@pytest.mark.parametrize("carrier", [Connection])
async def test_an_aiomqtt_that_acknowledges_by_itself_is_refused(
    peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(PahoClient, "ack")
    with pytest.raises(BusError, match=r"^aiomqtt [0-9.]+ with paho-mqtt .*; install aiomqtt 2.5"):
        peer().client.start()


async def test_closing_does_not_wait_for_the_next_attempt(
    peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_client, "_PAUSE_S", 3600.0)
    nowhere = MqttOptions("127.0.0.1", 1)
    stranded = peer(of=nowhere)
    stranded.client.start()
    await until(lambda: "refused" in stranded.client.problem.lower())
    async with asyncio.timeout(PATIENCE_S):
        await stranded.client.close()
