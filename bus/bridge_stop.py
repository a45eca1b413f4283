"""That it is time to stop, for whoever waits before it tries again."""

from bus.clock import Clock, Waiter


class Stop:
    """Comes once, and wakes all who wait here."""

    def __init__(self, clock: Clock) -> None:
        """Wait by this clock."""
        self.come = False
        self._clock = clock
        self._waiting: list[Waiter] = []

    def now(self) -> None:
        """Let it be time."""
        self.come = True
        for waiter in self._waiting:
            waiter.notify()

    async def within(self, seconds: float) -> bool:
        """Wait so long; True at once when it is time to stop."""
        waiter = self._clock.waiter()
        self._waiting.append(waiter)
        try:
            return self.come or await waiter.wait(self._clock.now_s() + seconds)
        finally:
            self._waiting.remove(waiter)
