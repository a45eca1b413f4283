"""Every link of an agent: what it publishes is durable at the far end, its commands come to it.

Messages are real ones of one agent, because what carries a link may look at them.
"""

import asyncio
from typing import Any

import pytest

from bus.contract import Bus, Closed, Consumer, Link, Message, Record
from schemas.commands import Rebirth
from schemas.topics import COMMANDS, EVENTS, TELEMETRY
from tests import post
from tests.patience import PATIENCE_S

AGENT = "edge-1"


def progressed(sequence: int) -> Message:
    return Message(EVENTS.name, "default", post.progressed(sequence, AGENT))


def measured(sequence: int) -> Message:
    return Message(TELEMETRY.name, AGENT, post.measured(sequence, AGENT))


def order(number: int, agent: str = AGENT) -> Message:
    value = post.ordered(Rebirth(), number, agent, 1_000_000.0)
    return Message(COMMANDS.name, agent, value, {"sig": "s", "kid": "k"})


async def commands(link: Link) -> Consumer:
    return await link.consumer(f"agent-{AGENT}", [COMMANDS.name], keys=[AGENT])


async def heard(consumer: Consumer, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await consumer.poll(timeout_s=0.2)
    return found


async def stored(far: Bus, topic: str) -> list[Message]:
    """What the far end holds of the agent; its link speaks for itself besides."""
    return [
        Message(topic, record.key, record.value)
        async for record in far.read(topic)
        if b'"source":"/links/' not in (record.value or b"")
    ]


@pytest.fixture
async def link(bench: Any) -> Link:
    found: Link = bench.link()
    return found


@pytest.fixture
async def far(bench: Any, link: Link) -> Bus:
    found: Bus = await bench.far(link)
    return found


async def test_what_is_published_is_stored_at_the_far_end(link: Link, far: Bus) -> None:
    said = [progressed(0), measured(1), progressed(2), progressed(3), measured(4)]
    await link.publish(*said[:3])
    await asyncio.gather(*(link.publish(one) for one in said[3:]))
    for topic in (EVENTS.name, TELEMETRY.name):
        assert await stored(far, topic) == [one for one in said if one.topic == topic]


async def test_commands_of_this_agent_come_in_order_with_their_headers(
    link: Link, far: Bus
) -> None:
    consumer = await commands(link)
    for number in range(20):
        await far.publish(order(number), order(number, "another"))
    found = await heard(consumer, 20)
    assert [record.value for record in found] == [order(number).value for number in range(20)]
    assert {record.key for record in found} == {AGENT}
    assert all(record.headers["sig"] == "s" for record in found)
    await consumer.commit()
    assert await consumer.poll(timeout_s=0.1) == []


async def test_uncommitted_commands_come_again(link: Link, far: Bus) -> None:
    first = await commands(link)
    await far.publish(order(0), order(1))
    await heard(first, 2)
    await first.commit()
    await far.publish(order(2), order(3))
    assert [record.value for record in await heard(first, 2)] == [order(2).value, order(3).value]
    await first.close()
    second = await commands(link)
    assert [record.value for record in await heard(second, 2)] == [order(2).value, order(3).value]


async def test_commands_wait_while_nobody_listens(link: Link, far: Bus) -> None:
    first = await commands(link)
    await first.close()
    await far.publish(order(0))
    assert [record.value for record in await heard(await commands(link), 1)] == [order(0).value]


async def test_drain_and_close_end_in_good_order(link: Link, far: Bus) -> None:
    consumer = await commands(link)
    publish = asyncio.create_task(link.publish(progressed(0)))
    await asyncio.sleep(0)
    await link.drain()
    await publish
    assert await stored(far, EVENTS.name) == [progressed(0)]
    waiting = asyncio.create_task(consumer.poll())
    await asyncio.sleep(0.02)
    last = asyncio.create_task(link.publish(progressed(1)))
    await asyncio.sleep(0)
    await link.close()
    await last
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, PATIENCE_S)
    with pytest.raises(Closed):
        await link.publish(progressed(2))
    if far is not link:
        assert await stored(far, EVENTS.name) == [progressed(0), progressed(1)]
