"""What the simulated MQTT broker alone is asked: its bounds, old files, cut networks."""

import asyncio
from collections.abc import Callable, Coroutine

import numpy as np
import pytest

from bus.clock import PacedClock
from bus.mqtt_client import WILL_DELAY_S
from bus.wire import Incoming, LinkDown, Outgoing
from tests.builders import START_S
from tests.whole.mosquitto import QUEUED_MAX, SILENCE_S, Hold, Mosquitto
from tests.whole.process import Process
from tests.whole.wires import MqttWire

UP, DOWN = "tidegate/v1/n0/up/event", "tidegate/v1/n0/down/command"


class World:
    """A broker, and clients that note what comes."""

    def __init__(self) -> None:
        self.clock = PacedClock(START_S, None)
        self.rng = np.random.default_rng(1)
        self.broker = Mosquitto(self.clock, self.rng)
        self.broker.begin()
        self.heard: dict[str, list[Incoming]] = {}

    def client(self, name: str, *filters: str, will: bytes = b"", keep: bool = True) -> MqttWire:
        process = Process(name, self.clock)
        made = MqttWire(self.broker, process, self.rng, name, 60.0, keep_session=keep)
        heard = self.heard.setdefault(name, [])
        last = (lambda _: Outgoing(UP, will, retain=True)) if will else None
        made.make(filters, heard.append, None, last).start()
        return made

    async def passes(self, seconds: float) -> None:
        await self.clock.run_until(self.clock.now_s() + seconds)

    def values(self, name: str) -> list[bytes]:
        return [incoming.value for incoming in self.heard[name]]


def in_a_world(test: Callable[[World], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Run a test in one, and end what runs there."""

    async def run() -> None:
        try:
            await test(World())
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            for _ in range(20):
                await asyncio.sleep(0)

    def called() -> None:
        asyncio.run(run())

    called.__name__ = called.__qualname__ = getattr(test, "__name__", "test")
    called.__module__ = __name__
    return called


@in_a_world
async def test_a_queue_is_bounded_and_a_session_ends(world: World) -> None:
    wire, other = world.client("n0", DOWN), world.client("b")
    await world.passes(1.0)
    wire.process.kill()
    wire.snap()
    for number in range(QUEUED_MAX + 10):
        await other.publish(Outgoing(DOWN, b"%d" % number))
    again = world.client("n0", DOWN)
    for _ in range(10):
        await world.passes(1.0)
        for incoming in world.heard["n0"]:
            again.ack(incoming)
    assert world.values("n0") == [b"%d" % number for number in range(QUEUED_MAX)]
    again.process.kill()
    again.snap()
    await world.passes(70.0)
    assert not await other.send(Outgoing(DOWN, b"too late"))


@in_a_world
async def test_a_will_follows_who_is_lost_and_nobody_else(world: World) -> None:
    b = world.client("b", UP)
    one, back, gone = (world.client(n, will=n.encode()) for n in ("lost", "back", "gone"))
    await world.passes(1.0)
    one.process.kill()
    one.snap()
    back.snap()
    leaving = asyncio.create_task(gone.close())
    await world.passes(WILL_DELAY_S + 2.0)
    assert (world.values("b"), leaving.done()) == ([b"lost"], True)
    assert world.broker.retained[UP].value == b"lost"
    world.client("late", UP)
    back.cut_until_s = world.clock.now_s() + 3600.0
    await world.passes(SILENCE_S + WILL_DELAY_S + 10.0)
    assert (world.values("b"), world.values("late")) == ([b"lost", b"back"], [b"lost", b"back"])
    assert b.connected
    assert not back.connected


@in_a_world
async def test_a_broker_that_starts_again_knows_what_its_file_holds(world: World) -> None:
    wire, other = world.client("n0", DOWN), world.client("b")
    await world.passes(1.0)
    await other.publish(Outgoing(DOWN, b"saved"))
    await world.passes(1.0)
    kept = world.broker.copy()
    wire.ack(world.heard["n0"][0])
    await other.publish(Outgoing(DOWN, b"not saved"))
    await world.passes(1.0)
    world.broker.crash(kept)
    await world.passes(1.0)
    assert not other.connected
    with pytest.raises(LinkDown):
        await other.publish(Outgoing(DOWN, b"x"))
    world.broker.start()
    await world.passes(20.0)
    assert wire.connected
    assert world.values("n0") == [b"saved", b"not saved", b"saved"]


@in_a_world
async def test_a_cut_one_way_holds_what_goes_that_way(world: World) -> None:
    wire, other = world.client("n0", DOWN), world.client("b")
    await world.passes(1.0)
    wire.up_cut_until_s = world.clock.now_s() + 20.0
    said = wire.send(Outgoing(UP, b"x"))
    await other.publish(Outgoing(DOWN, b"1"))
    await world.passes(1.0)
    assert (world.values("n0"), said.done()) == ([b"1"], False)
    await world.passes(20.0)
    assert said.done()
    wire.down_cut_until_s = world.clock.now_s() + 20.0
    said = wire.send(Outgoing(UP, b"y"))
    await other.publish(Outgoing(DOWN, b"2"))
    await world.passes(1.0)
    assert b"y" in world.broker.said["n0"]
    assert (world.values("n0"), said.done()) == ([b"1"], False)
    await world.passes(20.0)
    assert (world.values("n0"), said.done()) == ([b"1", b"2"], True)


@in_a_world
async def test_a_word_that_is_held_comes_when_it_is_let_go_and_others_pass_it(world: World) -> None:
    wire, _ = world.client("n0"), world.client("b", UP)
    await world.passes(1.0)
    hold = Hold("n0", b"born")
    world.broker.holds.append(hold)
    for value in (b"first", b"born 1", b"born 2", b"born 1"):
        wire.send(Outgoing(UP, value))
    await world.passes(1.0)
    assert world.values("b") == [b"first", b"born 2"]
    world.broker.let_go(hold)
    wire.send(Outgoing(UP, b"born 1"))
    await world.passes(1.0)
    assert world.values("b") == [b"first", b"born 2", b"born 1", b"born 1"]
