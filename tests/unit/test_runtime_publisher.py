"""The publisher: what no bus will ever take must not keep the rest."""

import asyncio

from bus.clock import PacedClock, SystemClock
from bus.contract import BusError, Message, Unfit
from runtime.publisher import Publisher
from runtime.spool import Spool, SpooledMessage
from schemas.topics import EVENTS
from tests.memory_bus import MemoryBus
from tests.patience import until


class PickyBus(MemoryBus):
    """Takes no message whose value is `unfit`, and for a while nothing at all."""

    down = 0

    async def publish(self, *messages: Message) -> None:
        if any(message.value == b"unfit" for message in messages):
            raise Unfit("not this one")
        if self.down:
            self.down -= 1
            raise BusError("away")
        await super().publish(*messages)


async def test_what_no_bus_takes_is_given_up_and_the_rest_goes_on_in_order() -> None:
    clock = SystemClock()
    bus = PickyBus(clock)
    values = [b"0", b"1", b"unfit", b"3", b"unfit", b"5"]
    spool = Spool(
        None,
        [SpooledMessage(n, Message(EVENTS.name, "k", v)) for n, v in enumerate(values)],
    )
    bus.down = 1
    publisher = Publisher(spool, bus, clock, retry_s=0.01)
    publisher.begin("a")
    await until(lambda: not len(spool))
    await publisher.finish(5.0)
    stored = [record.value async for record in bus.read(EVENTS.name)]
    assert stored == [b"0", b"1", b"3", b"5"]
    assert (publisher.unfit, publisher.published, len(spool)) == (2, 4, 0)


async def test_a_bus_that_is_away_is_asked_after_a_pause_though_it_will_never_take_one() -> None:
    """It was asked without any, and the agent did nothing else."""
    clock = SystemClock()
    bus = PickyBus(clock)
    bus.down = 1_000
    values = (b"0", b"unfit")
    spool = Spool(
        None, [SpooledMessage(n, Message(EVENTS.name, "k", v)) for n, v in enumerate(values)]
    )
    publisher = Publisher(spool, bus, clock, retry_s=0.01)
    publisher.begin("a")
    await until(lambda: publisher.problem)
    assert bus.down > 900
    bus.down = 0
    await until(lambda: publisher.published)
    assert (publisher.problem, publisher.unfit) == ("", 1)
    await publisher.finish(5.0)


async def test_a_bus_that_takes_nothing_for_long_is_a_problem_until_it_does() -> None:
    """As a broker that lets an agent in and does not let it speak."""
    clock = SystemClock()
    bus = PickyBus(clock)
    bus.down = 1_000_000
    spool = Spool(None, [SpooledMessage(0, Message(EVENTS.name, "k", b"0"))])
    publisher = Publisher(spool, bus, clock, retry_s=0.01)
    publisher.begin("a")
    await until(lambda: publisher.failures)
    assert publisher.problem == "" or publisher.failures > 2, "it may be started anew"
    await until(lambda: publisher.problem)
    assert publisher.problem == "away"
    bus.down = 0
    await until(lambda: publisher.published)
    assert publisher.problem == ""
    await publisher.finish(5.0)


class SilentBus(MemoryBus):
    """Never answers."""

    def __init__(self, clock: PacedClock) -> None:
        super().__init__(clock)
        self._silence = clock.waiter()

    async def publish(self, *messages: Message) -> None:
        await self._silence.wait()


async def test_a_stop_waits_for_a_silent_bus_by_the_clock() -> None:
    clock = PacedClock(100.0, None)
    spool = Spool(None, [SpooledMessage(0, Message(EVENTS.name, "k", b"0"))])
    publisher = Publisher(spool, SilentBus(clock), clock, retry_s=1.0)
    publisher.begin("a")

    async def stop() -> float:
        clock.enter()
        await publisher.finish(3600.0)
        clock.leave()
        return clock.now_s()

    stopped = asyncio.create_task(stop())
    await asyncio.sleep(0)
    await clock.run_until(10_000.0)
    assert await stopped == 3700.0
    assert (publisher.published, len(spool)) == (0, 1)
