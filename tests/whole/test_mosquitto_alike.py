"""The MQTT broker that the simulated system plays does what a real Mosquitto does.

Each test runs against both: the played one in virtual time, the real one with each of the product's
ways to connect, each client behind a proxy of its own that can break its connection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from bus.clock import PacedClock, SystemClock
from bus.mqtt_carrier import Carrier, Terms
from bus.mqtt_client import WILL_DELAY_S, MqttClient
from bus.mqtt_connection import Connection
from bus.mqtt_swift import SwiftConnection
from bus.wire import Client, Incoming, Outgoing
from tests import mosquitto as real
from tests.brokers import need_brokers
from tests.builders import START_S
from tests.chaos.proxy import Proxy
from tests.patience import until
from tests.whole.mosquitto import Mosquitto
from tests.whole.process import Process
from tests.whole.wires import MqttWire

UP, DOWN = "tidegate/v1/n0/up/event", "tidegate/v1/n0/down/command"
SHARE = "$share/bridge/tidegate/v1/+/up/+"
#: Longer than anything takes that is not waited for by name.
MOMENT_S = 1.0


class Broker(Protocol):
    """A broker and its clients, played or real."""

    def client(
        self, name: str, *filters: str, will: bytes = b"", keep: bool = True, session_s: int = 60
    ) -> Client:
        """Start a client; what it hears is noted."""
        ...

    def heard(self, name: str) -> list[Incoming]:
        """Give what all clients of a name have heard, in order."""
        ...

    def snap(self, client: Client) -> None:
        """Break its connection; it comes back by itself."""
        ...

    def lose(self, client: Client) -> None:
        """Break its connection for good, as if its machine were gone."""
        ...

    async def restart(self) -> None:
        """Stop the broker in good order and start it again."""
        ...

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds."""
        ...

    async def passes(self, seconds: float) -> None:
        """Let time pass."""
        ...


class Played:
    """The broker of the simulated system."""

    def __init__(self) -> None:
        self._clock = PacedClock(START_S, None)
        self._rng = np.random.default_rng(1)
        self._broker = Mosquitto(self._clock, self._rng)
        self._broker.begin()
        self._heard: dict[str, list[Incoming]] = {}

    def client(
        self, name: str, *filters: str, will: bytes = b"", keep: bool = True, session_s: int = 60
    ) -> MqttWire:
        process = Process(name, self._clock)
        made = MqttWire(self._broker, process, self._rng, name, float(session_s), keep_session=keep)
        last = (lambda _: Outgoing(UP, will, retain=True)) if will else None
        made.make(filters, self.heard(name).append, None, last).start()
        return made

    def heard(self, name: str) -> list[Incoming]:
        return self._heard.setdefault(name, [])

    def snap(self, client: Client) -> None:
        assert isinstance(client, MqttWire)
        client.snap()

    def lose(self, client: Client) -> None:
        assert isinstance(client, MqttWire)
        client.process.kill()
        client.snap()

    async def restart(self) -> None:
        self._broker.crash(self._broker.copy())
        await self.passes(MOMENT_S)
        self._broker.start()

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(300):
            if condition():
                return
            await self.passes(0.5)
        raise AssertionError("it never came to that")

    async def passes(self, seconds: float) -> None:
        await self._clock.run_until(self._clock.now_s() + seconds)

    async def close(self) -> None:
        """End what runs there."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)


class Real:
    """A Mosquitto that runs."""

    def __init__(self, folder: Path, carrier: Callable[[Terms], Carrier]) -> None:
        self._carrier = carrier
        self._broker = real.Mosquitto(folder)
        self._heard: dict[str, list[Incoming]] = {}
        self._proxies: dict[MqttClient, Proxy] = {}
        self._stack = ExitStack()

    def client(
        self, name: str, *filters: str, will: bytes = b"", keep: bool = True, session_s: int = 60
    ) -> MqttClient:
        proxy = self._stack.enter_context(Proxy(self._broker.port))
        made = MqttClient(
            replace(self._broker.options, port=proxy.port, session_s=session_s),
            name,
            subscriptions=filters,
            hear=self.heard(name).append,
            will=(lambda _: Outgoing(UP, will, retain=True)) if will else None,
            clock=SystemClock(),
            keep_session=keep,
            carrier=self._carrier,
        )
        self._proxies[made] = proxy
        made.start()
        return made

    def heard(self, name: str) -> list[Incoming]:
        return self._heard.setdefault(name, [])

    def snap(self, client: Client) -> None:
        self.lose(client)
        self._proxies[self._ours(client)].heal()

    def lose(self, client: Client) -> None:
        self._proxies[self._ours(client)].cut()

    async def restart(self) -> None:
        self._broker.stop()
        self._broker.start()

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)

    async def passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """End the clients and the broker."""
        for client in self._proxies:
            await client.close()
        self._stack.close()
        self._broker.stop(forget=True)

    @staticmethod
    def _ours(client: Client) -> MqttClient:
        assert isinstance(client, MqttClient)
        return client


@pytest.fixture(
    params=[
        None,
        pytest.param(Connection, marks=pytest.mark.broker),
        pytest.param(SwiftConnection, marks=pytest.mark.broker),
    ],
    ids=["played", "aiomqtt", "swift"],
)
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param is not None:
        need_brokers()
    made = Played() if request.param is None else Real(tmp_path, request.param)
    yield made
    await made.close()


def values(broker: Broker, name: str) -> list[bytes]:
    return [incoming.value for incoming in broker.heard(name)]


async def connected(broker: Broker, *clients: Client) -> None:
    await broker.until(lambda: all(client.connected for client in clients))


async def test_what_was_not_acknowledged_comes_again_with_the_session(broker: Broker) -> None:
    one, other = broker.client("n0", DOWN), broker.client("b")
    await connected(broker, one, other)
    for value in (b"1", b"2"):
        await other.publish(Outgoing(DOWN, value))
    await broker.until(lambda: len(broker.heard("n0")) == 2)
    one.ack(broker.heard("n0")[0])
    await broker.passes(MOMENT_S)
    broker.snap(one)
    await broker.until(lambda: len(broker.heard("n0")) == 3)
    await connected(broker, one)
    await other.publish(Outgoing(DOWN, b"3"))
    await broker.until(lambda: len(broker.heard("n0")) == 4)
    assert values(broker, "n0") == [b"1", b"2", b"2", b"3"]
    one.ack(broker.heard("n0")[1])  # of the connection before: it means nothing now
    await broker.passes(MOMENT_S)
    broker.snap(one)
    await broker.until(lambda: len(broker.heard("n0")) == 6)
    assert values(broker, "n0")[4:] == [b"2", b"3"]


async def test_a_publisher_is_told_whether_anybody_subscribes(broker: Broker) -> None:
    one, other = broker.client("n0", DOWN, session_s=2), broker.client("b")
    await connected(broker, one, other)
    assert await _sent(broker, other, Outgoing(DOWN, b"x"))
    assert not await _sent(broker, other, Outgoing("tidegate/v1/n9/down/command", b"x"))
    broker.lose(one)
    await broker.passes(MOMENT_S / 2)
    assert await _sent(broker, other, Outgoing(DOWN, b"kept for who is away"))
    await broker.passes(10.0)
    assert not await _sent(broker, other, Outgoing(DOWN, b"its session has ended"))


async def test_who_is_away_gets_what_was_said_meanwhile_but_for_quality_0(broker: Broker) -> None:
    one, other = broker.client("n0", DOWN), broker.client("b")
    await connected(broker, one, other)
    broker.lose(one)
    await broker.passes(MOMENT_S)
    await other.publish(Outgoing(DOWN, b"once", qos=0))
    await other.publish(Outgoing(DOWN, b"old", expiry_s=1))
    await other.publish(Outgoing(DOWN, b"kept", expiry_s=60))
    await broker.passes(3.0)
    again = broker.client("n0", DOWN)
    await connected(broker, again)
    await broker.passes(MOMENT_S)
    assert values(broker, "n0") == [b"kept"]


async def test_a_will_follows_who_is_lost_and_nobody_else(broker: Broker) -> None:
    hearer = broker.client("b", UP)
    lost, back, gone = (broker.client(n, will=n.encode()) for n in ("lost", "back", "gone"))
    await connected(broker, hearer, lost, back, gone)
    broker.lose(lost)
    broker.snap(back)
    leaving = asyncio.create_task(gone.close())
    await broker.passes(WILL_DELAY_S + 2.0)
    await broker.until(lambda: broker.heard("b"))
    assert leaving.done()
    assert back.connected
    assert values(broker, "b") == [b"lost"]


async def test_what_is_retained_comes_with_a_new_subscription_until_it_is_taken_back(
    broker: Broker,
) -> None:
    speaker = broker.client("b")
    await connected(broker, speaker)
    await speaker.publish(Outgoing(UP, b"word", retain=True))
    first, sharing = broker.client("first", UP), broker.client("sharing", SHARE)
    await connected(broker, first, sharing)
    await broker.until(lambda: broker.heard("first"))
    assert broker.heard("first")[0].retain
    first.ack(broker.heard("first")[0])
    await broker.passes(MOMENT_S)
    broker.snap(first)
    await broker.passes(MOMENT_S)
    await connected(broker, first)
    await broker.passes(MOMENT_S)
    assert values(broker, "first") == [b"word"], "the subscription is not new"
    await speaker.publish(Outgoing(UP, b"", retain=True))
    late = broker.client("late", UP)
    await connected(broker, late)
    await broker.passes(MOMENT_S)
    assert (values(broker, "late"), values(broker, "sharing")) == ([], [b"word", b""])


async def test_a_share_deals_to_who_is_away_until_its_session_ends(broker: Broker) -> None:
    one, two = (broker.client(name, SHARE, session_s=8) for name in ("one", "two"))
    speaker = broker.client("n0")
    await connected(broker, one, two, speaker)
    broker.lose(two)
    await broker.passes(MOMENT_S)
    for number in range(6):
        await speaker.publish(Outgoing(UP, b"%d" % number))
    await broker.passes(MOMENT_S)
    assert len(values(broker, "one")) == 3
    await broker.passes(15.0)
    for number in range(6, 10):
        await speaker.publish(Outgoing(UP, b"%d" % number))
    await broker.until(lambda: len(broker.heard("one")) == 7)
    assert values(broker, "one")[3:] == [b"6", b"7", b"8", b"9"]


async def test_who_leaves_for_good_is_dealt_nothing(broker: Broker) -> None:
    leaving, staying = broker.client("one", SHARE, keep=False), broker.client("two", SHARE)
    speaker = broker.client("n0")
    await connected(broker, leaving, staying, speaker)
    closing = asyncio.create_task(leaving.close())
    await broker.until(closing.done)
    for number in range(4):
        await speaker.publish(Outgoing(UP, b"%d" % number))
    await broker.until(lambda: len(broker.heard("two")) == 4)


async def test_the_second_of_a_name_takes_the_session_over(broker: Broker) -> None:
    first, other = broker.client("n0", DOWN), broker.client("b")
    await connected(broker, first, other)
    await other.publish(Outgoing(DOWN, b"1"))
    await broker.until(lambda: len(broker.heard("n0")) == 1)
    broker.lose(first)
    second = broker.client("n0", DOWN)
    await connected(broker, second)
    await broker.until(lambda: len(broker.heard("n0")) == 2)
    assert values(broker, "n0") == [b"1", b"1"]


async def test_a_broker_that_starts_again_has_sessions_and_words(broker: Broker) -> None:
    one, other = broker.client("n0", DOWN), broker.client("b")
    await connected(broker, one, other)
    await other.publish(Outgoing(DOWN, b"kept"))
    await other.publish(Outgoing(UP, b"word", retain=True))
    await broker.until(lambda: broker.heard("n0"))
    await broker.restart()
    await broker.until(lambda: len(broker.heard("n0")) == 2)
    late = broker.client("late", UP)
    await connected(broker, one, late)
    await broker.until(lambda: broker.heard("late"))
    assert (values(broker, "n0"), values(broker, "late")) == ([b"kept", b"kept"], [b"word"])


async def _sent(broker: Broker, client: Client, message: Outgoing) -> bool:
    future = client.send(message)
    await broker.until(future.done)
    return future.result()
