"""The bridge between a real Mosquitto and a real Kafka, with a real agent's link at the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus import mqtt_outbox
from bus.bridge import Bridge
from bus.bridge_limits import BridgeLimits
from bus.clock import SystemClock
from bus.contract import Bus, Message, Record
from bus.kafka import KafkaBus
from bus.kafka_cells import KafkaCells
from bus.mqtt import MqttLink
from bus.mqtt_client import MqttClient
from bus.mqtt_swift import SwiftConnection
from bus.options import KafkaOptions, MqttOptions, mqtt_options
from bus.signing import Signer, Verifier
from bus.wire import Incoming, Outgoing
from schemas.codec import cell_state, decode_event, encode
from schemas.commands import Rebirth
from schemas.events import CommandAcknowledged, LinkOpened
from schemas.journal import CellState
from schemas.topics import CELLS, COMMANDS, EVENTS, TELEMETRY
from tests.brokers import fresh_namespace
from tests.patience import PATIENCE_S, until
from tests.post import measured, ordered, progressed, records, running, said

pytestmark = pytest.mark.broker
CLOCK = SystemClock()


class World:
    """Brokers, and all that a test opens on them."""

    def __init__(self, kafka: str, mqtt: str, cells: tuple[str, ...]) -> None:
        namespace = fresh_namespace()
        self.kafka = KafkaOptions(kafka, namespace, cells=cells, replication=1)
        self.mqtt = MqttOptions(
            (found := mqtt_options(mqtt)).host, found.port, namespace=namespace, session_s=60
        )
        self.buses: dict[str, Bus] = {
            cell: KafkaBus.open(self.kafka, CLOCK, cell) for cell in cells
        }
        self.links: list[MqttLink] = []
        self.clients: list[MqttClient] = []

    def client(
        self,
        name: str,
        subscriptions: Sequence[str] = (),
        hear: Callable[[Incoming], None] = lambda _: None,
    ) -> MqttClient:
        client = MqttClient(
            self.mqtt,
            f"{self.mqtt.namespace}-{name}",
            subscriptions=subscriptions,
            hear=hear,
            clock=CLOCK,
            carrier=SwiftConnection,
        )
        client.start()
        self.clients.append(client)
        return client

    def link(self, agent: str, cell: str | None = None) -> MqttLink:
        link = MqttLink.open(self.mqtt, CLOCK, agent, cell or next(iter(self.buses)))
        self.links.append(link)
        return link

    def bridge(self, name: str = "b0", buses: dict[str, Bus] | None = None) -> Bridge:
        return Bridge(
            name=name,
            wire=lambda subscriptions, hear: self.client(name, subscriptions, hear),
            buses=buses or self.buses,
            clock=CLOCK,
            limits=BridgeLimits(burst=50_000.0, bytes_burst=2.0**30),
        )

    @contextlib.asynccontextmanager
    async def running(
        self, name: str = "b0", cells: Sequence[str] | None = None
    ) -> AsyncIterator[Bridge]:
        async with running(
            self.bridge(name), tuple(self.buses) if cells is None else cells
        ) as made:
            await until(lambda: made.wire.connected)
            yield made

    async def close(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for link in self.links:
                await link.close()
            for client in self.clients:
                await client.close()
            for bus in self.buses.values():
                await bus.close()


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, kafka_bootstrap: str, mqtt_url: str
) -> AsyncIterator[World]:
    made = World(kafka_bootstrap, mqtt_url, getattr(request, "param", ("default",)))
    yield made
    await made.close()


def order(number: int, agent: str, signer: Signer) -> Message:
    now_s = CLOCK.now_s()
    value = b" " + ordered(Rebirth(), number, agent, now_s, expiry_s=now_s + 60.0)
    return Message(COMMANDS.name, agent, value, signer.headers(value))


async def test_an_agent_and_kafka_hear_each_other_byte_for_byte(world: World) -> None:
    bus, link = world.buses["default"], world.link("n0")
    signer = Signer("k1", Ed25519PrivateKey.generate())
    ack = said(CommandAcknowledged(command="c", outcome="done"), 3)
    event = b'{ "x":[1.0,"\\u00e9"],' + progressed(2)[1:]
    letter = Message(f"{COMMANDS.name}.dlq", "n0", b"\xff", {"sig": "cw==", "dlq_error": "é"})
    async with world.running() as made:
        consumer = await link.consumer("agent-n0", [COMMANDS.name], keys=["n0"])
        async with asyncio.timeout(PATIENCE_S):
            await link.publish(
                Message(TELEMETRY.name, "n0", measured(1)),
                Message(EVENTS.name, "default", event),
                Message(EVENTS.name, "default", ack),
                letter,
            )
            orders = [order(number, "n0", signer) for number in range(20)]
            await bus.publish(*orders)
            heard: list[Record] = []
            while len(heard) < 20:
                heard += await consumer.poll(100, 1.0)
        await until(lambda: made.unacked == 0)
        assert (made.problem, dict(made.counters.refused)) == ("", {})
    assert [(record.value, record.headers) for record in heard] == [
        (order.value, order.headers) for order in orders
    ]
    verifier = Verifier.of({"k1": signer.public()})
    assert all(verifier.problem(record.value or b"", record.headers) is None for record in heard)
    (telemetry,) = await records(bus, TELEMETRY.name)
    assert (telemetry.key, telemetry.value, telemetry.headers) == ("n0", measured(1), {})
    birth, *events = await records(bus, EVENTS.name)
    opened = decode_event(birth.value or b"")
    assert isinstance(getattr(opened, "data", None), LinkOpened)
    assert [(record.key, record.value) for record in events] == [
        ("default", event), ("default", ack),
    ]  # fmt: skip
    (dead,) = await records(bus, letter.topic)
    assert (dead.key, dead.value, dead.headers) == ("n0", letter.value, letter.headers)


async def test_what_was_not_answered_comes_again_and_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge ends after Kafka has some; the next one, with its session, gets all of those."""
    monkeypatch.setattr(mqtt_outbox, "RESEND_S", 3600.0)  # the agent does not say it again
    bus, link = world.buses["default"], world.link("n0")
    stored = asyncio.Event()

    class Dying:
        async def publish(self, *messages: Message) -> None:
            await bus.publish(*messages)
            stored.set()
            await asyncio.Event().wait()

        def __getattr__(self, name: str) -> Any:
            return getattr(bus, name)

    dying = world.bridge(buses={"default": Dying()})
    run = asyncio.create_task(dying.run())
    await until(lambda: dying.wire.connected)
    messages = [Message(EVENTS.name, "default", progressed(n)) for n in range(300)]
    publishing = asyncio.create_task(link.publish(*messages))
    await stored.wait()
    assert not publishing.done()
    run.cancel()
    await asyncio.wait([run])
    async with world.running() as made, asyncio.timeout(PATIENCE_S):
        await publishing
        await until(lambda: made.unacked == 0)
        # All were answered: a third connection of the same session is given nothing again.
        client = world.clients[-1]
        received = client.received
        client.renew()
        await until(lambda: client.connections == 2)
        await asyncio.sleep(0.2)
        assert client.received == received
    held = [record.value for record in await records(bus, EVENTS.name)]
    assert {progressed(n) for n in range(300)} <= set(held)
    first_of = [held.index(progressed(n)) for n in range(300)]
    assert first_of == sorted(first_of)


async def test_two_bridges_share_the_work_and_confirm_all_of_it(world: World) -> None:
    bus = world.buses["default"]
    links = [world.link(f"n{number}") for number in range(4)]
    async with world.running("b0") as first, world.running("b1", cells=()) as second:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(
                *(
                    link.publish(
                        *[
                            Message(TELEMETRY.name, link.agent, measured(n, link.agent))
                            for n in range(400)
                        ]
                    )
                    for link in links
                )
            )
        await until(lambda: first.unacked == second.unacked == 0)
        shares = [made.counters.forwarded_up for made in (first, second)]
        assert min(shares) > 400
        assert sum(shares) >= 1600
    held = {record.value for record in await records(bus, TELEMETRY.name)}
    assert held == {measured(n, f"n{node}") for node in range(4) for n in range(400)}
    assert [link.outbox.unconfirmed for link in links] == [0, 0, 0, 0]


async def test_a_hostile_client_reaches_only_the_dead_letters(world: World) -> None:
    bus, hostile, link = world.buses["default"], world.client("hostile"), world.link("n0")
    tries = {
        "event": [progressed(0, "n1"), b"\xff\x00", progressed(1, cell="west"), b""],
        "telemetry": [measured(2, "n1", source="/agents/n0")],
        "birth": [b"nonsense", b""],
    }
    async with world.running() as made:
        await until(lambda: hostile.connected)
        for kind, values in tries.items():
            for value in values:
                await hostile.publish(
                    Outgoing(f"tidegate/v1/n0/up/{kind}", value, properties={"h": "é"})
                )
        await hostile.publish(Outgoing("tidegate/v1/n0/up/unheard", b"?"))
        await hostile.publish(Outgoing("tidegate/v1/n 0/up/event", b"?"))
        async with asyncio.timeout(PATIENCE_S):
            await link.publish(Message(EVENTS.name, "default", progressed(9)))
        await until(lambda: made.unacked == 0)
        assert made.counters.dead_letters == sum(made.counters.refused.values()) == 8
    events = [record.value for record in await records(bus, EVENTS.name)]
    assert progressed(9) in events
    assert not set(events) & {value for values in tries.values() for value in values}
    dead = [
        *await records(bus, f"{EVENTS.name}.dlq"),
        *await records(bus, f"{TELEMETRY.name}.dlq"),
    ]
    assert sorted(record.headers["dlq_field"] for record in dead) == [
        "", "", "", "address", "address", "cell", "data.node", "source",
    ]  # fmt: skip
    assert {record.value for record in dead} >= {b"\xff\x00", b"", tries["telemetry"][0]}


@pytest.mark.parametrize("world", [("east", "west")], indirect=True)
async def test_cells_are_carried_by_whoever_is_given_them(world: World) -> None:
    signer = Signer("k1", Ed25519PrivateKey.generate())
    heard: dict[str, list[Incoming]] = {}

    def hear(incoming: Incoming) -> None:
        heard.setdefault(incoming.address, []).append(incoming)

    for cell, number in (("east", 0), ("west", 1)):
        data = CellState(online=True, leader="s", leader_epoch=1, at_s=1e6)
        await world.buses[cell].publish(
            order(number, f"agent-{cell}", signer),
            order(number + 10, "nobody-listens", signer),
            Message(CELLS.name, cell, encode(cell_state(data, cell=cell))),
        )
    world.client("ear", ["tidegate/v1/+/down/command"], hear)
    async with world.running(cells=()) as made:
        cells = KafkaCells(world.kafka, CLOCK, group="tidegate-bridge", member="b0")
        sharing = asyncio.create_task(cells.run(made.down))
        await until(lambda: made.counters.forwarded_down == 6)
        cells.stop()
        await sharing
    late = world.client("late", ["tidegate/v1/_state/+"], hear)
    await until(lambda: len([address for address in heard if "_state" in address]) == 2)
    await until(lambda: late.connected)
    assert heard["tidegate/v1/_state/west"][0].retain
    assert b'"cell":"west"' in heard["tidegate/v1/_state/west"][0].value
    await until(lambda: "tidegate/v1/agent-west/down/command" in heard)
    (found,) = heard["tidegate/v1/agent-west/down/command"]
    assert b'"default-1-0"' in found.value
    assert found.properties == signer.headers(found.value)
