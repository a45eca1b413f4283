"""When jobs will start and end: a range over several runs of a branch in which nothing changes."""

from collections.abc import Sequence
from typing import Any

from bus.clock import SystemClock
from simulator.at_once import Submit
from simulator.branch.control import OnProgress
from simulator.branch.origin import Origin
from simulator.branch.parallel import CaseResult, run_all
from simulator.branch.run import branch

#: Of a job: the earliest and the latest moment, and in how many runs it does not come.
_Range = tuple[float | None, float | None, int]


def forecast(
    origin: Origin,
    runs: int,
    *,
    submit: Submit | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Say of each job that something happens to in any run when it starts next, and ends.

    Args:
        origin: The moment.
        runs: How many; all but the first draw what nobody has measured.
        submit: Where they are run; None: on every core of this machine.
        on_progress: Is told how far the work is.

    Returns:
        `starts` and `ends`, each by job: the earliest, the latest, in how many runs not at all.

    Raises:
        BranchError: it cannot be.
    """
    clock = SystemClock()
    began_s = clock.now_s()
    first = branch(origin)
    each_s = clock.now_s() - began_s
    plain = [CaseResult(first.outcome, first.violations, first.deeds)]

    def one_more(count: int) -> None:
        if on_progress is not None:
            on_progress((1 + count) / runs)

    one_more(0)
    if runs > 1:
        cases = [(None, seed) for seed in range(1, runs)]
        plain += run_all(origin, cases, each_s=each_s, submit=submit, on_result=one_more)
    return {
        "starts": _ranges(plain, ("starts on",)),
        "ends": _ranges(plain, ("is done", "is declined")),
    }


def _ranges(found: Sequence[CaseResult], kinds: tuple[str, ...]) -> dict[str, _Range]:
    moments: dict[str, list[float]] = {}
    for run in found:
        seen: dict[str, float] = {}
        for deed in run.deeds:
            if deed.kind in kinds:
                seen.setdefault(deed.subject, deed.at_s)
        for job, at_s in seen.items():
            moments.setdefault(job, []).append(at_s)
    return {
        job: (min(moments_s), max(moments_s), len(found) - len(moments_s))
        for job, moments_s in moments.items()
    }
