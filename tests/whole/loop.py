"""asyncio's loop without what a simulation has no use for, which took a fifth of its time."""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from bus.clock import PacedClock


class _NothingComes(selectors.DefaultSelector):
    """Files and sockets have no part in a run."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [] if timeout == 0 else super().select(timeout)


class Loop(asyncio.SelectorEventLoop):
    """Runs what is ready in the same order, but checks no call and looks for no socket."""

    def __init__(self) -> None:
        """Begin."""
        super().__init__(_NothingComes())

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        if not ready or self._scheduled:  # type: ignore[attr-defined]
            super()._run_once()  # type: ignore[misc]
            return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()


async def others_run() -> None:
    """Let all run that is ready, once; return at once if nothing is."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, Loop) or loop._ready:  # type: ignore[attr-defined]
        await asyncio.sleep(0)


class Time(PacedClock):
    """Simulated time without a pace: nothing comes from outside, so nobody need be let in."""

    def __init__(self, start_s: float) -> None:
        """Begin at `start_s`."""
        super().__init__(start_s, None)

    async def _disturbed(self, delay_s: float) -> bool:
        self._changed.clear()
        await others_run()
        return self._busy > 0 or self._changed.is_set()
