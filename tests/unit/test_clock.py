"""Real time, and simulated time that moves only while everybody waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from bus.clock import Clock, PacedClock, SystemClock
from bus.steady import Steady
from tests.patience import PATIENCE_S, take_part


async def test_time_stands_still_while_someone_works() -> None:
    clock = PacedClock(0.0, None)
    seen: list[tuple[str, float]] = []

    async def worker() -> None:
        await clock.sleep_until(10.0)
        await asyncio.sleep(0.02)  # waits, but not through the clock: storage, say
        seen.append(("worker", clock.now_s()))

    async def sleeper() -> None:
        await clock.sleep_until(11.0)
        seen.append(("sleeper", clock.now_s()))

    await take_part(clock, worker, sleeper)
    assert seen == [("worker", 10.0), ("sleeper", 11.0)]
    assert clock.now_s() == 100.0


async def test_unpaced_time_jumps() -> None:
    clock = PacedClock(0.0, None)
    async with asyncio.timeout(PATIENCE_S):
        await clock.run_until(1e9)
    assert clock.now_s() == 1e9


async def test_paced_time_is_no_faster_than_its_pace() -> None:
    clock = PacedClock(0.0, pace=1000.0)

    async def ticker() -> None:
        for moment_s in range(1, 100):
            await clock.sleep_until(moment_s)

    began_s = time.monotonic()
    await take_part(clock, ticker)
    assert time.monotonic() - began_s >= 0.1


async def test_time_spent_before_running_is_not_made_up_for() -> None:
    clock = PacedClock(0.0, pace=1000.0)
    await asyncio.sleep(0.1)
    began_s = time.monotonic()
    await clock.run_until(50.0)
    assert time.monotonic() - began_s >= 0.05


async def test_someone_roused_from_outside_is_not_slept_past() -> None:
    clock = PacedClock(0.0, pace=200.0)
    waiter = clock.waiter()
    seen: list[float] = []

    async def service() -> None:
        assert await waiter.wait()
        await clock.sleep_until(clock.now_s() + 1.0)  # sooner than what the clock slept for
        seen.append(clock.now_s())

    asyncio.get_running_loop().call_later(0.05, waiter.notify)
    await take_part(clock, service)
    assert seen == [1.0]


async def test_run_ends_only_when_those_due_then_have_worked() -> None:
    clock = PacedClock(0.0, None)
    done: list[float] = []

    async def service() -> None:
        await clock.sleep_until(100.0)
        await asyncio.sleep(0.01)
        done.append(clock.now_s())

    await take_part(clock, service)
    assert done == [100.0]


async def test_wake_order_is_by_moment_then_by_who_waited_first() -> None:
    async def once() -> list[str]:
        clock = PacedClock(0.0, None)
        order: list[str] = []

        def sleeper(name: str, *moments_s: float) -> Callable[[], Awaitable[None]]:
            async def part() -> None:
                for moment_s in moments_s:
                    await clock.sleep_until(moment_s)
                    order.append(f"{name}{moment_s:g}")

            return part

        await take_part(clock, sleeper("a", 2, 5), sleeper("b", 1, 5), sleeper("c", 5))
        return order

    assert await once() == ["b1", "a2", "c5", "b5", "a5"]
    assert await once() == await once()


@pytest.mark.parametrize("clock", [SystemClock(), PacedClock(0.0, None)], ids=["system", "paced"])
async def test_notify_before_the_wait_is_remembered_once(clock: Clock) -> None:
    waiter = clock.waiter()
    waiter.notify()
    waiter.notify()
    assert await waiter.wait(clock.now_s() + 60.0)
    assert not await waiter.wait(clock.now_s())


async def test_notify_just_after_time_is_up_is_not_lost() -> None:
    clock = PacedClock(0.0, None)
    waiter = clock.waiter()
    seen: list[bool] = []

    async def early() -> None:
        await clock.sleep_until(5.0)
        waiter.notify()  # the reader's time is up too, but it has not run yet

    async def reader() -> None:
        seen.append(await waiter.wait(5.0))
        seen.append(await waiter.wait(6.0))

    await take_part(clock, early, reader)
    assert seen == [False, True]


async def test_notified_counts_as_busy_before_it_runs() -> None:
    clock = PacedClock(0.0, None)
    waiter = clock.waiter()
    woken: list[float] = []

    async def reader() -> None:
        while True:
            await waiter.wait()
            await asyncio.sleep(0)
            woken.append(clock.now_s())

    async def writer() -> None:
        for moment_s in (3.0, 4.0):
            await clock.sleep_until(moment_s)
            waiter.notify()

    await take_part(clock, reader, writer)
    assert woken == [3.0, 4.0]


@pytest.mark.parametrize("roused_first", [False, True])
async def test_cancelling_a_wait_keeps_the_count_right(roused_first: bool) -> None:
    clock = PacedClock(0.0, None)
    waiter = clock.waiter()
    moments: list[float] = []

    async def waiting() -> None:
        try:
            await waiter.wait(50.0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # still busy: time must not move
            moments.append(clock.now_s())
            await clock.sleep_until(20.0)
            moments.append(clock.now_s())
            raise

    async def canceller() -> None:
        inner = asyncio.create_task(waiting_service())
        await clock.sleep_until(10.0)
        if roused_first:
            waiter.notify()
        inner.cancel()
        await clock.sleep_until(30.0)
        moments.append(clock.now_s())

    async def waiting_service() -> None:
        clock.enter()
        try:
            await waiting()
        finally:
            clock.leave()

    await take_part(clock, canceller)
    assert moments == [10.0, 20.0, 30.0]
    assert clock.now_s() == 100.0


async def test_many_renewed_waits_leave_nothing_behind() -> None:
    clock = PacedClock(0.0, None)
    waiter = clock.waiter()
    rounds = 0

    async def reader() -> None:
        nonlocal rounds
        for _ in range(5000):
            await waiter.wait(99.0)
            rounds += 1

    async def writer() -> None:
        for _ in range(5000):
            waiter.notify()
            await asyncio.sleep(0)

    await take_part(clock, reader, writer)
    assert rounds > 4000
    assert len(clock._due) <= 1000


async def test_system_clock_is_the_time_and_waits() -> None:
    clock = SystemClock()
    before_s = time.time()
    assert before_s <= clock.now_s() <= time.time()
    await clock.sleep_until(before_s + 0.03)
    assert time.time() >= before_s + 0.03
    await clock.sleep_until(0.0)


async def test_system_waiter_waits_for_notice_or_time() -> None:
    clock = SystemClock()
    waiter = clock.waiter()
    began_s = clock.now_s()
    assert not await waiter.wait(began_s + 0.03)
    assert clock.now_s() >= began_s + 0.03
    asyncio.get_running_loop().call_later(0.01, waiter.notify)
    assert await waiter.wait()


async def test_who_has_waited_does_not_wait_again_when_the_clock_is_set_back() -> None:
    loop, set_s = asyncio.get_running_loop(), 0.0
    clock = SystemClock(Steady(lambda: loop.time() + set_s, loop.time, settle_s=0.0))
    until_s = clock.now_s() + 0.05
    waits = [
        asyncio.create_task(clock.sleep_until(until_s)),
        asyncio.create_task(clock.waiter().wait(until_s)),
    ]
    await asyncio.sleep(0.01)
    set_s = -86_400.0
    clock.now_s()
    assert clock.now_s() < until_s - 80_000.0
    done, _ = await asyncio.wait(waits, timeout=PATIENCE_S)
    assert len(done) == 2
