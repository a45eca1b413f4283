"""The far side of an edge agent's link, played by the test over a real MQTT broker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from bus.clock import SystemClock
from bus.contract import Message
from bus.mqtt import MqttLink
from bus.mqtt_client import MqttClient
from bus.options import MqttOptions, mqtt_options
from bus.wire import Incoming, Outgoing
from schemas.codec import Rejected, decode_event, encode, horizon
from schemas.horizon import HorizonReached, Range
from schemas.topics import EVENTS
from tests.brokers import fresh_namespace
from tests.patience import until
from tests.post import progressed

CLOCK = SystemClock()
UP, DOWN = "tidegate/v1/n0/up/", "tidegate/v1/n0/down/"


def event(sequence: int, boot: int = 1) -> Message:
    return Message(EVENTS.name, "default", progressed(sequence, boot=boot))


def sequence(incoming: Incoming) -> int:
    envelope = decode_event(incoming.value)
    assert not isinstance(envelope, Rejected)
    return int(envelope.sequence)


class Far:
    """A bridge that stores nothing, and says what the test wants it to."""

    def __init__(self, options: MqttOptions) -> None:
        self.heard: list[Incoming] = []
        self.words: list[Incoming] = []
        self.answers = False
        self.client = MqttClient(
            options,
            f"{options.namespace}-bridge",
            subscriptions=["$share/bridge/tidegate/v1/+/up/+"],
            hear=self._hear,
            clock=CLOCK,
        )
        self.client.start()
        self._said: list[asyncio.Future[bool]] = []

    @property
    def sequences(self) -> list[int]:
        return [sequence(incoming) for incoming in self.heard]

    def confirm(self, *ranges: tuple[int, int], agent: str = "n0", boot: int = 1) -> None:
        parts = [Range(first=first, last=last) for first, last in ranges]
        reached = HorizonReached(agent=agent, boot=boot, stored=parts)
        self.say("horizon", encode(horizon(reached, bridge="b", sequence=0, time_s=0.0)), qos=0)

    def say(self, kind: str, value: bytes, qos: int = 1) -> None:
        outgoing = Outgoing(DOWN + kind, value, qos=qos, properties={"sig": "s"})
        self._said.append(self.client.send(outgoing))

    def _hear(self, incoming: Incoming) -> None:
        self.client.ack(incoming)
        if incoming.address in (UP + "birth", UP + "death"):
            self.words.append(incoming)
            return
        self.heard.append(incoming)
        if self.answers:
            self.confirm((sequence(incoming), sequence(incoming)))


@pytest.fixture
def options(mqtt_url: str) -> MqttOptions:
    found = mqtt_options(f"{mqtt_url}/{fresh_namespace()}")
    return replace(found, session_s=60, window=5)


@pytest.fixture
async def far(options: MqttOptions) -> AsyncIterator[Far]:
    made = Far(options)
    await until(lambda: made.client.connected)
    yield made
    await made.client.close()


@pytest.fixture
async def link(options: MqttOptions) -> AsyncIterator[MqttLink]:
    made = MqttLink.open(options, CLOCK, "n0")
    yield made
    try:
        async with asyncio.timeout(5.0):
            await made.close()
    except TimeoutError:  # a test that failed has left nobody to confirm what is said
        await made.client.close()
