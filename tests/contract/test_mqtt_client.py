"""The MQTT client against a real broker: what arrives, what comes again, what is refused."""

import asyncio

import pytest
from paho.mqtt.client import Client as PahoClient

from bus import mqtt_client, mqtt_connection, mqtt_swift
from bus.contract import BusError
from bus.mqtt_client import Refused
from bus.mqtt_connection import Connection
from bus.options import MqttOptions
from bus.wire import Incoming, Outgoing
from tests.contract.mqtt_peers import Make, broker, carrier, options, peer
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.broker
__all__ = ["broker", "carrier", "options", "peer"]  # the fixtures


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
