"""A demo's scheduler on a broker that may go away: begun again when the broker is back."""

import asyncio
from collections.abc import Callable

from bus.clock import Clock
from bus.contract import BusError, Fenced
from console.output import say
from scheduler.core.engine import Engine
from scheduler.service import SchedulerService

_PAUSE_S = 1.0


class Leader:
    """Runs a scheduler, and another one after it if the bus failed. Time waits meanwhile."""

    def __init__(self, make: Callable[[], SchedulerService], clock: Clock) -> None:
        self._make, self._clock = make, clock
        self._scheduler = make()
        self._stopped = asyncio.Event()
        self._violations = 0
        self._duplicates = 0

    @property
    def engine(self) -> Engine:
        """The engine that decides; an `AttributeError` before the first one has begun."""
        return self._scheduler.engine

    @property
    def duplicates(self) -> int:
        """How many messages came again."""
        return self._duplicates + self._now()

    @property
    def invariant_violations(self) -> int:
        """How many the schedulers have found."""
        return self._violations + self._scheduler.invariant_violations

    async def run(self) -> None:
        """Be the scheduler until `stop`.

        Raises:
            Fenced: another scheduler leads.
        """
        while not self._stopped.is_set():
            try:
                await self._scheduler.run()
            except Fenced:
                raise
            except BusError as error:
                if self._stopped.is_set():
                    raise
                await self._pause(error)

    def stop(self) -> None:
        """Finish in good order; `run` returns then."""
        self._stopped.set()
        self._scheduler.stop()

    async def _pause(self, error: BusError) -> None:
        if hasattr(self._scheduler, "intake"):  # else it had not begun, and this was said before
            say(f"The demo waits: {error}.")
        self._clock.enter()  # before anybody runs who could let time pass
        try:
            async with asyncio.timeout(_PAUSE_S):
                await self._stopped.wait()
        except TimeoutError:
            pass
        finally:
            self._clock.leave()
        self._violations += self._scheduler.invariant_violations
        self._duplicates += self._now()
        engine = getattr(self._scheduler, "engine", None)
        self._scheduler = self._make()
        if engine is not None:
            self._scheduler.engine = engine  # to be shown until it has recovered its own

    def _now(self) -> int:
        intake = getattr(self._scheduler, "intake", None)
        return 0 if intake is None else int(intake.counts["duplicates"])
