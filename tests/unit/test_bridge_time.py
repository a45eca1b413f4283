"""Bridge and outbox wait by their clock alone: in simulated time, hours of it pass at once."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from bus.bridge import Bridge
from bus.clock import PacedClock
from bus.contract import Message
from bus.mqtt_outbox import DOWN_S, RESEND_S, Outbox
from bus.wire import Client, Incoming, LinkDown, Outgoing
from schemas.commands import Rebirth
from schemas.topics import COMMANDS, EVENTS
from tests.patience import take_part
from tests.post import Post, PostWire, ShakyBus, ordered, progressed, records

START_S = 1_000_000.0


@pytest.fixture
def clock() -> PacedClock:
    return PacedClock(START_S, None)


async def test_a_bridge_tries_as_often_as_its_clock_says(clock: PacedClock) -> None:
    """An hour without Kafka or connection: then all is carried, nobody has kept time still."""
    post, bus = Post(), ShakyBus(clock)
    bus.down, post.working = True, 0
    made = Bridge(name="b", wire=post.connect, buses={"default": bus}, clock=clock)
    running = asyncio.create_task(made.run(["default"]))
    post.say("n0", "event", progressed(0))

    async def outage() -> None:
        await clock.sleep_until(START_S + 3600.0)
        bus.down, post.working = False, None
        await bus.publish(*(Message(COMMANDS.name, f"n{n}", order(n)) for n in range(3)))

    def order(number: int) -> bytes:
        return ordered(Rebirth(), number, f"n{number}", START_S)

    await take_part(clock, outage, until_s=START_S + 3605.0)
    assert 3000 < made.counters.retries < 4000
    assert (made.unacked, made.counters.forwarded_down) == (0, 3)
    assert [record.value for record in await records(bus, EVENTS.name)] == [progressed(0)]
    made.stop()
    await running


async def test_each_of_many_commands_takes_its_time_and_time_goes_on(clock: PacedClock) -> None:
    """A broker that confirms slowly, and each agent's at another moment."""
    post, bus = Post(), ShakyBus(clock)

    class Slow(PostWire):
        async def publish(self, message: Outgoing) -> None:
            await clock.sleep_until(clock.now_s() + 1.0 + int(message.correlation[8]))
            await super().publish(message)

    def wire(_: Sequence[str], hear: Callable[[Incoming], None]) -> Slow:
        return Slow(post, hear)

    made = Bridge(name="b", wire=wire, buses={"default": bus}, clock=clock)
    running = asyncio.create_task(made.run(["default"]))
    orders = [ordered(Rebirth(), n, f"n{n}", START_S) for n in range(5)]
    await bus.publish(*(Message(COMMANDS.name, f"n{n}", one) for n, one in enumerate(orders)))
    for seconds in (0.5, 1.5, 2.5, 5.5):
        await clock.run_until(START_S + seconds)
        assert made.counters.forwarded_down == int(seconds)
    made.stop()
    await running


class Deaf:
    """Takes everything and confirms nothing, as a broker whose bridges are gone."""

    connected = True
    problem = "nobody answers"

    def __init__(self) -> None:
        self.sent = 0

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        self.sent += 1
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done


async def test_what_is_unconfirmed_is_sent_again_by_the_clock(clock: PacedClock) -> None:
    client = Deaf()
    outbox = Outbox(cast("Client", client), 10, clock)
    failed: list[Any] = []

    async def agent() -> None:
        try:
            await outbox.send([((1, 0), Outgoing("up/event", b""))])
        except LinkDown as error:
            failed.append((clock.now_s(), str(error)))
        finally:
            clock.leave()

    clock.enter()
    sending = asyncio.create_task(agent())
    await clock.run_until(START_S + 100.5 * RESEND_S)
    assert client.sent == 1 + 100
    client.connected = False
    await clock.run_until(clock.now_s() + 2 * DOWN_S)
    ((at_s, why),) = failed
    assert DOWN_S <= at_s - (START_S + 100.5 * RESEND_S) < DOWN_S + 2.0
    assert why == "no link for 30 s: nobody answers"
    await sending
