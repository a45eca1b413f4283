"""No connection to Kafka outlives who made it, whenever it is cut off or closed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest

from bus.clock import SystemClock
from bus.contract import BusError, Closed, Message
from bus.kafka import KafkaBus
from bus.kafka_client import open_consumer, open_producer
from bus.kafka_log import KafkaLog
from bus.kafka_namespaces import namespaces
from bus.options import KafkaOptions
from schemas.topics import EVENTS
from tests.brokers import fresh_namespace
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.broker


class Connections:
    """All connections that were made."""

    def __init__(self) -> None:
        self.made: list[AIOKafkaConnection] = []
        #: Somebody has asked which brokers there are, and has no answer yet.
        self.asked = asyncio.Event()

    @property
    def open(self) -> list[AIOKafkaConnection]:
        return [one for one in self.made if one.connected()]


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connections]:
    found = Connections()
    make, send = AIOKafkaConnection.__init__, AIOKafkaConnection.send

    def made(one: AIOKafkaConnection, *arguments: object, **more: object) -> None:
        found.made.append(one)
        make(one, *arguments, **more)

    def sent(one: AIOKafkaConnection, asked: object, **more: object) -> object:
        if isinstance(asked, MetadataRequest):
            found.asked.set()
        return send(one, asked, **more)

    with monkeypatch.context() as patch:
        patch.setattr(AIOKafkaConnection, "__init__", made)
        patch.setattr(AIOKafkaConnection, "send", sent)
        yield found


@pytest.fixture
def options(kafka_bootstrap: str) -> KafkaOptions:
    return KafkaOptions(kafka_bootstrap, fresh_namespace(), cells=("a",), replication=1)


@pytest.mark.parametrize(
    "connect",
    [
        lambda options: open_consumer(options, "g"),
        lambda options: open_producer(options, "p"),
        namespaces,
    ],
    ids=["consumer", "producer", "admin"],
)
async def test_who_is_cut_off_while_connecting_leaves_nothing(
    options: KafkaOptions,
    connections: Connections,
    connect: Callable[[KafkaOptions], Awaitable[object]],
) -> None:
    connecting = asyncio.ensure_future(connect(options))
    await connections.asked.wait()
    assert connections.open
    connecting.cancel()
    await asyncio.wait([connecting])
    assert connecting.cancelled()
    assert not connections.open


async def test_who_still_reads_a_closed_bus_connects_no_more(
    options: KafkaOptions, connections: Connections
) -> None:
    bus = KafkaBus.open(options, SystemClock(), "a")
    await bus.publish(Message(EVENTS.name, "k", b"1"))
    asked = 0

    async def ask() -> None:
        nonlocal asked
        while True:
            await bus.end(EVENTS.name)
            asked += 1

    asking = [asyncio.create_task(ask()) for _ in range(3)]
    await until(lambda: asked > 10)
    await bus.close()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in found] == [Closed] * 3
    assert not connections.open


async def test_who_waits_for_an_answer_hears_at_once_that_the_bus_is_closed(
    options: KafkaOptions, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is stopped gives none, and would be waited for as a broker that is away."""
    bus = KafkaBus.open(options, SystemClock(), "a")
    await bus.publish(Message(EVENTS.name, "k", b"1"))
    asked = asyncio.Event()

    async def never(*_: object) -> object:
        asked.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", never)
    asking = asyncio.create_task(bus.end(EVENTS.name))
    cancelled = asyncio.create_task(bus.end(EVENTS.name))
    await asked.wait()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    await bus.close()
    done, _ = await asyncio.wait([asking], timeout=PATIENCE_S)
    assert done, "it waits for the reader, which is stopped"
    assert isinstance(asking.exception(), Closed)
    assert not connections.open


async def test_a_bus_whose_closing_is_cut_off_is_closed_all_the_same(
    options: KafkaOptions, connections: Connections
) -> None:
    """As when its process is told to end a second time; who closes it then waits for that."""
    bus = KafkaBus.open(options, SystemClock(), "a")
    await bus.publish(Message(EVENTS.name, "k", b"1"))
    await bus.end(EVENTS.name)
    closing = asyncio.create_task(bus.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    await bus.close()
    assert not connections.open


async def test_a_bus_closed_while_it_connects_leaves_nothing(
    options: KafkaOptions, connections: Connections
) -> None:
    bus = KafkaBus.open(options, SystemClock(), "a")
    asking = [asyncio.create_task(bus.end(EVENTS.name)) for _ in range(2)]
    await connections.asked.wait()
    await bus.close()
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in found] == [Closed] * 2
    assert not connections.open


async def test_a_log_that_cannot_be_read_leaves_nothing(
    options: KafkaOptions, connections: Connections
) -> None:
    bus = KafkaBus.open(options, SystemClock(), "a")
    await bus.publish(Message(EVENTS.name, "k", b"1"))
    await bus.close()
    more = KafkaOptions(options.bootstrap, options.namespace, cells=("a", "b"), replication=1)
    with pytest.raises(BusError, match="no partition 1"):
        await asyncio.to_thread(KafkaLog, more, "b")
    assert not connections.open
