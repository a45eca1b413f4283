"""The faults of the bus in memory: each really happens, and the same way for a seed."""

import pytest

from bus.clock import PacedClock
from bus.contract import Message
from schemas.topics import EVENTS, JOURNAL
from tests.memory_bus import MemoryBus
from tests.message_faults import Faults
from tests.patience import take_part

KEYS = 4
EACH = 50


async def arrivals(
    faults: Faults, topic: str = EVENTS.name, together: bool = True
) -> list[tuple[str, int, float]]:
    """Publish numbered messages of several keys; give (key, number, seconds after start)."""
    clock = PacedClock(0.0, None)
    bus = MemoryBus(clock, faults)
    seen: list[tuple[str, int, float]] = []

    async def reader() -> None:
        consumer = await bus.consumer("g", [topic])
        while clock.now_s() < 90.0:
            for record in await consumer.poll(timeout_s=100.0 - clock.now_s()):
                assert record.value is not None
                assert record.time_s == clock.now_s()
                seen.append((record.key, int(record.value), record.time_s))

    async def writer() -> None:
        for number in range(EACH):
            for key in range(KEYS):
                if not together:
                    await clock.sleep_until(clock.now_s() + 0.125)
                await bus.publish(Message(topic, f"k{key}", str(number).encode()))

    await take_part(clock, reader, writer, until_s=101.0)
    return seen


def order_within_keys(seen: list[tuple[str, int, float]]) -> bool:
    return all(
        (numbers := [n for k, n, _ in seen if k == f"k{key}"]) == sorted(numbers)
        for key in range(KEYS)
    )


SENT = [(f"k{key}", number, 0.0) for number in range(EACH) for key in range(KEYS)]


async def test_no_faults_no_harm() -> None:
    assert await arrivals(Faults(seed=3)) == SENT


async def test_loss() -> None:
    seen = await arrivals(Faults(loss=0.2))
    assert 0.65 * len(SENT) < len(seen) < 0.95 * len(SENT)
    assert [one for one in SENT if one in seen] == seen
    assert await arrivals(Faults(loss=1.0)) == []


async def test_duplication() -> None:
    seen = await arrivals(Faults(duplication=0.2))
    assert len(set(seen)) == len(SENT)
    assert 1.05 * len(SENT) < len(seen) < 1.35 * len(SENT)
    assert order_within_keys(seen)


async def test_delay_holds_back_and_keeps_order_within_keys() -> None:
    seen = await arrivals(Faults(delay=0.3, delay_s=4.0))
    late = [time_s for _, _, time_s in seen]
    assert sorted((k, n) for k, n, _ in seen) == sorted((k, n) for k, n, _ in SENT)
    assert late == sorted(late)
    assert 2.0 < max(late) <= 4.0
    assert min(late) == 0.0
    assert order_within_keys(seen)


async def test_delay_within_keys_breaks_their_order_when_asked() -> None:
    assert not order_within_keys(await arrivals(Faults(delay=0.3, within_keys=True)))


@pytest.mark.parametrize("within_keys", [False, True])
async def test_reordering(within_keys: bool) -> None:
    faults = Faults(reordering=0.2, delay_s=5.0, within_keys=within_keys)
    seen = await arrivals(faults, together=False)
    pairs = [(k, n) for k, n, _ in seen]
    assert sorted(pairs) == sorted((k, n) for k, n, _ in SENT)
    assert pairs != [(k, n) for k, n, _ in SENT]
    assert order_within_keys(seen) is not within_keys or within_keys
    # Overtaken by the next one of another key, not held for the whole delay.
    sent_s = {(k, n): 0.125 * place for place, (k, n, _) in enumerate(SENT, start=1)}
    assert max(t - sent_s[k, n] for k, n, t in seen if n < EACH - 5) < 1.0


async def test_message_that_nothing_overtakes_comes_after_the_delay() -> None:
    clock = PacedClock(0.0, None)
    bus = MemoryBus(clock, Faults(reordering=1.0, delay_s=5.0))
    await bus.publish(Message(EVENTS.name, "k", b"0"))
    assert await bus.end(EVENTS.name) == 0
    await clock.run_until(5.0)
    assert await bus.end(EVENTS.name) == 1


async def test_drain_hurries_what_is_delayed() -> None:
    bus = MemoryBus(PacedClock(0.0, None), Faults(delay=1.0))
    for number in range(5):
        await bus.publish(Message(EVENTS.name, "k", str(number).encode()))
    assert await bus.end(EVENTS.name) == 0
    await bus.drain()
    assert [r.value async for r in bus.read(EVENTS.name)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_topics_that_cross_no_network_are_spared() -> None:
    all_faults = Faults(loss=1.0)
    assert await arrivals(all_faults, JOURNAL.name) == SENT
    assert await arrivals(Faults(loss=1.0, topics=(JOURNAL.name,)), JOURNAL.name) == []


async def test_seed_decides_everything() -> None:
    def faults(seed: int) -> Faults:
        return Faults(seed, loss=0.1, duplication=0.1, delay=0.3, reordering=0.1)

    assert await arrivals(faults(1)) == await arrivals(faults(1))
    assert await arrivals(faults(1)) != await arrivals(faults(2))


def test_fate_does_not_depend_on_what_else_is_sent() -> None:
    faults = Faults(7, loss=0.3, delay=0.5)
    assert [faults.fate(EVENTS.name, "k", n) for n in (4, 2)] == [
        faults.fate(EVENTS.name, "k", n) for n in (4, 2)
    ]
    assert len({faults.fate(EVENTS.name, key, 0) for key in "abcdefgh"}) > 2


def test_impossible_chances_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"loss is 1\.5"):
        Faults(loss=1.5)
    with pytest.raises(ValueError, match="delay_s is -1"):
        Faults(delay_s=-1.0)
