"""Work in daemon threads: the process can end while they wait for a disk or a store."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")


def in_thread(work: Callable[[], _T]) -> "Future[_T]":
    """Run it in a daemon thread; give its future."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whoever waits for the future learns of it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


def side_by_side(
    calls: Iterable[Callable[[], _T]], most: int, failed: threading.Event
) -> Iterator[_T]:
    """Make up to `most` calls at a time, in threads; give their results in the calls' order.

    `calls` is asked in the caller's thread, and for the next call only once there is room for it.
    Nothing is under way any more when this ends. If a call fails, or the caller closes the
    iterator, `failed` is set, for the other calls to end early, and no further call is made; the
    first exception that a call raised is raised.
    """
    running = deque[Future[_T]]()
    errors: list[Exception] = []

    def made(call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Exception as error:
            errors.append(error)
            failed.set()
            raise

    try:
        for call in calls:
            running.append(in_thread(partial(made, call)))
            del call  # or what it holds would be held until the next one
            if len(running) == most:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    except Exception:
        if errors:  # what comes in its turn may only be that another one failed
            raise errors[0] from None
        raise
    finally:
        if running:
            failed.set()
            wait(running)
