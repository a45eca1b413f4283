"""Every backend: order, groups, positions, waiting, back-pressure, drain, close."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bus.contract import Bus, BusError, Closed, Message, Record
from bus.letters import dead_letter
from schemas.topics import COMMANDS, EVENTS, TELEMETRY
from tests.patience import PATIENCE_S

Event = Callable[..., Message]
NOW = 0.0
#: For records that are there already, though a remote log may need a moment to bring them.
SOON = 5.0


def values(records: list[Any]) -> list[str]:
    return [record.value.decode() for record in records]


async def stored(bus: Bus, topic: str = EVENTS.name) -> list[Any]:
    return [record async for record in bus.read(topic)]


async def test_records_come_back_as_they_were_sent(bus: Bus, bench: Any) -> None:
    before_s = bench.clock.now_s()
    headers = {"traceparent": "00-ab", "kïnd": "ü"}
    await bus.publish(
        Message(EVENTS.name, "clé", b"\x00\xff", headers),
        Message(EVENTS.name, "k", b""),
        Message(EVENTS.name, "k", None),
    )
    first, empty, tombstone = await stored(bus)
    assert (first.topic, first.offset, first.key, first.value) == (
        EVENTS.name,
        0,
        "clé",
        b"\x00\xff",
    )
    assert dict(first.headers) == headers
    assert before_s <= first.time_s <= bench.clock.now_s()
    assert (empty.value, tombstone.value) == (b"", None)


async def test_each_key_is_read_in_the_order_stored(bus: Bus, event: Event) -> None:
    async def publisher(key: str) -> None:
        for number in range(30):
            await bus.publish(event(key, f"{key}{number}"))

    await asyncio.gather(*(publisher(key) for key in "abcd"))
    consumer = await bus.consumer("readers", [EVENTS.name])
    records: list[Any] = []
    while len(records) < 120:
        records += await consumer.poll(7, timeout_s=SOON)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    for key in "abcd":
        own = [record for record in records if record.key == key]
        assert values(own) == [f"{key}{number}" for number in range(30)]


async def test_concurrent_publishes_are_stored_in_the_order_called(bus: Bus, event: Event) -> None:
    await asyncio.gather(*(bus.publish(event("k", str(number))) for number in range(50)))
    assert values(await stored(bus)) == [str(number) for number in range(50)]


async def test_group_goes_on_where_it_committed(bus: Bus, event: Event) -> None:
    await bus.publish(*(event("k", str(number)) for number in range(4)))
    first = await bus.consumer("group", [EVENTS.name])
    assert values(await first.poll(2)) == ["0", "1"]
    await first.commit()
    assert values(await first.poll(1)) == ["2"]  # read, but never committed
    await first.close()
    second = await bus.consumer("group", [EVENTS.name])
    assert second.positions == {EVENTS.name: 2}
    assert values(await second.poll()) == ["2", "3"]


async def test_groups_do_not_disturb_each_other(bus: Bus, event: Event) -> None:
    await bus.publish(event("k", "0"), event("k", "1"))
    one = await bus.consumer("one", [EVENTS.name])
    two = await bus.consumer("two", [EVENTS.name])
    assert values(await one.poll()) == ["0", "1"]
    await one.commit()
    assert values(await two.poll()) == ["0", "1"]
    again = await bus.consumer("two", [EVENTS.name])
    assert values(await again.poll()) == ["0", "1"]


async def test_a_backlog_of_one_topic_does_not_overtake_the_topic_before_it(
    bus: Bus, event: Event
) -> None:
    """Both carry numbers of one source: what is overtaken by many would be taken for lost."""
    for start in range(0, 900, 100):
        flood = [event("n", str(number), TELEMETRY.name) for number in range(start, start + 100)]
        await bus.publish(*flood, *(event("k", f"e{start + n}") for n in range(100)))
    consumer = await bus.consumer("group", [EVENTS.name, TELEMETRY.name])
    seen: list[Any] = []
    while len(seen) < 1800:
        seen += await consumer.poll(100, timeout_s=SOON)
    assert values(seen) == [f"e{n}" for n in range(900)] + [str(n) for n in range(900)]


async def test_poll_takes_no_more_than_asked(bus: Bus, event: Event) -> None:
    await bus.publish(*(event("k", str(number)) for number in range(10)))
    consumer = await bus.consumer("group", [EVENTS.name])
    assert len(await consumer.poll(3)) == 3
    assert consumer.positions == {EVENTS.name: 3}
    with pytest.raises(ValueError, match="max_records"):
        await consumer.poll(0)


async def test_poll_waits_for_the_first_record(bus: Bus, event: Event) -> None:
    consumer = await bus.consumer("group", [EVENTS.name])
    waiting = asyncio.create_task(consumer.poll())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await bus.publish(event("k", "late"))
    assert values(await asyncio.wait_for(waiting, PATIENCE_S)) == ["late"]


async def test_poll_gives_up_after_its_timeout_by_the_clock(bus: Bus, bench: Any) -> None:
    consumer = await bus.consumer("group", [EVENTS.name])
    before_s = bench.clock.now_s()
    assert await consumer.poll(timeout_s=0.05) == []
    assert 0.05 <= bench.clock.now_s() - before_s < 5.0
    assert await consumer.poll(timeout_s=NOW) == []


async def test_key_filter_hands_over_only_these_and_passes_the_rest(
    bus: Bus, bench: Any, event: Event
) -> None:
    for topic in (COMMANDS.name, EVENTS.name):  # keys looked up, and keys filtered
        await bus.publish(*(event(f"n{i % 5}", str(i), topic) for i in range(50)))
        consumer = await bus.consumer(f"agent {topic}", [topic], keys=["n3", "n1", "absent"])
        # Who counts offsets may have passed record 0 already, which has another key.
        assert await consumer.lag() in ([20] if bench.promises("counted_lag") else [49, 50])
        first = await consumer.poll(4)
        assert values(first) == ["1", "3", "6", "8"]
        assert consumer.positions == {topic: first[-1].offset + 1}
        rest = await consumer.poll()
        assert values(rest) == [str(i) for i in range(9, 50) if i % 5 in (1, 3)]
        assert consumer.positions == {topic: 50}
        assert await consumer.lag() == 0


async def test_key_filter_waits_for_its_own_keys(bus: Bus, event: Event) -> None:
    consumer = await bus.consumer("agent", [COMMANDS.name], keys=["mine"])
    waiting = asyncio.create_task(consumer.poll())
    await asyncio.sleep(0)
    await bus.publish(event("theirs", "0", COMMANDS.name))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await bus.publish(event("mine", "1", COMMANDS.name))
    assert values(await asyncio.wait_for(waiting, PATIENCE_S)) == ["1"]


async def test_lag_and_end_count_what_is_stored(bus: Bus, event: Event) -> None:
    assert await bus.end(EVENTS.name) == 0
    consumer = await bus.consumer("group", [EVENTS.name])
    assert await consumer.lag() == 0
    await bus.publish(*(event("k", str(number)) for number in range(5)))
    assert await bus.end(EVENTS.name) == 5
    assert await consumer.lag() == 5
    await consumer.poll(2)
    assert await consumer.lag() == 3


async def test_read_starts_at_the_offset_and_ends_at_what_is_stored(bus: Bus, event: Event) -> None:
    await bus.publish(*(event("k", str(number)) for number in range(5)))
    seen = []
    async for record in bus.read(EVENTS.name, 3):
        seen.append(record.offset)
        await bus.publish(event("k", "more"))
    assert seen == [3, 4]
    assert await stored(bus, "tidegate.unheard.v1") == []


async def test_read_may_end_before_what_is_stored(bus: Bus, event: Event) -> None:
    await bus.publish(*(event("k", str(number)) for number in range(5)))
    for begin, end, wanted in ((0, 2, [0, 1]), (3, 4, [3]), (2, 99, [2, 3, 4]), (4, 2, [])):
        found = [record.offset async for record in bus.read(EVENTS.name, begin, end)]
        assert found == wanted


@pytest.mark.promises("latest")
async def test_latest_is_the_newest_of_a_key(bus: Bus, bench: Any, event: Event) -> None:
    for topic in (COMMANDS.name, EVENTS.name):
        await bus.publish(event("a", "1", topic), event("b", "2", topic), event("a", "3", topic))
        newest = await bus.latest(topic, "a")
        assert newest is not None
        assert (newest.value, newest.offset) == (b"3", 2)
        await bus.publish(event("a", None, topic))
        assert await bus.latest(topic, "a") is None
        assert await bus.latest(topic, "absent") is None
    assert await bus.latest("tidegate.unheard.v1", "a") is None


@pytest.mark.promises("latest")
async def test_last_is_the_newest_of_the_topic(bus: Bus, bench: Any, event: Event) -> None:
    assert await bus.last(EVENTS.name) is None
    assert await bus.last("tidegate.unheard.v1") is None
    await bus.publish(event("a", "1"), event("b", "2"), event("c", "other", COMMANDS.name))
    newest = await bus.last(EVENTS.name)
    assert newest is not None
    assert (newest.key, newest.value, newest.offset) == ("b", b"2", 1)
    await bus.publish(event("a", None))
    newest = await bus.last(EVENTS.name)
    assert newest is not None
    assert (newest.key, newest.value) == ("a", None)


async def test_a_consumer_knows_that_it_is_behind(bus: Bus) -> None:
    """Who waits to be read must not be taken for silent."""
    await bus.publish(*(Message(EVENTS.name, "cell-a", b"%d" % number) for number in range(5)))
    await bus.publish(Message(TELEMETRY.name, "n0", b"5"))
    consumer = await bus.consumer("scheduler", [EVENTS.name, TELEMETRY.name])
    found = await consumer.poll(3)
    assert consumer.behind
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 6 or consumer.behind:
            found += await consumer.poll(100, 0.1)
    assert [record.value for record in found] == [b"%d" % number for number in range(6)]
    await consumer.close()


async def test_dead_letter_keeps_the_original_bytes(bus: Bus) -> None:
    garbage = b"\xff{not json\x00"
    await bus.publish(Message(EVENTS.name, "cell-a", garbage, {"traceparent": "00-ab"}))
    consumer = await bus.consumer("scheduler", [EVENTS.name])
    (record,) = await consumer.poll()
    await bus.publish(dead_letter(record, "data.gpu", "not valid JSON", "scheduler"))
    (dead,) = await stored(bus, f"{EVENTS.name}.dlq")
    assert (dead.key, dead.value) == ("cell-a", garbage)
    assert dead.headers["traceparent"] == "00-ab"
    assert dead.headers["dlq_error"] == "not valid JSON"
    assert dead.headers["dlq_origin_offset"] == "0"


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        ("a\0b", b"x", {}),
        ("k" * 5000, b"x", {}),
        ("k", b"x" * 3_000_000, {}),
        ("k", b"x", {"h": "a\0b", "\u200b": "zero width"}),
        ("k", b"x", {f"h{n}": "v" * 5000 for n in range(100)}),
    ],
)
async def test_every_dead_letter_can_be_published(
    bus: Bus, key: str, value: bytes, headers: dict[str, str]
) -> None:
    """One that no bus takes would be tried for ever, and everything behind it would wait."""
    record = Record(EVENTS.name, 7, key, value, headers, 0.0)
    await bus.publish(dead_letter(record, "data\n", "no\0good", "readers"))
    (letter,) = [found async for found in bus.read(f"{EVENTS.name}.dlq")]
    assert letter.headers["dlq_error"] == "no?good"
    assert (letter.value or b"").startswith(b"x")


@pytest.mark.promises("slow_storage")
async def test_publishers_wait_their_turn_and_nothing_is_lost(bench: Any, event: Event) -> None:
    limit = 8
    with bench.slow() as bus:
        publishes = [asyncio.create_task(bus.publish(event("k", str(i)))) for i in range(50)]
        await asyncio.sleep(0.02)
        assert bus.in_flight == limit
        assert not all(task.done() for task in publishes)
        for task in publishes[30:40]:  # those still waiting for their turn may give up
            task.cancel()
        await asyncio.sleep(0)
        assert bus.in_flight <= limit
    await bus.drain()
    assert bus.in_flight == 0
    done = await asyncio.gather(*publishes, return_exceptions=True)
    assert sum(isinstance(one, asyncio.CancelledError) for one in done) == 10
    expected = [str(i) for i in range(50) if not 30 <= i < 40]
    assert values(await stored(bus)) == expected
    await bus.close()


@pytest.mark.promises("slow_storage")
async def test_drain_waits_for_what_is_on_its_way(bench: Any, event: Event) -> None:
    with bench.slow() as bus:
        publish = asyncio.create_task(bus.publish(event("k", "0")))
        await asyncio.sleep(0.01)
        drain = asyncio.create_task(bus.drain())
        await asyncio.sleep(0.01)
        assert not publish.done()
        assert not drain.done()
    await asyncio.wait_for(drain, PATIENCE_S)
    assert values(await stored(bus)) == ["0"]
    await publish
    await bus.close()


@pytest.mark.promises("log")
async def test_close_stores_what_was_published_and_ends_everything(
    bench: Any, event: Event
) -> None:
    bus = bench.open()
    consumer = await bus.consumer("group", [EVENTS.name])
    waiting = asyncio.create_task(consumer.poll())
    publish = asyncio.create_task(bus.publish(event("other", "0", TELEMETRY.name)))
    await asyncio.sleep(0)
    await bus.close()
    await publish
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, PATIENCE_S)
    for refused in (
        bus.publish(event("k", "1")),
        bus.consumer("group", [EVENTS.name]),
        bus.producer("p"),
        bus.end(EVENTS.name),
        bus.latest(EVENTS.name, "k"),
        bus.prune(0.0),
        consumer.commit(),
    ):
        with pytest.raises(Closed):
            await refused
    await bus.close()  # again does nothing


async def test_closed_consumer_refuses_and_its_wait_ends(bus: Bus) -> None:
    consumer = await bus.consumer("group", [EVENTS.name])
    waiting = asyncio.create_task(consumer.poll())
    await asyncio.sleep(0.01)
    await consumer.close()
    await consumer.close()
    with pytest.raises(Closed, match="group"):
        await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("", "k", b""), "empty topic"),
        (Message(EVENTS.name, 3, b""), "key must be text"),  # type: ignore[arg-type]
        (Message(EVENTS.name, "k", "text"), "value must be bytes"),  # type: ignore[arg-type]
        (Message(EVENTS.name, "k", b"", {"h": 1}), "header 'h'"),  # type: ignore[dict-item]
        (Message(EVENTS.name, "\ud800", b""), "no valid Unicode"),
    ],
)
async def test_unfit_messages_are_refused_by_name(bus: Bus, message: Message, words: str) -> None:
    with pytest.raises(BusError, match=words):
        await bus.publish(Message(EVENTS.name, "k", b"good"), message)
    assert await stored(bus) == []
