"""What came of a branch, as one document: for the terminal's `--json` and for the gateway."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bus.clock import SystemClock
from simulator.branch.change import Change
from simulator.branch.deeds import Deed, differences, first_difference
from simulator.branch.origin import Origin
from simulator.branch.preview import preview
from simulator.branch.run import (
    Branch,
    Outcome,
    Range,
    Watch,
    branch,
    ranges,
    recorded,
)
from simulator.branch.runs import Ran, Submit, run_all

#: So many deeds that differ are told.
_DEEDS = 200
#: Is told which part is done, 0 to 1.
Told = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Tried:
    """A branch beside its control, each run once as things are known, and perhaps more often."""

    origin: Origin
    change: Change
    control: Branch
    changed: Branch  #: The control itself, if nothing is changed.
    record: Outcome | None  #: None: the log does not go on.
    runs: int
    more_controls: Sequence[Ran]
    more_branches: Sequence[Ran]

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


def tried(
    origin: Origin,
    change: Change,
    runs: int,
    *,
    watch: Watch | None = None,
    submit: Submit | None = None,
    told: Told | None = None,
) -> Tried:
    """Run a branch and its control.

    Args:
        origin: The moment.
        change: What is done otherwise.
        runs: How often; all but the first draw what nobody has measured.
        watch: Shown the state of the branch after each decision of the first run.
        submit: Where the others are run; None: on every core of this machine.
        told: Told how far it is.

    Raises:
        BranchError: the change cannot be, or a request of it is refused.
    """
    sides: list[Change | None] = [None] if change.is_none else [None, change]
    parts = runs * len(sides)

    def passed(before: int, of: Watch | None) -> Watch | None:
        if told is None:
            return of
        so_far = told
        length_s = max(origin.until_s - origin.at_s, 1e-9)

        def saw(state: Any, stimulus: Any, decision: Any) -> None:
            if of is not None:
                of(state, stimulus, decision)
            so_far((before + (state.now_s - origin.at_s) / length_s) / parts)

        return saw

    clock = SystemClock()
    began_s = clock.now_s()
    control = branch(origin, None, watch=passed(0, watch if change.is_none else None))
    changed = control
    if not change.is_none:
        changed = branch(origin, change, watch=passed(1, watch))
    each_s = (clock.now_s() - began_s) / len(sides)
    cases = [(side, seed) for seed in range(1, runs) for side in sides]

    def one_more(count: int) -> None:
        if told is not None:
            told((len(sides) + count) / parts)

    more: list[Ran] = []
    if cases:
        more = run_all(origin, cases, each_s=each_s, submit=submit, told=one_more)
    return Tried(
        origin=origin,
        change=change,
        control=control,
        changed=changed,
        record=recorded(origin) if origin.record.goes_on else None,
        runs=runs,
        more_controls=more[:: len(sides)],
        more_branches=[] if change.is_none else more[1::2],
    )


def owners_need(origin: Origin) -> str:
    """Say which of both was used: what owners needed by the log, or the day before."""
    if origin.is_past:
        return "recorded"
    return "recorded, then as the day before" if origin.record.goes_on else "as the day before"


def document(found: Tried, log: str) -> dict[str, Any]:
    """Give all of it, with JSON types only; `log` is the name of the log that was branched."""
    begin, control, plain = found.origin, found.control, found.change.is_none
    sides = [control] if plain else [control, found.changed]
    violations = sum(one.violations for one in sides)
    violations += sum(one.violations for one in (*found.more_controls, *found.more_branches))
    return {
        "log": log,
        "cell": begin.cell,
        "entry": begin.entry,
        "at_s": begin.at_s,
        "until_s": begin.until_s,
        "recorded_until_s": begin.record.until_s,
        "owners_need": owners_need(begin),
        "recorded": None if found.record is None else asdict(found.record),
        "control_until_recorded_end": asdict(control.at_record_end),
        "control": asdict(control.outcome),
        "branch": None if plain else asdict(found.changed.outcome),
        "runs": found.runs,
        "ranges": found.ranged,
        "first_difference": None if found.differs is None else _deed(*found.differs),
        "violations": violations,
    }


def drawn(found: Tried) -> dict[str, Any]:
    """Give what is drawn beside it: tides, deeds that differ, and what each request moves."""
    plain = found.change.is_none
    deeds = differences(found.control.deeds, found.changed.deeds, _DEEDS)
    return {
        "tide": {
            "recorded": [asdict(row) for row in found.origin.record.tide],
            "control": [asdict(row) for row in found.control.tide],
            "branch": None if plain else [asdict(row) for row in found.changed.tide],
        },
        "deeds": [_deed(*one) for one in deeds],
        "previews": [
            asdict(preview(found.origin, found.control, found.changed, asked))
            for asked in found.change.requests
        ],
    }


def _deed(deed: Deed, of_control: bool) -> dict[str, Any]:
    return {**asdict(deed), "only_in": "control" if of_control else "branch"}
