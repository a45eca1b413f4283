"""What only the Kafka backend does: cells, settings of topics, markers, retention, watchdog."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.cluster import ClusterMetadata
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.structs import TopicPartition

from bus.clock import Clock, PacedClock, SystemClock
from bus.contract import BusError, Message
from bus.kafka import KafkaBus
from bus.kafka_client import client_settings
from bus.options import KafkaOptions
from schemas.topics import ALL_TOPICS, COMMANDS, EVENTS, JOURNAL, REQUESTS, TELEMETRY, Topic
from tests.brokers import fresh_namespace
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.broker
DAY_S = 24 * 3600.0
Opener = Callable[..., KafkaBus]


class ShiftedClock(SystemClock):
    """Real waiting, other times."""

    def __init__(self, shift_s: float) -> None:
        super().__init__()
        self._shift_s = shift_s

    def now_s(self) -> float:
        return super().now_s() + self._shift_s

    async def sleep_until(self, moment_s: float) -> None:
        await super().sleep_until(moment_s - self._shift_s)


@pytest.fixture
def options(kafka_bootstrap: str) -> KafkaOptions:
    return KafkaOptions(kafka_bootstrap, fresh_namespace(), cells=("a", "b"), replication=1)


@pytest.fixture
async def opened(options: KafkaOptions) -> AsyncIterator[Opener]:
    buses: list[KafkaBus] = []

    def make(
        cell: str = "a", clock: Clock | None = None, of: KafkaOptions = options, **more: Any
    ) -> KafkaBus:
        buses.append(KafkaBus.open(of, clock or SystemClock(), cell, **more))
        return buses[-1]

    yield make
    for bus in buses:
        await bus.close()


@pytest.fixture
async def admin(options: KafkaOptions) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(**client_settings(options))
    await client.start()
    yield client
    await client.close()


def message(value: str, topic: str = EVENTS.name) -> Message:
    return Message(topic, "k", value.encode())


async def stored(bus: KafkaBus, topic: str = EVENTS.name) -> list[bytes | None]:
    return [record.value async for record in bus.read(topic)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - Kafka tells nobody
            await asyncio.sleep(0.02)


async def commit(bus: KafkaBus, *messages: Message) -> None:
    producer = await bus.producer("p")
    async with producer.transaction() as transaction:
        for one in messages:
            transaction.send(one)


async def test_cells_do_not_see_each_other(opened: Opener) -> None:
    a, b = opened("a"), opened("b")
    await a.publish(message("to a"))
    await b.publish(message("to b"), message("to b"))
    assert (await stored(a), await a.end(EVENTS.name)) == ([b"to a"], 1)
    assert (await stored(b), await b.end(EVENTS.name)) == ([b"to b", b"to b"], 2)
    reader = await b.consumer("g", [EVENTS.name])
    assert [record.value for record in await reader.poll()] == [b"to b", b"to b"]
    await reader.commit()
    assert (await a.consumer("g", [EVENTS.name])).positions == {EVENTS.name: 0}
    with pytest.raises(BusError, match="'c' is not among"):
        opened("c")


async def test_added_cell_gets_its_partition(options: KafkaOptions, opened: Opener) -> None:
    before = opened("b")
    await before.publish(message("kept"))
    more = KafkaOptions(options.bootstrap, options.namespace, cells=("a", "b", "c"), replication=1)
    added = [opened("c", of=more) for _ in range(3)]
    await asyncio.gather(*(bus.publish(message("new")) for bus in added))
    assert await stored(added[0]) == [b"new"] * 3
    assert await stored(before) == [b"kept"]


async def settings(admin: AIOKafkaAdminClient, options: KafkaOptions, name: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResourceType.TOPIC, options.topic(name))
    (answer,) = await admin.describe_configs([resource])
    return {entry[0]: entry[1] for entry in answer.resources[0][4]}


@pytest.mark.parametrize(("shift_s", "events_ms"), [(0.0, 14 * 86_400_000), (-300 * DAY_S, -1)])
async def test_topics_are_made_as_the_table_says(
    options: KafkaOptions,
    opened: Opener,
    admin: AIOKafkaAdminClient,
    shift_s: float,
    events_ms: int,
) -> None:
    bus = opened(clock=ShiftedClock(shift_s))
    assert await bus.end(EVENTS.name) == 0
    for topic in ALL_TOPICS.values():
        found = await settings(admin, options, topic.name)
        assert found["cleanup.policy"] == ("compact" if topic.compacted else "delete")
        assert int(found["max.message.bytes"]) == topic.record_max_bytes
        if topic.retention_s is None:
            assert found["retention.ms"] == "-1"
    # A broker that is told a time ten months ago would delete the record at once.
    assert int((await settings(admin, options, EVENTS.name))["retention.ms"]) == events_ms


@pytest.mark.parametrize("shift_s", [-300 * DAY_S, 300 * DAY_S])
async def test_times_are_those_of_the_clock(opened: Opener, shift_s: float) -> None:
    clock = ShiftedClock(shift_s)
    bus = opened(clock=clock)
    await bus.end(EVENTS.name)
    before_s = clock.now_s()
    await bus.publish(message("then"))
    newest = await bus.last(EVENTS.name)
    assert newest is not None
    assert before_s - 0.001 <= newest.time_s <= clock.now_s()


async def test_consumer_passes_ends_of_transactions(opened: Opener) -> None:
    bus = opened()
    consumer = await bus.consumer("g", [JOURNAL.name])
    await commit(bus, message("1", JOURNAL.name), message("2", JOURNAL.name))
    assert [record.value for record in await consumer.poll()] == [b"1", b"2"]

    async def passed() -> bool:
        return await consumer.lag() == 0

    await until(passed)
    assert consumer.positions == {JOURNAL.name: 3}
    assert await bus.end(JOURNAL.name) == 3


async def test_own_transactions_show_at_once(opened: Opener) -> None:
    bus = opened()
    await bus.publish(*(message(str(number)) for number in range(20)))
    consumer = await bus.consumer("g", [EVENTS.name])
    producer = await bus.producer("p")
    for number in range(20):
        async with producer.transaction() as transaction:
            await consumer.poll(1)
            transaction.send(message(str(number), JOURNAL.name))
            transaction.commit_positions(consumer)
        newest = await bus.last(JOURNAL.name)
        assert newest is not None
        assert newest.value == str(number).encode()
    successor = await bus.consumer("g", [EVENTS.name])
    assert successor.positions == {EVENTS.name: 20}


async def test_stuck_consumer_is_made_anew(opened: Opener) -> None:
    bus = opened(watchdog_s=0.5)
    consumer = await bus.consumer("g", [EVENTS.name])
    await bus.publish(message("before"))
    assert len(await consumer.poll(timeout_s=PATIENCE_S)) == 1
    fetcher = consumer._client._fetcher
    for task in (fetcher._fetch_task, *fetcher._pending_tasks):  # it may have asked already
        task.cancel()
    await bus.publish(message("after"))
    assert [record.value for record in await consumer.poll(timeout_s=PATIENCE_S)] == [b"after"]
    recreated = bus.recreated
    assert recreated  # more than once where Kafka is slower than the watchdog
    await asyncio.sleep(1.2)  # an idle one is not
    assert bus.recreated == recreated


@pytest.mark.parametrize("topic", [EVENTS, TELEMETRY, REQUESTS, COMMANDS])
async def test_a_record_from_far_ahead_does_not_keep_its_segment(
    opened: Opener, topic: Topic
) -> None:
    """Retention went by what the record said: with it stayed all that lay beside it."""
    await opened().end(topic.name)  # makes the topics
    await opened(clock=ShiftedClock(1000 * DAY_S)).publish(Message(topic.name, "a", b"{}"))
    (record,) = [one async for one in opened().read(topic.name)]
    assert abs(record.time_s - SystemClock().now_s()) < DAY_S


@pytest.mark.parametrize("made", [True, False])
async def test_a_topic_or_partition_that_is_missing_is_named(
    options: KafkaOptions, opened: Opener, made: bool
) -> None:
    """It was "Failed to get offsets by times", and to be tried again."""
    if made:
        await opened(of=replace(options, cells=("a",))).end(JOURNAL.name)
    name = f"{options.namespace}.{JOURNAL.name}"
    what = f"no partition 1 of topic {name}" if made else f"no topic {name}"
    with pytest.raises(BusError, match=rf"cell b: Kafka has {what}; see that kafka.cells"):
        await opened("b", makes_topics=False).end(JOURNAL.name)


async def test_consumer_goes_on_after_what_retention_removed(
    opened: Opener, admin: AIOKafkaAdminClient, options: KafkaOptions
) -> None:
    bus = opened()
    await bus.publish(*(message(str(number)) for number in range(10)))
    first = await bus.consumer("g", [EVENTS.name])
    await first.poll(3)
    await first.commit()
    await first.close()
    partition = TopicPartition(options.topic(EVENTS.name), 0)
    await admin.delete_records({partition: RecordsToDelete(5)})
    second = await bus.consumer("g", [EVENTS.name])
    assert second.positions == {EVENTS.name: 5}
    assert bus.resets == 1
    assert [record.offset for record in await second.poll()] == [5, 6, 7, 8, 9]
    assert [record.offset async for record in bus.read(EVENTS.name)] == [5, 6, 7, 8, 9]


async def test_large_records_pass_and_too_large_ones_are_named(opened: Opener) -> None:
    bus = opened()
    large = bytes(range(256)) * 4 * 1024 * 12  # 12 MiB
    await commit(bus, Message(JOURNAL.name, "a", large), message("small", JOURNAL.name))
    assert await stored(bus, JOURNAL.name) == [large, b"small"]
    with pytest.raises(BusError, match="12582912 bytes are too many"):
        await bus.publish(message("fine"), Message(TELEMETRY.name, "n", large))
    with pytest.raises(BusError, match=r"'my\.topic' is no topic"):
        await bus.publish(message("fine"), message("", "my.topic"))
    assert await bus.end(EVENTS.name) == 0
    await bus.publish(message("and on"))


async def test_consumer_holds_back_what_nobody_polls(opened: Opener) -> None:
    bus = opened()
    large = os.urandom(500 * 1024)
    for _ in range(8):
        await bus.publish(*(Message(COMMANDS.name, "n", large) for _ in range(10)))
    consumer = await bus.consumer("g", [COMMANDS.name])

    async def full() -> bool:
        return consumer._bytes >= 16 * 1024 * 1024

    await until(full)
    await asyncio.sleep(0.3)
    assert consumer._records < 60  # 16 MiB and one fetch more, of 40 MB
    seen = 0
    while seen < 80:
        seen += len(await consumer.poll(7, timeout_s=5.0))
    assert consumer.positions == {COMMANDS.name: 80}


async def test_simulated_time_waits_for_the_consumer(opened: Opener) -> None:
    clock = PacedClock(1_000_000.0, pace=200.0)
    bus = opened(clock=clock)
    consumer = await bus.consumer("g", [EVENTS.name])
    heard: list[tuple[bytes | None, float]] = []

    async def listen() -> None:
        clock.enter()
        while len(heard) < 3:
            heard.extend((r.value, r.time_s) for r in await consumer.poll(timeout_s=3600.0))
        clock.leave()

    async def speak() -> None:
        clock.enter()
        for number in range(3):
            await clock.sleep_until(1_000_000.0 + 100.0 * (number + 1))
            await bus.publish(message(str(number)))
        clock.leave()

    running = asyncio.gather(listen(), speak())
    await asyncio.sleep(0)
    await clock.run_until(1_000_500.0)
    await asyncio.wait_for(running, PATIENCE_S)
    assert heard == [(str(n).encode(), 1_000_100.0 + 100.0 * n) for n in range(3)]


async def test_broker_that_names_nobody_yet_is_asked_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is one that slept past its session, until the controller lets it in again."""
    learn = ClusterMetadata.update_metadata

    def learn_late(cluster: Any, answer: Any) -> None:
        cluster.asked = getattr(cluster, "asked", 0) + 1
        if cluster.asked <= 2:
            answer.brokers = []
        learn(cluster, answer)

    bus = opened()
    await bus.publish(message("1"))
    monkeypatch.setattr(ClusterMetadata, "update_metadata", learn_late)
    await commit(bus, message("2"))
    consumer = await bus.consumer("g", [EVENTS.name])
    assert await consumer.poll(timeout_s=PATIENCE_S)
    await consumer.commit()


async def test_absent_broker_is_named() -> None:
    bus = KafkaBus.open(KafkaOptions("127.0.0.1:1"), SystemClock())
    for attempt in (
        bus.publish(message("1")),
        bus.consumer("g", [EVENTS.name]),
        bus.producer("p"),
        bus.last(EVENTS.name),
    ):
        with pytest.raises(BusError, match=r"could not reach Kafka at 127\.0\.0\.1:1"):
            await attempt
    await bus.close()


class Latin(str):
    """The name of a header as a client writes it that knows nothing of UTF-8."""

    def encode(self, *_: object) -> bytes:
        return b"gr\xfc\xdfe"


async def write_illegible(options: KafkaOptions, before: int, after: int) -> None:
    """Store a batch in which the header of one record cannot be read."""
    made = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, -1, 100_000)
    for number in range(before + 1 + after):
        headers = [(Latin("x"), b"")] if number == before else []
        made.append(number, 1_000_000, b"k", f"foreign {number}".encode(), headers)
    producer = AIOKafkaProducer(**client_settings(options))
    await producer.start()
    batch = producer.create_batch()
    batch._buffer, batch._closed = bytes(made.build()), True
    batch._relative_offset = before + 1 + after
    await (await producer.send_batch(batch, options.topic(EVENTS.name), partition=0))
    await producer.stop()


@pytest.mark.parametrize("last", [False, True])
async def test_a_record_that_no_client_can_read_stops_nobody(
    options: KafkaOptions, opened: Opener, last: bool
) -> None:
    bus = opened()
    await bus.publish(message("before"))
    await write_illegible(options, before=2, after=0 if last else 3)
    consumer = await bus.consumer("g", [EVENTS.name])
    found: list[bytes | None] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 4:
            found += [record.value for record in await consumer.poll()]
        # What is after it in its batch cannot be told apart; it is of the same writer.
        await bus.publish(message("after"))
        while len(found) < 5:
            found += [record.value for record in await consumer.poll()]
    assert found == [b"before", b"foreign 0", b"foreign 1", b"", b"after"]
    assert await consumer.lag() == 0
    assert await stored(bus) == found
