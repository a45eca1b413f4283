"""Who an MQTT broker lets in, what it lets them say, and what it says of those it lost."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bus.clock import SystemClock
from bus.contract import BusError
from bus.mqtt_carrier import WILL_DELAY_S, Carrier, Terms
from bus.mqtt_client import MqttClient, Refused
from bus.mqtt_connection import Connection
from bus.mqtt_swift import SwiftConnection
from bus.options import MqttOptions, Tls
from bus.wire import Incoming, LinkDown, Outgoing
from tests.brokers import need_brokers
from tests.certificates import Authority
from tests.mosquitto import Mosquitto
from tests.patience import until

pytestmark = pytest.mark.broker
ROOT = Path(__file__).resolve().parents[2]
Make = Callable[..., MqttClient]
Broker = Callable[..., Mosquitto]


@pytest.fixture(params=[Connection, SwiftConnection], ids=["aiomqtt", "swift"])
def carrier(request: pytest.FixtureRequest) -> Callable[[Terms], Carrier]:
    return cast("Callable[[Terms], Carrier]", request.param)


@pytest.fixture
async def client(carrier: Callable[[Terms], Carrier]) -> AsyncIterator[Make]:
    made: list[MqttClient] = []

    def make(options: MqttOptions, *subscriptions: str, **more: Any) -> MqttClient:
        more.setdefault("hear", lambda _: None)
        name = more.pop("client_id", f"client-{len(made)}")
        one = MqttClient(
            options,
            name,
            subscriptions=subscriptions,
            clock=SystemClock(),
            carrier=carrier,
            **more,
        )
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        await one.close()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Broker]:
    need_brokers()
    made: list[Mosquitto] = []

    def make(settings: str = "allow_anonymous true\n") -> Mosquitto:
        made.append(Mosquitto(tmp_path, settings))
        return made[-1]

    yield make
    for one in made:
        one.stop(forget=True)


# --- passwords and lists of what is allowed ---


async def test_a_message_that_is_not_allowed_is_refused_and_others_go_on(
    client: Make, brokers: Broker, tmp_path: Path
) -> None:
    (tmp_path / "acl").write_text("topic write allowed\n")
    speaker = client(brokers(f"allow_anonymous true\nacl_file {tmp_path}/acl\n").options)
    await until(lambda: speaker.connected)
    answers = await asyncio.gather(
        speaker.send(Outgoing("forbidden/x", b"")),
        speaker.send(Outgoing("allowed", b"")),
        return_exceptions=True,
    )
    assert isinstance(answers[0], Refused)
    assert str(answers[0]) == "forbidden/x: the broker says: Not authorized"
    assert answers[1] is False  # taken, and nobody subscribes
    assert (speaker.connected, speaker.reconnects) == (True, 0)


async def test_a_refused_subscription_is_a_problem_that_is_named(client: Make) -> None:
    # Mosquitto's lists never refuse a subscription, they only deliver nothing; other brokers do.
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"\x20\x03\x00\x00\x00")  # CONNACK: welcome
        subscribe = await reader.read(1000)
        writer.write(b"\x90\x04" + subscribe[2:4] + b"\x00\x87")  # SUBACK: not authorised
        await reader.read()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        curious = client(MqttOptions("127.0.0.1", server.sockets[0].getsockname()[1]), "secret/x")
        await until(lambda: "refuses" in curious.problem)
        assert curious.problem == "the broker refuses the subscription to secret/x: Not authorized"
        with pytest.raises(LinkDown, match="refuses the subscription to secret/x"):
            await curious.publish(Outgoing("q", b""))


async def test_a_stranger_is_refused_and_does_not_hammer(
    client: Make, brokers: Broker, tmp_path: Path
) -> None:
    (tmp_path / "passwords").touch()
    settings = f"allow_anonymous false\npassword_file {tmp_path}/passwords\n"
    broker = brokers(settings + "log_dest stderr\nlog_type all\n")
    stranger = client(replace(broker.options, username="eve", password="guess"))
    await until(lambda: "refuses" in stranger.problem)
    assert stranger.problem == "the broker refuses to be connected to: Not authorized"
    await asyncio.sleep(1.0)
    assert (tmp_path / "mosquitto.log").read_text().count("CONNACK") == 1
    assert stranger.connections == 0


# --- certificates ---


def tls(folder: Path, name: str = "") -> Tls:
    own = (str(folder / f"{name}.pem"), str(folder / f"{name}.key")) if name else ("", "")
    return Tls(str(folder / "ca.pem"), *own)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"], ids=["our-broker", "another"])
async def test_certificates_say_who_both_are(
    client: Make, brokers: Broker, tmp_path: Path, address: str
) -> None:
    authority = Authority(tmp_path)
    authority.sign("broker", names=(address,), server=True)
    authority.sign("edge-1")
    (tmp_path / "acl").write_text("pattern readwrite up/%u\n")
    options = brokers(
        f"cafile {tmp_path}/ca.pem\ncertfile {tmp_path}/broker.pem\n"
        f"keyfile {tmp_path}/broker.key\nrequire_certificate true\n"
        f"use_identity_as_username true\nacl_file {tmp_path}/acl\n"
    ).options
    known = client(replace(options, tls=tls(tmp_path, "edge-1")))
    if address != "127.0.0.1":
        await until(lambda: "certificate" in known.problem)
        assert not known.connected
        return
    nameless = client(replace(options, tls=tls(tmp_path)))
    await until(lambda: known.connected)
    await asyncio.gather(*(known.send(Outgoing("up/edge-1", bytes(1000))) for _ in range(50)))
    with pytest.raises(Refused):
        await known.publish(Outgoing("up/edge-2", b"not mine"))
    assert (nameless.connected, nameless.connections) == (False, 0)


async def test_everything_that_comes_encrypted_is_read(
    client: Make, brokers: Broker, tmp_path: Path
) -> None:
    Authority(tmp_path).sign("broker", names=("127.0.0.1",), server=True)
    options = brokers(
        f"certfile {tmp_path}/broker.pem\nkeyfile {tmp_path}/broker.key\nallow_anonymous true\n"
    ).options
    options = replace(options, tls=tls(tmp_path))
    heard: list[Incoming] = []

    def hear(message: Incoming) -> None:
        heard.append(message)
        one.ack(message)

    one = client(options, "q", hear=hear)
    await until(lambda: one.connected)
    await asyncio.gather(*(one.send(Outgoing("q", b"%d" % n)) for n in range(500)))
    await until(lambda: len(heard) == 500)
    assert [int(message.value) for message in heard] == list(range(500))


async def test_a_certificate_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    options = MqttOptions("localhost", tls=Tls(str(tmp_path / "absent.pem")))
    with pytest.raises(
        BusError, match=r"TLS files .*absent.pem: .*; they must be PEM and readable"
    ):
        MqttClient(options, "x", subscriptions=[], hear=print, clock=SystemClock())


# --- the Will ---

VICTIM = """
import asyncio, sys
from bus import mqtt_connection
from bus.clock import SystemClock
from bus.mqtt_client import MqttClient
from bus.options import mqtt_options
from bus.wire import Outgoing

mqtt_connection.WILL_DELAY_S = 1

async def main():
    def opened(session):
        print(session, flush=True)
    def will(session):
        return Outgoing("death/victim", b"%d" % session, retain=True)
    client = MqttClient(mqtt_options(sys.argv[1]), "victim", subscriptions=[],
                        hear=print, opened=opened, will=will, clock=SystemClock())
    client.start()
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_the_will_is_said_of_the_lost_alone(client: Make, brokers: Broker) -> None:
    options = brokers().options
    heard: dict[str, bytes] = {}
    witness = client(options, "death/+", hear=lambda m: heard.__setitem__(m.address, m.value))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, f"mqtt://127.0.0.1:{options.port}",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    session = int(await process.stdout.readline())

    def last_word(name: str) -> Callable[[int], Outgoing]:
        return lambda session: Outgoing(f"death/{name}", b"%d" % session)

    polite = client(options, will=last_word("polite"), client_id="polite")
    hasty = client(options, will=last_word("hasty"), client_id="hasty")
    await until(lambda: witness.connected and polite.connected and hasty.connected)
    process.kill()
    await process.wait()
    await polite.close()
    assert hasty._now is not None
    hasty._now.cut("as if the network had")
    await until(lambda: hasty.reconnects == 1)
    await until(lambda: heard)
    await asyncio.sleep(WILL_DELAY_S + 1.0)
    assert heard == {"death/victim": b"%d" % session}
