"""Many runs at once: in processes of this machine, or wherever else."""

import contextlib
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from typing import Any, TypeVar

_Case = TypeVar("_Case")
_Done = TypeVar("_Done")
#: Does work on each case somewhere, and gives what comes of it in any order.
Submit = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


def in_order(
    run: Callable[[_Case], _Done],
    cases: Sequence[_Case],
    submit: Submit,
    tell: Callable[[int, _Done], object] | None,
) -> list[_Done]:
    """Run cases, and give what comes of each, in their order.

    Args:
        run: Runs one.
        cases: What is run.
        submit: Where.
        tell: Is told how many are done and the newest, each time that there is one more.
    """
    found: dict[int, _Done] = {}
    for at, one in submit(partial(_numbered, run), list(enumerate(cases))):
        found[at] = one
        if tell is not None:
            tell(len(found), one)
    return [found[at] for at in range(len(cases))]


def in_processes(count: int, broken: Exception) -> Submit:
    """Give what runs so many at once on this machine; `broken` is raised if one is killed."""
    return partial(_processes, count, broken)


def _numbered(run: Callable[[_Case], _Done], numbered: tuple[int, _Case]) -> tuple[int, _Done]:
    at, case = numbered
    # A run makes many small objects and hardly any cycles: looking for them costs a tenth.
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        return at, run(case)
    finally:
        gc.set_threshold(*thresholds)


def _processes(
    count: int, broken: Exception, work: Callable[[Any], Any], cases: Sequence[Any]
) -> Iterator[Any]:
    spawn = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, spawn, initializer=_end_with_parent) as pool:
        left = {pool.submit(work, case) for case in cases}
        try:
            for future in as_completed(left):
                yield future.result()
                left.discard(future)
        except BrokenProcessPool as error:
            raise broken from error
        finally:
            if left:  # something failed, and nobody waits for the rest
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(multiprocessing.active_children()) - others:
                    child.terminate()


def _end_with_parent() -> None:
    """Have this process end with the one that started it, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        with contextlib.suppress(OSError):
            wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
