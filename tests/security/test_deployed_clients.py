"""Tidegate's own clients at the secured Mosquitto: an agent's link, a bridge, signed commands."""

import asyncio
from pathlib import Path

import pytest

from bus.bridge import Bridge
from bus.clock import SystemClock
from bus.contract import Message, Record
from bus.mqtt import MqttLink
from bus.options import MqttOptions, Tls
from bus.signing import Signer, Verifier
from runtime.gate import Gate, Refusal
from runtime.publisher import Publisher
from runtime.spool import Spool, SpooledMessage
from schemas.codec import encode, event
from schemas.commands import Rebirth
from schemas.events import NodeDied
from schemas.topics import COMMANDS, EVENTS
from tests.brokers import need_brokers
from tests.memory_bus import MemoryBus
from tests.mosquitto import wired
from tests.patience import PATIENCE_S, until
from tests.post import ordered
from tests.security.secure_broker import SecureBroker, certs

pytestmark = pytest.mark.broker


def options(broker: SecureBroker, name: str) -> MqttOptions:
    files = [str(broker.certs / file) for file in ("ca.pem", f"{name}.pem", f"{name}.key")]
    return MqttOptions("127.0.0.1", broker.port, tls=Tls(*files))


async def test_reports_go_up_and_signed_commands_come_down(tmp_path: Path) -> None:
    need_brokers()
    clock = SystemClock()
    kafka = MemoryBus(clock)
    with SecureBroker.running(tmp_path) as broker:
        assert certs(broker.certs, "device", "edge-1").returncode == 0
        signer = Signer.from_file("k1", broker.certs / "signing-k1.pem")
        group = (broker.certs / "bridge-group").read_text().strip()
        wire = wired(options(broker, "bridge-1"), "tidegate-bridge-1", clock)
        bridge = Bridge(
            name="bridge-1", wire=wire, buses={"default": kafka}, clock=clock, group=group
        )
        running = asyncio.create_task(bridge.run(["default"]))
        link = MqttLink.open(options(broker, "edge-1"), clock, "edge-1")
        hearing = await link.consumer("agent-edge-1", [COMMANDS.name], keys=["edge-1"])

        said = event(
            NodeDied(node="edge-1", reason="test"),
            source="/agents/edge-1",
            sequence=0,
            bootid=1,
            time_s=clock.now_s(),
        )
        await link.publish(Message(EVENTS.name, "default", encode(said)))
        stored = [record.value async for record in kafka.read(EVENTS.name)]
        assert encode(said) in stored

        order = ordered(Rebirth(), 0, "edge-1", clock.now_s(), id="c1")
        forged = order.replace(b'"c1"', b'"c2"')
        for value in (forged, order):
            await kafka.publish(Message(COMMANDS.name, "edge-1", value, signer.headers(order)))
        heard: list[Record] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(heard) < 2:
                heard += await hearing.poll(10, 1.0)
        gate = Gate("edge-1", "default", Verifier.of({"k1": signer.public()}))
        first, second = (gate.read(record) for record in heard)
        assert isinstance(first, Refusal)
        assert first.kind == "forged"
        assert not isinstance(second, Refusal)
        assert second.id == "c1"

        await hearing.close()
        await link.close()
        bridge.stop()
        await running


async def test_who_speaks_under_anothers_certificate_is_told(tmp_path: Path) -> None:
    """The broker lets it in, by the certificate's name, and not say a word by its own."""
    need_brokers()
    clock = SystemClock()
    with SecureBroker.running(tmp_path) as broker:
        assert certs(broker.certs, "device", "edge-2").returncode == 0
        link = MqttLink.open(options(broker, "edge-2"), clock, "edge-9")
        said = event(
            NodeDied(node="edge-9", reason="test"),
            source="/agents/edge-9",
            sequence=0,
            bootid=1,
            time_s=clock.now_s(),
        )
        waiting = SpooledMessage(0, Message(EVENTS.name, "default", encode(said)))
        publisher = Publisher(Spool(None, [waiting]), link, clock, retry_s=0.05)
        publisher.begin("edge-9")
        await until(lambda: publisher.problem)
        assert "Not authorized" in publisher.problem
        publisher.abandon()
        await link.close()
