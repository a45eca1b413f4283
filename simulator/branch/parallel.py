"""Several runs of a branch at once: in processes of this machine, or on a Dask cluster."""

import contextlib
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from simulator.branch.change import Change
from simulator.branch.deeds import Deed
from simulator.branch.origin import BranchError, Origin
from simulator.branch.run import Outcome, branch

#: Runs that take so many seconds in all are worth the start of processes.
_WORTH_S = 4.0
#: One run: its change, None for the control, and its seed.
Case = tuple[Change | None, int]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of a case, as far as it is compared with that of others."""

    outcome: Outcome
    violations: int
    deeds: list[Deed]


_Numbered = tuple[int, Case]
_Done = tuple[int, CaseResult]
#: Does work on each case somewhere, and gives what comes of it in any order.
Submit = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


def run_case(origin: Origin, numbered: _Numbered) -> _Done:
    """Run one case."""
    at, (change, seed) = numbered
    # A run makes many small objects and hardly any cycles: looking for them costs a tenth.
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        found = branch(origin, change, seed)
    finally:
        gc.set_threshold(*thresholds)
    return at, CaseResult(found.outcome, found.violations, found.deeds)


def run_all(
    origin: Origin,
    cases: Sequence[Case],
    *,
    each_s: float,
    submit: Submit | None = None,
    on_result: Callable[[int], None] | None = None,
) -> list[CaseResult]:
    """Run cases, on every core of this machine unless `submit` says where, and give them in order.

    Args:
        origin: The moment that they go on from.
        cases: What is run.
        each_s: How long a case takes, about.
        submit: Where else; `simulator.remote.DaskCluster` is one.
        on_result: Is told how many are done, each time that there is one more.

    Raises:
        BranchError: a change cannot be, or a process was killed.
    """
    if submit is None:
        count = min(len(cases), cores())
        alone = count <= 1 or each_s * len(cases) < _WORTH_S
        submit = map if alone else partial(_processes, count)
    found: dict[int, CaseResult] = {}
    for at, one in submit(partial(run_case, origin), list(enumerate(cases))):
        found[at] = one
        if on_result is not None:
            on_result(len(found))
    return [found[at] for at in range(len(cases))]


def cores() -> int:
    """Give the number of cores that this process may use."""
    able = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if able else os.cpu_count() or 1


def _processes(count: int, work: Callable[[Any], Any], cases: Sequence[Any]) -> Iterator[Any]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawn, initializer=_end_with_parent) as pool:
        left = [pool.submit(work, case) for case in cases]
        try:
            for future in as_completed(left):
                yield future.result()
        except BrokenProcessPool as error:
            raise BranchError(
                "runs",
                "a process that made runs was ended before they were made, for want of "
                "memory or of time; ask for fewer hours or runs",
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Have this process end with the one that started it, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        with contextlib.suppress(OSError):
            wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
