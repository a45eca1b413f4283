"""A process of the simulated system: its own clock, and how it stands still or ceases to be.

A process that is killed runs no further than its present wait: whatever it waits for, it never
comes back from there, as if its machine were gone. What it had written before stays.
"""

import asyncio
from collections.abc import Callable

from bus.clock import PacedClock, Waiter
from bus.steady import STEP_S, Steady


class Process:
    """One process. Moments are the world's, in seconds, unless they are `clock`'s."""

    def __init__(self, name: str, world: PacedClock) -> None:
        self.name, self.world = name, world
        self.clock = SkewedClock(self)
        self.alive = True
        #: Whether somebody will start another in its place.
        self.mourned = False
        self.paused_until_s = 0.0
        #: Whether it ends in good order: it hurries, and nothing holds it up.
        self.leaving = False
        #: Called when it dies in the middle of something, with itself.
        self.died: Callable[[Process], None] | None = None
        #: What its tasks wait for when it is dead; held, or Python would end them.
        self.graves: list[asyncio.Future[None]] = []
        #: Whoever ended there.
        self.buried: list[asyncio.Task[object] | None] = []

    def kill(self) -> None:
        """Run no further."""
        self.alive = False

    def pause(self, seconds: float) -> None:
        """Stand still from the present wait on."""
        self.paused_until_s = max(self.paused_until_s, self.world.now_s() + seconds)

    async def go_on(self) -> None:
        """Return at once if the process runs, later if it is paused, never if it is dead.

        The caller is busy by the world's clock.
        """
        while self.alive and self.world.now_s() < self.paused_until_s and not self.leaving:
            await self.world.sleep_until(self.paused_until_s)
        if not self.alive:
            self.world.leave()
            grave = asyncio.get_running_loop().create_future()
            self.graves.append(grave)
            self.buried.append(asyncio.current_task())
            await grave


class SkewedClock:
    """A process's clock, over a machine's that is ahead or behind, fast or slow, or stepped."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._at_s = self._shown_s = process.world.now_s()
        self._rate = 1.0
        self._machine = Steady(self._wall_s, process.world.now_s)
        self._looked_s = self._known_s = 0.0  # by the world, and what it was here

    def now_s(self) -> float:
        """Seconds since the Unix epoch, as this process believes."""
        # Most looks are at the moment of the last one: nothing has moved since.
        if (now_s := self._process.world.now_s()) != self._looked_s:
            self._looked_s, self._known_s = now_s, self._machine.now_s()
        return self._known_s

    def latest_s(self) -> float:
        """Give the latest that it may be."""
        return self.now_s() + max(0.0, self._machine.off_s())

    def set(self, ahead_s: float, rate: float = 1.0) -> None:
        """Let the machine show the world's time and so many seconds, and go so fast from now on."""
        now_s = self._process.world.now_s()
        self._at_s, self._shown_s, self._rate = now_s, now_s + ahead_s, rate
        self._looked_s = 0.0

    def begin(self) -> None:
        """Look at the machine's clock, as a process that begins does."""
        self._machine = Steady(self._wall_s, self._process.world.now_s)
        self._looked_s = 0.0

    @property
    def ahead_s(self) -> float:
        """How far the machine's clock is ahead of the world."""
        return self._wall_s() - self._process.world.now_s()

    def _wall_s(self) -> float:
        return self._shown_s + (self._process.world.now_s() - self._at_s) * self._rate

    def world_s(self, moment_s: float) -> float:
        """When the moment comes, if nobody sets the clock before."""
        left_s = max(0.0, moment_s - self.now_s())
        return self._process.world.now_s() + left_s / self._rate

    def waiter(self) -> Waiter:
        """Make a waiter."""
        return _Waiter(self, self._process)

    async def sleep_until(self, moment_s: float) -> None:
        """Return at the moment, or at once if it is past."""
        while moment_s - self.now_s() > 1e-6 and not self._process.leaving:
            await self._process.world.sleep_until(self.world_s(moment_s))
            await self._process.go_on()
            if moment_s - self.now_s() >= STEP_S:
                return  # who has waited does not wait again because a clock was set back

    def enter(self) -> None:
        """Take part."""
        self._process.world.enter()

    def leave(self) -> None:
        """Take part no longer; who died in a wait left then."""
        if asyncio.current_task() not in self._process.buried:
            self._process.world.leave()


class _Waiter:
    def __init__(self, clock: SkewedClock, process: Process) -> None:
        self._clock, self._process = clock, process
        self._waiter = process.world.waiter()

    def notify(self) -> None:
        if self._process.alive:
            self._waiter.notify()

    async def wait(self, until_s: float | None = None) -> bool:
        while True:
            until = None if until_s is None else self._clock.world_s(until_s)
            told = await self._waiter.wait(until)
            await self._process.go_on()
            left_s = 0.0 if until_s is None else until_s - self._clock.now_s()
            if told or until_s is None or not 1e-6 < left_s < STEP_S:
                return told
