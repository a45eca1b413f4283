"""A thread that repeats a function."""

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)


def monotonic_s() -> float:
    """Seconds of the monotonic clock; only differences mean something."""
    return time.monotonic()  # noqa: TID251 - limits and rates must not jump with the wall clock


class PeriodicThread:
    """Calls `work` at once and then every `every_s` seconds, in its own thread, until stopped.

    A call that takes long delays the next; calls never overlap. One that raises is logged, the
    first of several in a row, and the next is made as ever: nobody would miss a thread that has
    ended. It ends with the process.
    """

    def __init__(self, work: Callable[[], object], every_s: float, name: str) -> None:
        if every_s <= 0:
            raise ValueError("every_s: must be positive")
        self._work = work
        self._every_s = every_s
        self._stop = threading.Event()
        self._name, self._has_failed = name, False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Begin no further call. Does not wait for one under way."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = monotonic_s()
            self._call()
            self._stop.wait(max(0.0, began_s + self._every_s - monotonic_s()))

    def _call(self) -> None:
        try:
            self._work()
            self._has_failed = False
        except Exception:  # noqa: BLE001 - whatever it is, it is tried again
            if not self._has_failed:
                _log.exception("%s failed; it is tried again every %g s", self._name, self._every_s)
            self._has_failed = True
