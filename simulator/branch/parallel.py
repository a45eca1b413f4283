"""Several runs of a branch at once: in processes of this machine, or on a Dask cluster."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from simulator.at_once import Submit, in_order, in_processes
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


def _run_case(origin: Origin, case: Case) -> CaseResult:
    found = branch(origin, *case)
    return CaseResult(found.outcome, found.violations, found.deeds)


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
        broken = BranchError(
            "runs",
            "a process that made runs was ended before they were made, for want of "
            "memory or of time; ask for fewer hours or runs",
        )
        submit = map if alone else in_processes(count, broken)
    tell = None if on_result is None else lambda done, _: on_result(done)
    return in_order(partial(_run_case, origin), cases, submit, tell)


def cores() -> int:
    """Give the number of cores that this process may use."""
    able = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if able else os.cpu_count() or 1
