"""How tests wait for others: until it is so, and longer than the slowest machine needs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bus.clock import PacedClock

#: The bound of every wait, against hanging alone. How long something takes is measured by the
#: benchmarks: a test that fails when others use the machine says nothing about the product.
PATIENCE_S = 120.0


async def until(condition: Callable[[], object], what: str = "it never came to that") -> None:
    """Wait until something holds; fail saying what does not."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], object], what: str = "it never came to that") -> None:
    """Wait as `until` does, where there is no loop."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def whole_lines(file: Path) -> list[str]:
    """Give the lines of a file that somebody still writes, none if it is not there.

    A line that is appended by one call is there half for a moment where it crosses a page of the
    file: such an end is left out.
    """
    text = file.read_bytes() if file.exists() else b""
    return text[: text.rfind(b"\n") + 1].decode().splitlines()


async def take_part(
    clock: PacedClock, *parts: Callable[[], Awaitable[None]], until_s: float = 100.0
) -> None:
    """Run the parts as services, until the clock says so much."""

    async def service(part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        finally:
            clock.leave()

    tasks = []
    for part in parts:
        clock.enter()
        tasks.append(asyncio.create_task(service(part)))
    await clock.run_until(until_s)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
