"""The bridge's way up: stored, then confirmed, then acknowledged; in order, and never lost."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bus.allowance import Allowance
from bus.bridge import Bridge
from bus.bridge_limits import BridgeLimits
from bus.contract import Bus, BusError
from bus.wire import Incoming, Wire
from schemas.horizon import RANGES_MAX
from schemas.topics import COMMANDS, EVENTS, TELEMETRY
from tests.patience import PATIENCE_S, until
from tests.post import Post, ShakyBus, measured, post, progressed, records

__all__ = ["post"]  # the fixture


async def values(bus: Bus, topic: str) -> list[bytes | None]:
    return [record.value for record in await records(bus, topic)]


async def test_bytes_and_headers_pass_unchanged(post: Post) -> None:
    # Not as our own encoder would write it: unknown fields, spaces, another order.
    value = b'{ "unknown": [1.50, "\\u00e9"],' + progressed(3)[1:]
    headers = {"sig": "c2ln", "kid": "k1", "note": "é"}
    async with post.bridged() as made:
        post.deliver("tidegate/v1/n0/up/event", value, headers)
        post.say("n0", "telemetry", measured(4))
        post.deliver("tidegate/v1/n0/up/dlq", b"\xff not read", headers)
        await until(lambda: len(post.acked) == 3)
    (event,) = await records(post.bus, EVENTS.name)
    (telemetry,) = await records(post.bus, TELEMETRY.name)
    (letter,) = await records(post.bus, f"{COMMANDS.name}.dlq")
    assert (event.key, event.value, event.headers) == ("default", value, headers)
    assert (telemetry.key, telemetry.value, telemetry.headers) == ("n0", measured(4), {})
    assert (letter.key, letter.value, letter.headers) == ("n0", b"\xff not read", headers)
    assert post.stored("n0") == [3, 4]  # nobody waits to hear of the dead letter
    counters = made.counters
    assert (counters.forwarded_up, counters.dead_letters, counters.horizons) == (2, 1, 1)
    assert (made.unacked, made.oldest_unacked_s(), dict(counters.refused)) == (0, 0.0, {})


async def test_nothing_is_answered_before_it_is_stored_nor_lost_when_a_bridge_dies(
    post: Post,
) -> None:
    stored = asyncio.Event()

    class Dying(ShakyBus):
        async def append(self, *args: Any) -> None:
            await post.bus.append(*args)
            stored.set()
            await asyncio.Event().wait()  # Kafka has it, but the bridge does not live to hear it

    dying = post.bridge({"default": Dying(post.clock)})
    run = asyncio.create_task(dying.run())
    for sequence in range(5):
        post.say("n0", "event", progressed(sequence))
    await stored.wait()
    assert (post.acked, post.stored("n0"), dying.unacked) == ([], [], 5)
    run.cancel()
    await asyncio.wait([run])
    async with post.bridged():
        await until(lambda: len(post.acked) == 5)
    assert await values(post.bus, EVENTS.name) == [progressed(n) for n in range(5)] * 2
    assert post.stored("n0") == [0, 1, 2, 3, 4]


async def test_while_kafka_fails_all_is_kept_and_nothing_is_answered(post: Post) -> None:
    post.bus.down = True
    async with post.bridged(batch_max=10) as made:
        for sequence in range(35):
            post.say("n0", "event", progressed(sequence))
            await asyncio.sleep(0)
        await until(lambda: made.counters.retries >= 3)
        post.clock.ahead_s += 7.0
        assert (post.acked, post.sent, made.unacked) == ([], [], 35)
        assert made.oldest_unacked_s() >= 7.0
        assert "no broker answers" in made.problem
        post.bus.down = False
        await until(lambda: len(post.acked) == 35)
        assert made.problem == ""
    assert await values(post.bus, EVENTS.name) == [progressed(n) for n in range(35)]
    assert post.stored("n0") == list(range(35))


async def test_one_cell_failing_is_tried_again_alone(post: Post) -> None:
    east = ShakyBus(post.clock)
    east.down = True
    async with post.bridged({"default": post.bus, "east": east}) as made:
        post.say("n0", "event", progressed(0))
        post.say("n1", "event", progressed(0, "n1", cell="east"))
        post.say("n0", "event", progressed(1))
        await until(lambda: made.counters.retries >= 2)
        await until(lambda: post.stored("n0") == [0, 1])
        assert len(post.acked) == 1, "the broker is answered in the order of arrival"
        east.down = False
        await until(lambda: len(post.acked) == 3)
    assert await values(post.bus, EVENTS.name) == [progressed(0), progressed(1)]
    assert [record.key for record in await records(east, EVENTS.name)] == ["east"]


class Mute(ShakyBus):
    """Takes a message and says nothing until it is let."""

    let = asyncio.Event()

    async def append(self, *args: Any) -> None:
        await self.let.wait()
        await super().append(*args)


@pytest.mark.parametrize("kind", [ShakyBus, Mute])
async def test_a_sick_cell_keeps_no_other_waiting(post: Post, kind: type[ShakyBus]) -> None:
    """What is meant for it is answered and not confirmed, so that its agents send it again."""
    east = kind(post.clock)
    east.down, Mute.let = kind is ShakyBus, asyncio.Event()
    buses = {"default": post.bus, "east": east}
    async with post.bridged(buses, stuck_s=0.2, in_flight_max=40, batch_max=10) as made:
        for sequence in range(30):
            post.say("n1", "event", progressed(sequence, "n1", cell="east"))
        for sequence in range(5):
            post.say("n0", "event", progressed(sequence))
        await until(lambda: post.stored("n0") == [0, 1, 2, 3, 4])
        await until(lambda: len(post.acked) == 35)
        for sequence in range(5, 50):
            post.say("n1", "event", progressed(30 + sequence, "n1", cell="east"))
            post.say("n0", "event", progressed(sequence))
            await asyncio.sleep(0)
        await until(lambda: len(post.acked) == 35 + 90)
        assert post.stored("n0") == list(range(50))
        assert (post.stored("n1"), made.counters.refused["stuck"]) == ([], 75)
        assert "cell east" in made.problem
        east.down = False
        Mute.let.set()
        await until(lambda: made.problem == "")
        post.say("n1", "event", progressed(10, "n1", cell="east"))
        await until(lambda: 10 in post.stored("n1"))
    assert made.unacked == 0


async def test_a_thousand_bad_ones_do_not_delay_good_ones(post: Post) -> None:
    post.clock.stand_still()  # else more letters are allowed while a busy machine gets through them
    async with post.bridged(in_flight_max=3000) as made:
        for number in range(1000):
            post.say("bad", "event", b"{nonsense %d" % number)
            if number % 100 == 0:
                post.say("n0", "event", progressed(number // 100))
        await until(lambda: len(post.acked) == 1010)
    assert await values(post.bus, EVENTS.name) == [progressed(n) for n in range(10)]
    assert post.stored("n0") == list(range(10))
    assert post.bus.asked <= 5  # together with the good ones, not one by one
    # Few are kept, the rest are counted; the bytes are theirs and the reason is said.
    letters = await records(post.bus, f"{EVENTS.name}.dlq")
    assert len(letters) == made.counters.dead_letters == 10
    assert made.counters.refused == {"malformed": 1000}
    (refusal,) = made.refused
    assert (refusal.node, refusal.dead_letter_in) == ("bad", f"{EVENTS.name}.dlq")
    assert "is not JSON" in refusal.reason
    assert letters[3].value == b"{nonsense 3"
    assert letters[3].key == "bad"
    assert letters[3].headers["dlq_origin_address"] == "tidegate/v1/bad/up/event"
    assert "is not JSON" in letters[3].headers["dlq_error"]


async def test_an_agent_need_not_repeat_what_is_stored_as_a_dead_letter(post: Post) -> None:
    """Else an agent newer than the bridge would say it for ever; what is not stored comes again."""
    post.clock.stand_still()
    async with post.bridged(letters_per_s=3.0) as made:
        for sequence in range(5):
            newer = progressed(sequence).replace(b"progressed.v1", b"progressed.v9")
            post.say("n0", "event", newer)
        post.say("n1", "event", progressed(0, "n0"))
        await until(lambda: len(post.acked) == 6)
    assert (post.stored("n0"), post.stored("n1")) == ([0, 1, 2], [])
    assert made.counters.refused == {"newer_version": 5, "source": 1}
    assert len(await records(post.bus, f"{EVENTS.name}.dlq")) == made.counters.dead_letters == 4


async def test_horizons_name_exactly_what_each_bridge_stored(post: Post) -> None:
    mine, other = ShakyBus(post.clock), ShakyBus(post.clock)
    async with (
        post.bridged({"default": mine}),
        post.bridged({"default": other}, name="b1"),
    ):
        other.down = True
        for sequence in range(9):  # in turn to the one and to the other
            post.say("n0", "event", progressed(sequence))
            post.say("n0", "event", progressed(sequence + 100, boot=2))
            post.say("n0", "event", progressed(sequence + 200))
        await until(lambda: len(post.acked) == 14)
        stored = {n: post.stored("n0", n) for n in (1, 2)}
        held = await values(mine, EVENTS.name)
        assert all((progressed(n) in held) == (n in stored[1]) for n in range(300))
        assert all((progressed(n, boot=2) in held) == (n in stored[2]) for n in range(200))
        other.down = False
        await until(lambda: len(post.acked) == 27)
    assert sorted(post.stored("n0")) == [*range(9), *range(200, 209)]
    assert sorted(post.stored("n0", 2)) == list(range(100, 109))


async def test_many_pieces_take_several_horizons_and_neighbours_one_range(post: Post) -> None:
    numbers = [*range(0, 2 * 300, 2), 601, 600, 602, 601]
    async with post.bridged():
        for number in numbers:
            post.say("n0", "event", progressed(number))
        await until(lambda: len(post.acked) == len(numbers))
    assert [len(horizon.stored) for horizon in post.horizons("n0")] == [RANGES_MAX, 300 - 255]
    assert post.stored("n0") == [*range(0, 600, 2), 600, 601, 602]


async def test_a_horizon_that_cannot_be_sent_holds_up_nothing(post: Post) -> None:
    post.working = 0
    async with post.bridged() as made:
        post.say("n0", "event", progressed(0))
        await until(lambda: len(post.acked) == 1)
    assert made.counters.horizons == 0
    assert await values(post.bus, EVENTS.name) == [progressed(0)]


async def test_horizons_wait_for_a_connection_that_is_not_ready_yet(post: Post) -> None:
    """What the broker kept for us comes before we may publish."""
    async with post.bridged(retry_s=1.0) as made:
        post.say("n0", "event", progressed(0))
        post.wires[0].connected = False
        await until(lambda: post.bus.asked == 1)
        await asyncio.sleep(0.05)
        assert (made.counters.horizons, len(post.acked)) == (0, 0)
        post.wires[0].connected = True
        await until(lambda: len(post.acked) == 1)
        assert post.stored("n0") == [0]
        post.say("n0", "event", progressed(1))
        post.wires[0].connected = False
        await until(lambda: made.unacked == 0)  # a lost one is not waited for
        post.wires[0].connected = True
    assert (post.stored("n0"), made.counters.forwarded_up) == ([0], 2)


async def test_a_node_over_its_rate_is_heard_again_later(post: Post) -> None:
    post.clock.stand_still()
    async with post.bridged(rate_per_s=5.0, burst=10.0) as made:
        for sequence in range(30):
            post.say("flood", "event", progressed(sequence, "flood"))
        post.say("calm", "event", progressed(0, "calm"))
        await until(lambda: len(post.acked) == 31)
        assert made.counters.refused == {"rate": 20}
        assert [(one.node, one.kind) for one in made.refused] == [("flood", "rate")]
        # What is not stored is not named, so the agent sends it again, and it passes then.
        assert (post.stored("flood"), post.stored("calm")) == (list(range(10)), [0])
        post.clock.ahead_s += 2.1
        for sequence in range(10, 30):
            post.say("flood", "event", progressed(sequence, "flood"))
        await until(lambda: len(post.acked) == 51)
        assert post.stored("flood") == list(range(20))


def test_allowance_counts_bytes_shuts_for_a_while_and_forgets_the_idle() -> None:
    limits = BridgeLimits(
        rate_per_s=4.0, burst=8.0, bytes_per_s=1000.0, bytes_burst=600_000.0, nodes_max=3
    )
    allowance = Allowance(limits.rates())
    assert allowance.take("big", 500_000, 0.0)
    assert not allowance.take("big", 200_000, 0.0)
    assert allowance.take("big", 90_000, 1.0)
    assert [allowance.take("n", 1, 0.0) for _ in range(10)] == [True] * 8 + [False] * 2
    # One gap, not one after each message that the rate allows.
    assert not allowance.take("n", 1, 0.5)
    assert [allowance.take("n", 1, 1.0) for _ in range(5)] == [True] * 4 + [False]
    assert not allowance.take("n", 1, 0.2)  # a clock that went back gives nothing
    for number in range(1000):
        allowance.take(f"made-up-{number}", 1, 2.0)
    assert len(allowance) == 3


async def test_stop_finishes_what_came_and_leaves_the_rest(post: Post) -> None:
    made = post.bridge(batch_max=2)
    for sequence in range(7):
        post.say("n0", "event", progressed(sequence))
    run = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    made.stop()
    late = post.say("n0", "event", progressed(7))
    async with asyncio.timeout(PATIENCE_S):
        await run
    assert await values(post.bus, EVENTS.name) == [progressed(n) for n in range(7)]
    assert (len(post.acked), post.stored("n0")) == (7, list(range(7)))
    assert post.wires[0].unacked == [late]
    assert made.problem == "there is no connection to the MQTT broker; trying again"


async def test_stop_does_not_wait_for_a_kafka_that_is_down(post: Post) -> None:
    post.bus.down = True
    made = post.bridge(retry_s=60.0)
    run = asyncio.create_task(made.run())
    post.say("n0", "event", progressed(0))
    await until(lambda: made.counters.retries == 1)
    made.stop()
    async with asyncio.timeout(PATIENCE_S):
        await run
    assert (len(post.acked), len(post.wires[0].unacked)) == (0, 1)


async def test_a_stop_before_the_start_counts(post: Post) -> None:
    made = post.bridge()
    post.say("n0", "event", progressed(0))
    made.stop()
    async with asyncio.timeout(PATIENCE_S):
        await made.run(cells=["default"])
    assert len(post.acked) == 1


async def test_a_broker_that_sends_too_much_has_to_wait(post: Post) -> None:
    post.bus.down = True
    async with post.bridged(in_flight_max=20, batch_max=8) as made:
        for sequence in range(13):
            post.say("n0", "event", progressed(sequence))
            if sequence == 0:
                await until(lambda: made.counters.retries > 0)  # the first is being stored
        assert post.wires[0].held
        post.bus.down = False
        await until(lambda: len(post.acked) == 13)
        assert not post.wires[0].held
        assert made.counters.overflowed == 0


async def test_a_flood_that_nobody_answers_pushes_out_no_messages_of_others(post: Post) -> None:
    """Of quality 0 the broker sends as much as comes, whatever is unanswered."""
    post.bus.down = True
    flood = Incoming("tidegate/v1/flood/up/event", progressed(0, "flood"), token=(0, 0, 0))
    async with post.bridged(in_flight_max=20, batch_max=8, burst=6.0) as made:
        for sequence in range(5):
            post.say("n0", "event", progressed(sequence))
            await until(lambda: made.counters.retries > 0)
        for _ in range(200):
            post.wires[0].hear(flood)
        assert made.unacked <= 20
        post.bus.down = False
        await until(lambda: len(post.stored("n0")) == 5)
        assert (len(post.acked), made.counters.overflowed) == (5, 0)
        post.wires[0].hear(flood)
        await until(lambda: made.counters.forwarded_up == 5 + 6)
    assert post.wires[0].unacked == []


async def test_lost_connections_do_not_fill_the_memory(post: Post) -> None:
    post.bus.down = True
    async with post.bridged(in_flight_max=20, batch_max=8) as made:
        for sequence in range(10):
            post.say("n0", "event", progressed(sequence))
        for _ in range(5):  # each time, the broker gives all of them again
            await until(lambda: made.counters.retries > 0)
            post.redeliver(post.wires[0])
            assert made.unacked <= 20
        assert made.counters.overflowed == 40
        post.bus.down = False
        await until(lambda: len(post.acked) == 10)
    held = await values(post.bus, EVENTS.name)
    assert held[-10:] == [progressed(n) for n in range(10)]


async def test_what_waits_for_its_turn_to_be_answered_does_not_fill_the_memory(post: Post) -> None:
    """One cell is silent, though not for long; what the other has stored waits behind it."""
    east = Mute(post.clock)
    Mute.let = asyncio.Event()
    buses = {"default": post.bus, "east": east}
    async with post.bridged(buses, in_flight_max=20, batch_max=8) as made:
        post.say("n1", "event", progressed(0, "n1", cell="east"))
        try:
            for sequence in range(40):
                post.say("n0", "event", progressed(sequence))
                await until(lambda: len(post.stored("n0")) > sequence)  # noqa: B023
                assert made.unacked <= 20
            assert (made.counters.overflowed, post.acked) == (21, [])
            assert post.stored("n0") == list(range(40))
        finally:
            post.wires[0].connected = False  # all of it comes again with the next
            Mute.let.set()


def test_bridges_of_another_group_share_nothing_with_these(post: Post) -> None:
    heard: list[str] = []

    def wire(subscriptions: Sequence[str], hear: Callable[[Incoming], None]) -> Wire:
        heard.extend(subscriptions)
        return post.connect(["$share/bridge/tidegate/v1/+/up/+"], hear)

    Bridge(name="b", wire=wire, buses={"default": post.bus}, clock=post.clock, group="hidden-7")
    assert heard == ["$share/hidden-7/tidegate/v1/+/up/+"]


def test_limits_and_bridges_that_make_no_sense_are_refused(post: Post) -> None:
    with pytest.raises(ValueError, match="rate_per_s"):
        BridgeLimits(rate_per_s=0.0)
    with pytest.raises(ValueError, match="batch_max: must be below in_flight_max, 100"):
        BridgeLimits(in_flight_max=100)
    with pytest.raises(ValueError, match="bytes_burst"):
        BridgeLimits(bytes_burst=1000.0)
    with pytest.raises(BusError, match="without cells"):
        post.bridge({})
    with pytest.raises(BusError, match="'west' is not among"):
        post.bridge().down("west")
