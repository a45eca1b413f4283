"""A branch and its control, run side by side from one moment, once or several times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.clock import SystemClock
from simulator.at_once import Submit
from simulator.branch.change import Change
from simulator.branch.deeds import Deed, first_difference
from simulator.branch.origin import Origin
from simulator.branch.parallel import CaseResult, run_all
from simulator.branch.run import Branch, Outcome, Range, Watch, branch, ranges, recorded

#: Is told how far the work is, 0 to 1.
OnProgress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A branch beside its control.

    Each is run once with what is known, and `runs - 1` times more with draws of what is not known.
    """

    origin: Origin
    change: Change
    control: Branch
    changed: Branch  #: The control itself, if nothing is changed.
    record: Outcome | None  #: None: the log does not go on.
    runs: int
    more_controls: Sequence[CaseResult]
    more_branches: Sequence[CaseResult]

    @property
    def differs(self) -> tuple[Deed, bool] | None:
        """The first deed that differs, and if it is of the control."""
        return first_difference(self.control.deeds, self.changed.deeds)

    @property
    def ranged(self) -> dict[str, dict[str, Range]] | None:
        """The ranges of the control and, if there is any, of the branch and the differences."""
        if self.runs <= 1:
            return None
        plain = [self.control.outcome, *(one.outcome for one in self.more_controls)]
        found = {"control": ranges(plain)}
        if not self.change.is_none:
            changed = [self.changed.outcome, *(one.outcome for one in self.more_branches)]
            found |= {"branch": ranges(changed), "difference": ranges(changed, plain)}
        return found


def run_with_control(
    origin: Origin,
    change: Change,
    runs: int,
    *,
    watch: Watch | None = None,
    submit: Submit | None = None,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Run a branch and its control.

    Args:
        origin: The moment.
        change: What is done otherwise.
        runs: How often; all but the first draw what nobody has measured.
        watch: Shown the state of the branch after each decision of the first run.
        submit: Where the others are run; None: on every core of this machine.
        on_progress: Is told how far the work is.

    Raises:
        BranchError: the change cannot be, or a request of it is refused.
    """
    sides: list[Change | None] = [None] if change.is_none else [None, change]
    parts = runs * len(sides)

    def reporting(before: int, of: Watch | None) -> Watch | None:
        if on_progress is None:
            return of
        report = on_progress
        length_s = max(origin.until_s - origin.at_s, 1e-9)

        def saw(state: Any, stimulus: Any, decision: Any) -> None:
            if of is not None:
                of(state, stimulus, decision)
            report((before + (state.now_s - origin.at_s) / length_s) / parts)

        return saw

    clock = SystemClock()
    began_s = clock.now_s()
    control = branch(origin, None, watch=reporting(0, watch if change.is_none else None))
    changed = control
    if not change.is_none:
        changed = branch(origin, change, watch=reporting(1, watch))
    each_s = (clock.now_s() - began_s) / len(sides)
    cases = [(side, seed) for seed in range(1, runs) for side in sides]

    def one_more(count: int) -> None:
        if on_progress is not None:
            on_progress((len(sides) + count) / parts)

    more: list[CaseResult] = []
    if cases:
        more = run_all(origin, cases, each_s=each_s, submit=submit, on_result=one_more)
    return Comparison(
        origin=origin,
        change=change,
        control=control,
        changed=changed,
        record=recorded(origin) if origin.record.goes_on else None,
        runs=runs,
        more_controls=more[:: len(sides)],
        more_branches=[] if change.is_none else more[1::2],
    )
