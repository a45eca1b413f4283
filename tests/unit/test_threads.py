"""Calls in threads: in order, a few at a time, and none once one has failed."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from runtime.threads import side_by_side

MOST = 4


class Calls:
    """Forty calls that take unlike long; one may fail."""

    def __init__(self, fails: int | None = None) -> None:
        self.fails, self.failed = fails, threading.Event()
        self.begun, self.most, self.running = list[int](), 0, 0
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Callable[[], int]]:
        for number in range(40):
            self.begun.append(number)
            yield partial(self._call, number)

    def _call(self, number: int) -> int:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            if number == self.fails:
                raise OSError("this one")
            if self.failed.wait(0.02 * (number % 3)):
                raise ValueError("given up")
            return number
        finally:
            with self._lock:
                self.running -= 1


def test_results_come_in_the_order_of_the_calls() -> None:
    calls = Calls()
    assert list(side_by_side(calls, MOST, calls.failed)) == list(range(40))
    assert 1 < calls.most <= MOST
    assert not calls.failed.is_set()


def test_the_first_failure_is_told_and_ends_the_others() -> None:
    calls, found = Calls(fails=12), list[int]()
    with pytest.raises(OSError, match="this one"):
        found.extend(side_by_side(calls, MOST, calls.failed))
    assert found == list(range(len(found)))
    assert len(calls.begun) <= 12 + MOST
    assert calls.running == 0


def test_who_stops_asking_waits_for_those_under_way() -> None:
    calls = Calls()
    given = side_by_side(calls, MOST, calls.failed)
    assert next(given) == 0
    given.close()  # type: ignore[attr-defined]
    assert calls.failed.is_set()
    assert calls.running == 0


def test_a_call_that_never_ends_does_not_hold_up_the_end_of_the_process() -> None:
    begun = threading.Event()

    def stands() -> None:
        begun.set()
        time.sleep(3600)

    thread = threading.Thread(
        target=lambda: list(side_by_side([stands], MOST, threading.Event())), daemon=True
    )
    thread.start()
    assert begun.wait(10)
    others = [one for one in threading.enumerate() if one is not threading.main_thread()]
    assert all(one.daemon for one in others)
