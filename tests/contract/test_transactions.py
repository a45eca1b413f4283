"""Every backend: atomic transactions, fencing, tombstones, compaction, retention, reopening."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bus.contract import Bus, BusError, Fenced, Message
from schemas.topics import CELLS, COMMANDS, EVENTS, JOURNAL
from tests.patience import PATIENCE_S

Event = Callable[..., Message]
DAY_S = 24 * 3600.0


async def stored(bus: Bus, topic: str) -> list[Any]:
    return [record.value async for record in bus.read(topic)]


async def commit(producer: Any, *messages: Message) -> None:
    async with producer.transaction() as transaction:
        for message in messages:
            transaction.send(message)


async def test_transaction_takes_effect_as_a_whole(bus: Bus, event: Event) -> None:
    await bus.publish(event("cell", "in-0"), event("cell", "in-1"))
    consumer = await bus.consumer("scheduler", [EVENTS.name])
    producer = await bus.producer("scheduler")
    await consumer.poll()
    async with producer.transaction() as transaction:
        transaction.send(event("cell", "decided", JOURNAL.name))
        transaction.send(event("node", "start", COMMANDS.name))
        transaction.commit_positions(consumer)
        await asyncio.sleep(0.01)
        assert await stored(bus, JOURNAL.name) == []  # nothing shows before it ends
    assert await stored(bus, JOURNAL.name) == [b"decided"]
    assert await stored(bus, COMMANDS.name) == [b"start"]
    successor = await bus.consumer("scheduler", [EVENTS.name])
    assert successor.positions == {EVENTS.name: 2}


async def test_aborted_transaction_leaves_nothing(bus: Bus, event: Event) -> None:
    await bus.publish(event("cell", "in"))
    consumer = await bus.consumer("scheduler", [EVENTS.name])
    producer = await bus.producer("scheduler")
    await consumer.poll()
    with pytest.raises(RuntimeError, match="decide"):  # noqa: PT012 - the block is the subject
        async with producer.transaction() as transaction:
            transaction.send(event("cell", "half", JOURNAL.name))
            transaction.commit_positions(consumer)
            raise RuntimeError("decide failed")
    assert await stored(bus, JOURNAL.name) == []
    assert await bus.end(JOURNAL.name) == 0
    successor = await bus.consumer("scheduler", [EVENTS.name])
    assert [record.value for record in await successor.poll()] == [b"in"]  # redelivered
    await commit(producer, event("cell", "whole", JOURNAL.name))
    assert await stored(bus, JOURNAL.name) == [b"whole"]


async def test_positions_are_those_of_the_moment(bus: Bus, event: Event) -> None:
    await bus.publish(event("cell", "0"), event("cell", "1"))
    consumer = await bus.consumer("scheduler", [EVENTS.name])
    producer = await bus.producer("scheduler")
    await consumer.poll(1)
    async with producer.transaction() as transaction:
        transaction.commit_positions(consumer)
        await consumer.poll(1)
    successor = await bus.consumer("scheduler", [EVENTS.name])
    assert successor.positions == {EVENTS.name: 1}


async def test_zombie_is_fenced_at_its_next_commit(bus: Bus, event: Event) -> None:
    await bus.publish(event("cell", "in"))
    consumer = await bus.consumer("scheduler", [EVENTS.name])
    await consumer.poll()
    zombie = await bus.producer("scheduler")
    begun = zombie.transaction()
    await begun.__aenter__()
    begun.send(event("cell", "zombie", JOURNAL.name))
    begun.commit_positions(consumer)
    heir = await bus.producer("scheduler")
    with pytest.raises(Fenced, match="scheduler"):
        await begun.__aexit__(None, None, None)
    with pytest.raises(Fenced):
        await commit(zombie, event("cell", "zombie again", JOURNAL.name))
    with pytest.raises(Fenced):
        async with zombie.transaction():
            pass
    await commit(heir, event("cell", "heir", JOURNAL.name))
    other = await bus.producer("another id")
    await commit(other, event("cell", "other", JOURNAL.name))
    assert await stored(bus, JOURNAL.name) == [b"heir", b"other"]
    assert (await bus.consumer("scheduler", [EVENTS.name])).positions == {EVENTS.name: 0}


async def test_fenced_transaction_spares_those_committed_beside_it(bus: Bus, event: Event) -> None:
    zombie, heir = await bus.producer("p"), await bus.producer("p")

    done = await asyncio.gather(
        bus.publish(event("cell", "a", JOURNAL.name)),
        commit(zombie, event("cell", "zombie", JOURNAL.name)),
        commit(heir, event("cell", "heir", JOURNAL.name)),
        bus.publish(event("cell", "b", JOURNAL.name)),
        return_exceptions=True,
    )
    assert [type(one) for one in done] == [type(None), Fenced, type(None), type(None)]
    assert sorted(await stored(bus, JOURNAL.name)) == [b"a", b"b", b"heir"]


async def test_one_transaction_at_a_time(bus: Bus, event: Event) -> None:
    producer = await bus.producer("p")
    async with producer.transaction() as outer:
        outer.send(event("cell", "outer", JOURNAL.name))
        with pytest.raises(BusError, match="in a transaction already"):
            async with producer.transaction():
                pass
    assert await stored(bus, JOURNAL.name) == [b"outer"]


async def test_consumer_of_another_bus_is_refused(bench: Any, bus: Bus) -> None:
    stranger = await bench.open().consumer("scheduler", [EVENTS.name])
    producer = await bus.producer("p")
    with pytest.raises(BusError, match="another bus"):
        async with producer.transaction() as transaction:
            transaction.commit_positions(stranger)


@pytest.mark.promises("prune")
async def test_compaction_keeps_the_newest_of_each_key(bus: Bus, bench: Any, event: Event) -> None:
    for value in ("1", "2", "3"):
        await bus.publish(event("a", value, CELLS.name), event("b", value, CELLS.name))
    await bus.publish(event("b", None, CELLS.name))
    assert await bus.prune(bench.clock.now_s()) == 5
    assert await stored(bus, CELLS.name) == [b"3", None]  # slow readers still see the tombstone
    assert await bus.prune(bench.clock.now_s() + 2 * DAY_S) == 1
    assert await stored(bus, CELLS.name) == [b"3"]
    assert await bus.latest(CELLS.name, "b") is None
    consumer = await bus.consumer("late", [CELLS.name])
    assert await consumer.lag() == 1
    assert [record.offset for record in await consumer.poll()] == [4]
    assert consumer.positions == {CELLS.name: 7}
    await bus.publish(event("b", "back", CELLS.name))
    assert [record.offset for record in await consumer.poll()] == [7]


@pytest.mark.promises("prune")
async def test_retention_removes_from_the_front_and_offsets_go_on(
    bus: Bus, bench: Any, event: Event
) -> None:
    await bus.publish(*(event("k", f"old {i}") for i in range(5000)))
    await bus.publish(event("k", "journalled", JOURNAL.name), event("k", "own", "my.topic"))
    bench.clock.ahead_s = 10 * DAY_S
    await bus.publish(event("k", "new"))
    assert await bus.prune(bench.clock.now_s()) == 0
    bench.clock.ahead_s = 15 * DAY_S
    consumer = await bus.consumer("group", [EVENTS.name])
    assert await bus.prune(bench.clock.now_s()) == 5000
    assert await stored(bus, EVENTS.name) == [b"new"]
    assert await stored(bus, JOURNAL.name) == [b"journalled"]
    assert await stored(bus, "my.topic") == [b"own"]
    assert [record.offset for record in await consumer.poll()] == [5000]
    bench.clock.ahead_s = 30 * DAY_S
    assert await bus.prune(bench.clock.now_s()) == 1
    assert await bus.end(EVENTS.name) == 5001
    await bus.publish(event("k", "newest"))
    assert [record.offset for record in await consumer.poll()] == [5001]


@pytest.mark.promises("durable")
async def test_everything_is_there_after_reopening(bench: Any, event: Event) -> None:
    bus = bench.open()
    await bus.publish(*(event("k", str(i)) for i in range(3)))
    consumer = await bus.consumer("group", [EVENTS.name])
    await consumer.poll(2)
    producer = await bus.producer("p")
    async with producer.transaction() as transaction:
        transaction.send(event("cell", "decided", JOURNAL.name))
        transaction.commit_positions(consumer)
    await bus.close()

    again = bench.open()
    assert await stored(again, EVENTS.name) == [b"0", b"1", b"2"]
    assert await stored(again, JOURNAL.name) == [b"decided"]
    assert (await again.consumer("group", [EVENTS.name])).positions == {EVENTS.name: 2}
    await again.publish(event("k", "3"))
    assert await again.end(EVENTS.name) == 4


@pytest.mark.promises("durable")
async def test_fencing_reaches_across_openings(bench: Any, event: Event) -> None:
    one, two = bench.open(), bench.open()
    zombie = await one.producer("p")
    await commit(zombie, event("cell", "before", JOURNAL.name))
    await two.producer("p")
    with pytest.raises(Fenced):
        await commit(zombie, event("cell", "after", JOURNAL.name))
    assert await stored(two, JOURNAL.name) == [b"before"]


@pytest.mark.promises("durable")
async def test_other_openings_appends_reach_a_waiting_consumer(bench: Any, event: Event) -> None:
    one, two = bench.open(), bench.open()
    every = await one.consumer("every", [EVENTS.name])
    mine = await one.consumer("mine", [COMMANDS.name], keys=["mine"])
    polls = asyncio.gather(every.poll(), mine.poll())
    await asyncio.sleep(0.01)
    await two.publish(event("k", "far"), event("mine", "order", COMMANDS.name))
    far, order = await asyncio.wait_for(polls, PATIENCE_S)
    assert [record.value for record in far + order] == [b"far", b"order"]
    await asyncio.gather(*(bus.publish(event("k", "x")) for _ in range(20) for bus in (one, two)))
    assert len(await stored(one, EVENTS.name)) == 41


@pytest.mark.promises("prune")
async def test_what_a_clock_that_was_ahead_has_stored_blocks_no_retention(
    bus: Bus, bench: Any, event: Event
) -> None:
    await bus.publish(event("k", "old"))
    bench.clock.ahead_s = 1000 * DAY_S
    await bus.publish(*(event("k", f"ahead {i}") for i in range(3000)))
    bench.clock.ahead_s = 0.0
    await bus.publish(event("other", "put right"))
    assert await bus.prune(bench.clock.now_s()) == 0
    bench.clock.ahead_s = 10 * DAY_S
    await bus.publish(event("other", "new"))
    bench.clock.ahead_s = 15 * DAY_S
    assert await bus.prune(bench.clock.now_s()) == 3002
    assert await stored(bus, EVENTS.name) == [b"new"]
