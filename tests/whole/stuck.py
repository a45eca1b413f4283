"""A limit of real time for a run: virtual time does not move while something hangs.

What hangs may wait for ever, or turn without end inside one call; an alarm ends both.
"""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stuck(KeyboardInterrupt):
    """The limit has passed; where it was then. Of this kind, since no task swallows it."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `Stuck` in what runs longer than so many real seconds; for the main thread only.

    Raises:
        ValueError: another thread asks.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        raise Stuck(f"no end after {seconds:g} real s, at {_place(frame)}; waiting: {_waiting()}")

    before = signal.signal(signal.SIGALRM, ring)
    # It rings again: what tidies up may hang as well.
    signal.setitimer(signal.ITIMER_REAL, seconds, max(1.0, seconds / 10.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _place(frame: FrameType | None) -> str:
    """Name the innermost line that is no library's."""
    while frame is not None and not _ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "no line of ours"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"


def _ours(file: str) -> bool:
    return not file.startswith(("<", sys.base_prefix)) and "site-packages" not in file


def _waiting() -> str:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return "no task"
    return ", ".join(sorted(task.get_name() for task in tasks)[:10])
