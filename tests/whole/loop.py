"""asyncio's loop without what a simulation has no use for, which took a fifth of its time."""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any


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
