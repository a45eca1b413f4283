"""What came of a branch, as one document: for the terminal's `--json` and for the gateway."""

from dataclasses import asdict
from typing import Any

from simulator.branch.control import Comparison
from simulator.branch.deeds import Deed, differences
from simulator.branch.origin import Origin
from simulator.branch.preview import preview

#: So many deeds that differ are listed.
_DEEDS = 200


def owners_need(origin: Origin) -> str:
    """Say which of both was used: what owners needed by the log, or the day before."""
    if origin.is_past:
        return "recorded"
    return "recorded, then as the day before" if origin.record.goes_on else "as the day before"


def document(found: Comparison, log: str) -> dict[str, Any]:
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


def charts(found: Comparison) -> dict[str, Any]:
    """Give what a page shows beside it: tides, deeds that differ, and what each request moves."""
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
