"""How a log on Kafka is read: no topic is made, and nothing is waited for that is not there."""

import asyncio
from typing import Any

import pytest
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition

from bus.clock import SystemClock
from bus.kafka_log import KafkaLog
from bus.kafka_namespaces import stored_topics
from bus.kafka_topics import make_topics
from bus.options import KafkaOptions
from schemas.topics import ALL_TOPICS, EVENTS, JOURNAL, REQUESTS
from tests.contract.test_kafka import Opener, message, opened, options, stored

__all__ = ["opened", "options"]  # the fixtures
pytestmark = pytest.mark.broker


async def test_to_read_a_log_makes_no_topic(options: KafkaOptions) -> None:
    """Its deployment may be of an earlier release, and who reads may have no right to."""
    few = {topic.name: topic for topic in (EVENTS, REQUESTS, JOURNAL)}
    await make_topics(options, SystemClock(), few)
    await asyncio.to_thread(read_through, options)
    assert await stored_topics(options) == list(few)


async def test_a_log_is_opened_without_waiting_for_each_topic(
    opened: Opener, options: KafkaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asked again, 0.1 s later, for each topic that it did not know."""
    bus = opened()
    await bus.publish(*(message("x", topic) for topic in ALL_TOPICS))
    await bus.ends(list(ALL_TOPICS))  # the broker knows all of them
    asked: list[int] = []
    ask = Fetcher._proc_offset_requests

    async def counted(fetcher: Fetcher, wanted: dict[TopicPartition, int]) -> object:
        asked.append(len(wanted))
        return await ask(fetcher, wanted)

    monkeypatch.setattr(Fetcher, "_proc_offset_requests", counted)
    await asyncio.to_thread(look_into, options)
    assert asked == [len(ALL_TOPICS), 3, 3], "ends; where what schedulers read begins and ends"


async def test_what_is_there_is_read_without_waiting_for_more(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question about the next topic waited half a second behind it."""
    waits_ms: dict[str, int] = {}
    begin = FetchRequest.__init__

    def begun(request: FetchRequest, *said: Any, **more: Any) -> None:
        begin(request, *said, **more)
        waits_ms.update((topic, request._max_wait_ms) for topic, _ in request.topics)

    monkeypatch.setattr(FetchRequest, "__init__", begun)
    bus = opened()
    await bus.publish(message("read"), message("followed", REQUESTS.name))
    consumer = await bus.consumer("g", [REQUESTS.name])
    assert [one.value for one in await consumer.poll()] == [b"followed"]
    assert await stored(bus) == [b"read"]
    assert waits_ms[bus.options.topic(EVENTS.name)] <= 10
    assert waits_ms[bus.options.topic(REQUESTS.name)] == 500, "who follows asks rarely"


def look_into(options: KafkaOptions) -> None:
    with KafkaLog(options, "a") as log:
        assert log.head.topics.keys() == ALL_TOPICS.keys()


def read_through(options: KafkaOptions) -> None:
    with KafkaLog(options, "a") as log:
        assert list(log.records()) == []
        read = [topic for _, topic, _ in log.head.positions]
        assert read == [REQUESTS.name, EVENTS.name], "what was read is not read again of a copy"
