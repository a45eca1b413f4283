"""Time, and waiting: with `bus.steady`, the single place that reads a real clock.

`SystemClock` is real time. `PacedClock` is simulated time that stands still while any service
works and jumps to the next thing due when all of them wait, no faster than a given pace; so a
simulated day takes as long as asked, and a slow machine makes it longer, never wrong.
Services wait only through the clock: `sleep_until`, a `Waiter` that somebody notifies, or others
that they let run `side_by_side`.
"""

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import Coroutine, Sequence
from typing import Protocol

from bus.steady import MACHINE, STEP_S, Steady


class Waiter(Protocol):
    """Something to wait on, one at a time. Notifying before the wait makes it return at once."""

    def notify(self) -> None:
        """Wake the wait, or the next one. From the event loop's thread only."""
        ...

    async def wait(self, until_s: float | None = None) -> bool:
        """Wait until notified (True) or until the moment `until_s` of the clock (False)."""
        ...


class Clock(Protocol):
    """Where time comes from."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def latest_s(self) -> float:
        """Give the latest that it may be: the machine's clock may be ahead, and be right."""
        ...

    def waiter(self) -> Waiter:
        """Make a waiter."""
        ...

    async def sleep_until(self, moment_s: float) -> None:
        """Return at the moment, or at once if it is past."""
        ...

    def enter(self) -> None:
        """Take part: simulated time stands still until the caller waits."""
        ...

    def leave(self) -> None:
        """Take part no longer."""
        ...


async def side_by_side(clock: Clock, parts: Sequence[Coroutine[None, None, None]]) -> None:
    """Run the parts of a participant at once, each a participant; return when all have ended."""
    left = len(parts)

    async def one(part: Coroutine[None, None, None]) -> None:
        nonlocal left
        try:
            await part
        finally:
            left -= 1
            if left:
                clock.leave()  # the last one stays for the caller, who has left to the first

    for _ in parts[1:]:
        clock.enter()
    await asyncio.gather(*map(one, parts))


class _SystemWaiter:
    def __init__(self, clock: "SystemClock") -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()

    async def wait(self, until_s: float | None = None) -> bool:
        left_s = None if until_s is None else until_s - self._clock.now_s()
        while not self._event.is_set():
            if left_s is not None and left_s <= 0.0:
                return False
            try:
                async with asyncio.timeout(left_s):
                    await self._event.wait()
            except TimeoutError:
                left_s = self._clock.left_s(until_s)
        self._event.clear()
        return True


class SystemClock:
    """Real time, as the machine's clock says; a step counts once it has lasted (`bus.steady`)."""

    def __init__(self, machine: Steady = MACHINE) -> None:
        """Go by the time of this machine."""
        self._machine = machine

    def now_s(self) -> float:
        """Seconds since the Unix epoch."""
        return self._machine.now_s()

    def latest_s(self) -> float:
        """Give the latest that it may be: a step may have been right, and not have lasted yet."""
        return self._machine.now_s() + max(0.0, self._machine.off_s())

    def waiter(self) -> Waiter:
        """Make a waiter."""
        return _SystemWaiter(self)

    async def sleep_until(self, moment_s: float) -> None:
        """Return at the moment, or at once if it is past."""
        left_s = moment_s - self.now_s()
        while left_s > 0.0:
            await asyncio.sleep(left_s)
            left_s = self.left_s(moment_s)

    def left_s(self, moment_s: float | None) -> float:
        """Say how much longer to wait after a wait for a moment, in seconds.

        The loop's own clock may be a little ahead; but who has waited does not wait again because
        the machine's clock was set back.
        """
        left_s = 0.0 if moment_s is None else moment_s - self.now_s()
        return left_s if left_s < STEP_S else 0.0

    def enter(self) -> None:
        """Do nothing: real time stands still for nobody."""

    def leave(self) -> None:
        """Do nothing."""


class _PacedWaiter:
    def __init__(self, clock: "PacedClock") -> None:
        self._clock = clock
        self._notified = False
        self._future: asyncio.Future[bool] | None = None

    def notify(self) -> None:
        future = self._future
        if future is not None and not future.done():
            self._clock.rouse(future, True)
        elif future is None or future.cancelled() or not future.result():
            # Nobody waits, or whoever did is about to learn that its time is up.
            self._notified = True

    async def wait(self, until_s: float | None = None) -> bool:
        if self._notified:
            self._notified = False
            return True
        if until_s is not None and until_s <= self._clock.now_s():
            return False
        self._future = asyncio.get_running_loop().create_future()
        try:
            return await self._clock.rest(self._future, until_s)
        finally:
            self._future = None


class PacedClock:
    """Simulated time: it moves only while every participant waits.

    A service takes part between `enter` and `leave`. It counts as waiting only inside
    `sleep_until` or `Waiter.wait`; whatever else it awaits (storage, say) holds time still.
    """

    def __init__(self, start_s: float, pace: float | None) -> None:
        """Begin at `start_s`; `pace` is simulated seconds per real second, None for no limit."""
        self._now_s = start_s
        self._pace = pace
        self._busy = 0
        self._order = itertools.count()
        self._due: list[tuple[float, int, asyncio.Future[bool]]] = []
        self._sweep_at = 1000
        self._changed = asyncio.Event()

    def now_s(self) -> float:
        """Simulated seconds since the Unix epoch."""
        return self._now_s

    def latest_s(self) -> float:
        """Give the same: nobody sets it."""
        return self._now_s

    def waiter(self) -> Waiter:
        """Make a waiter."""
        return _PacedWaiter(self)

    def enter(self) -> None:
        """Take part: time stands still until the caller waits."""
        self._busy += 1

    def leave(self) -> None:
        """Take part no longer."""
        self._busy -= 1
        if not self._busy:
            self._changed.set()

    async def sleep_until(self, moment_s: float) -> None:
        """Return at the moment, or at once if it is past."""
        if moment_s > self._now_s:
            await self.rest(asyncio.get_running_loop().create_future(), moment_s)

    async def rest(self, future: "asyncio.Future[bool]", until_s: float | None) -> bool:
        """Count the caller as waiting until the future is roused or the moment comes."""
        if until_s is not None:
            heapq.heappush(self._due, (until_s, next(self._order), future))
            if len(self._due) > self._sweep_at:
                self._due = [due for due in self._due if not due[2].done()]
                heapq.heapify(self._due)
                self._sweep_at = max(1000, 2 * len(self._due))
        self.leave()
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._busy += 1
            raise

    def rouse(self, future: "asyncio.Future[bool]", value: bool) -> None:
        """Wake a waiting caller; it counts as busy from this moment, before it runs."""
        if not future.done():
            self._busy += 1
            future.set_result(value)

    async def run_until(self, end_s: float) -> None:
        """Move time until `end_s`, waking whoever is due; return when all of them wait again."""
        began_s, started_s = time.monotonic(), self._now_s
        await self._all_wait()
        while self._now_s < end_s:
            while self._due and self._due[0][2].done():
                heapq.heappop(self._due)
            target_s = min(end_s, self._due[0][0]) if self._due else end_s
            ahead_s = 0.0 if self._pace is None else (target_s - started_s) / self._pace
            if await self._disturbed(began_s + ahead_s - time.monotonic()):
                await self._all_wait()
                continue  # something nearer may be due by now
            self._now_s = max(self._now_s, target_s)
            while self._due and self._due[0][0] <= self._now_s:
                self.rouse(heapq.heappop(self._due)[2], False)
            await self._all_wait()

    async def _all_wait(self) -> None:
        while self._busy > 0:
            self._changed.clear()
            await self._changed.wait()

    async def _disturbed(self, delay_s: float) -> bool:
        """Let real time pass; True at once if somebody outside roused a service meanwhile."""
        self._changed.clear()
        if delay_s <= 0.0:
            await asyncio.sleep(0)
        else:
            # It leaves its wait busy and sets `_changed` when it waits again.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._changed.wait()
        return self._busy > 0 or self._changed.is_set()
