"""The window of an edge link, without a broker: what may be on its way at once."""

import asyncio
from typing import Any, cast

import pytest

from bus.clock import PacedClock, SystemClock
from bus.mqtt_outbox import Outbox, Place
from bus.wire import Client, Outgoing
from schemas.horizon import Range


class Confirming:
    """Confirms everything that it is given, at once."""

    connected = True
    problem = ""
    heard = True  #: Whether a bridge has subscribed.

    def __init__(self) -> None:
        self.sent: list[Place] = []

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        boot, number = message.value.split(b"-")
        self.sent.append((int(boot), int(number)))
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(self.heard)
        return done


@pytest.fixture
def client() -> Confirming:
    return Confirming()


def batch(*places: Place) -> list[tuple[Place | None, Outgoing]]:
    return [(place, Outgoing("up/event", b"%d-%d" % place)) for place in places]


def range_of(number: int) -> Range:
    return Range(first=number, last=number)


async def test_nothing_goes_far_ahead_of_what_one_bridge_holds_back(client: Confirming) -> None:
    """Every other message hangs in a bridge: a scheduler could not remember all those holes."""
    outbox = Outbox(cast("Client", client), 10, SystemClock())
    call = asyncio.create_task(outbox.send(batch(*((1, n) for n in range(100)))))
    await asyncio.sleep(0)
    for number in range(1, 100, 2):
        outbox.confirm(1, [range_of(number)])
    assert client.sent == [(1, n) for n in range(10)]
    outbox.confirm(1, [range_of(0)])
    assert client.sent[-1] == (1, 11)  # as far from the oldest, number 2, as the window is wide
    for _ in range(100):
        outbox.confirm(1, [Range(first=0, last=99)])
    await call


async def test_a_boot_waits_until_the_one_before_is_stored(client: Confirming) -> None:
    """Of a source, the scheduler remembers two boots; a third would make the first one's old."""
    outbox = Outbox(cast("Client", client), 10, SystemClock())
    waiting: Any = batch((1, 0), (2, 0), (3, 0))
    call = asyncio.create_task(outbox.send([waiting[0], (None, waiting[0][1]), *waiting[1:]]))
    await asyncio.sleep(0)
    assert set(client.sent) == {(1, 0)}  # and the letter, which carries the same bytes
    outbox.confirm(1, [range_of(0)])
    assert client.sent[-1] == (2, 0)
    outbox.confirm(2, [range_of(0)])
    outbox.confirm(3, [range_of(0)])
    await call


async def test_while_no_bridge_hears_one_message_asks_for_all(client: Confirming) -> None:
    clock = PacedClock(0.0, None)
    outbox, every = Outbox(cast("Client", client), 10, clock), [(1, n) for n in range(10)]
    client.heard = False

    async def send() -> None:
        clock.enter()
        try:
            await outbox.send(batch(*every))
        finally:
            clock.leave()

    call = asyncio.create_task(send())
    await asyncio.sleep(0)
    await clock.run_until(6.5)
    assert client.sent[:10] == every
    assert set(client.sent[10:]) == {(1, 0)}
    assert 4 <= len(client.sent[10:]) <= 6
    client.heard, before = True, len(client.sent)
    await clock.run_until(8.5)
    assert sorted(client.sent[before:]) == every
    outbox.confirm(1, [Range(first=0, last=9)])
    await clock.run_until(9.0)
    await call
