"""Whether the event loop is alive, and how late it is: read from any thread."""

import asyncio

#: How often the loop is asked to answer.
EVERY_S = 0.25
#: The greatest lateness is kept for this long at least, twice this at most.
WINDOW_S = 15.0
#: A loop that has not answered for this long is stuck.
STUCK_S = 10.0


class LoopMonitor:
    """Measures how late the loop is. Its clock is monotonic, and the same in every thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken_s = self._window_s = self._loop.time()
        self._worst_s = self._worst_before_s = 0.0

    async def run(self) -> None:
        """Wake up regularly until cancelled."""
        while True:
            due_s = self._loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            now_s = self._loop.time()
            if now_s >= self._window_s + WINDOW_S:
                self._window_s = now_s
                self._worst_before_s, self._worst_s = self._worst_s, 0.0
            self._worst_s = max(self._worst_s, now_s - due_s)
            self._woken_s = now_s

    def silent_s(self) -> float:
        """Give how long ago it last woke up."""
        return max(0.0, self._loop.time() - self._woken_s)

    def worst_lag_s(self) -> float:
        """Give the greatest recent lateness, counting one that goes on."""
        return max(self._worst_s, self._worst_before_s, self.silent_s() - EVERY_S)
