"""A Kafka that is killed, or hangs, and comes back: nothing stored is lost, all go on alone."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from bus.clock import SystemClock
from bus.contract import BusError, Message
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from schemas.topics import EVENTS, JOURNAL
from tests.brokers import Brokers, fresh_namespace, need_brokers
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    need_brokers()
    found = Brokers.start(tmp_path_factory.mktemp("brokers"), "kafka")
    yield found
    found.down()


@pytest.fixture(autouse=True)
async def standing(brokers: Brokers) -> AsyncIterator[None]:
    """Whatever became of a test, the next one finds a broker that serves."""
    yield
    await asyncio.to_thread(brokers.up, "kafka")
    bus = KafkaBus.open(
        KafkaOptions(brokers.kafka_bootstrap, fresh_namespace(), replication=1), SystemClock()
    )
    stored = False
    async with asyncio.timeout(PATIENCE_S):
        while not stored:
            with contextlib.suppress(BusError):
                await bus.publish(Message(EVENTS.name, "k", b""))
                stored = True
    await bus.close()


@pytest.fixture
def options(brokers: Brokers) -> KafkaOptions:
    return KafkaOptions(brokers.kafka_bootstrap, fresh_namespace(), replication=1)


@pytest.fixture
async def bus(options: KafkaOptions) -> AsyncIterator[KafkaBus]:
    bus = KafkaBus.open(options, SystemClock())
    yield bus
    async with asyncio.timeout(PATIENCE_S):
        await bus.close()


@dataclass
class Stream:
    """Publishes numbers, again until stored, as an agent's publisher does; and reads them."""

    bus: KafkaBus
    stored: list[int] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)
    failures: int = 0

    async def speak(self) -> None:
        number = 0
        while True:
            try:
                await self.bus.publish(Message(EVENTS.name, "k", str(number).encode()))
            except BusError:
                self.failures += 1
                await asyncio.sleep(0.2)
                continue
            self.stored.append(number)
            number += 1
            await asyncio.sleep(0.01)

    async def listen(self) -> None:
        consumer = await self.bus.consumer("g", [EVENTS.name])
        while True:
            with contextlib.suppress(BusError):
                self.heard += [int(record.value or b"") for record in await consumer.poll()]

    async def hears(self, number: int) -> None:
        await until(lambda: self.heard and self.heard[-1] >= number)


@pytest.fixture
async def stream(bus: KafkaBus) -> AsyncIterator[Stream]:
    stream = Stream(bus)
    running = [asyncio.create_task(part) for part in (stream.speak(), stream.listen())]
    await stream.hears(20)
    yield stream
    for part in running:
        part.cancel()
    await asyncio.wait(running)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_stream_goes_on_when_the_broker_is_back(
    brokers: Brokers, stream: Stream, number: signal.Signals
) -> None:
    brokers.kill("kafka", number)
    await until(lambda: stream.failures)
    await asyncio.sleep(2.0)
    await asyncio.to_thread(brokers.up, "kafka")
    target = stream.stored[-1] + 20
    await stream.hears(target)
    # At least once: copies of what failed without being lost, never a gap.
    fresh = [n for place, n in enumerate(stream.heard) if n not in stream.heard[:place]]
    assert fresh == list(range(len(fresh)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_each_input_is_decided_once_through_an_outage(
    brokers: Brokers, bus: KafkaBus, number: signal.Signals
) -> None:
    """Consume, decide, commit together; when the outcome is unknown, open anew and ask."""
    await bus.publish(*(Message(EVENTS.name, "k", str(n).encode()) for n in range(300)))
    done = asyncio.Event()
    failures = 0

    async def decide() -> None:
        producer = await bus.producer("scheduler")
        consumer = await bus.consumer("scheduler", [EVENTS.name])
        while consumer.positions[EVENTS.name] < 300:
            records = await consumer.poll(5)
            async with producer.transaction() as transaction:
                for record in records:
                    transaction.send(Message(JOURNAL.name, "a", record.value))
                transaction.commit_positions(consumer)
            await asyncio.sleep(0.01)

    async def decide_on() -> None:
        nonlocal failures
        while not done.is_set():
            try:
                await decide()
                done.set()
            except BusError:
                failures += 1
                await asyncio.sleep(0.2)

    deciding = asyncio.create_task(decide_on())
    async with asyncio.timeout(PATIENCE_S):
        while await bus.end(JOURNAL.name) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    brokers.kill("kafka", number)
    await until(lambda: failures)
    await asyncio.to_thread(brokers.up, "kafka")
    async with asyncio.timeout(3 * PATIENCE_S):  # some sixty transactions
        await deciding
    decided = [int(record.value or b"") async for record in bus.read(JOURNAL.name)]
    assert decided == list(range(300))
    assert failures


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_close_ends_while_the_broker_is_away(
    brokers: Brokers, options: KafkaOptions, number: signal.Signals
) -> None:
    bus = KafkaBus.open(options, SystemClock())
    consumer = await bus.consumer("g", [EVENTS.name])
    producer = await bus.producer("p")
    async with producer.transaction() as transaction:
        transaction.send(Message(JOURNAL.name, "a", b""))
    waiting = asyncio.create_task(consumer.poll())
    await bus.publish(Message(EVENTS.name, "k", b"stored"))
    assert len(await waiting) == 1
    brokers.kill("kafka", number)
    try:
        publish = asyncio.create_task(bus.publish(Message(EVENTS.name, "k", b"late")))
        with pytest.raises(BusError, match="could not commit the positions"):
            await consumer.commit()
        async with asyncio.timeout(PATIENCE_S):
            await bus.close()
        with pytest.raises(BusError, match="could not store 1 records"):
            await publish
    finally:
        await asyncio.to_thread(brokers.up, "kafka")
