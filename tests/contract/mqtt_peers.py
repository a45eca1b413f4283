"""Clients of MQTT for tests: what each hears, over both carriers, and a broker of their own."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bus.clock import SystemClock
from bus.mqtt_carrier import Carrier, Terms
from bus.mqtt_client import MqttClient
from bus.mqtt_connection import Connection
from bus.mqtt_swift import SwiftConnection
from bus.options import MqttOptions, mqtt_options
from bus.wire import Incoming
from tests.brokers import fresh_namespace, need_brokers
from tests.mosquitto import Mosquitto
from tests.patience import until

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
