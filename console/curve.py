"""How fast a job is at each size, as far as that was learned of it: for `why`."""

from typing import Any

from rich.table import Table
from rich.text import Text

from console.output import duration
from scheduler.core.state import Job

#: Sizes shown; all are in `--json`.
_SHOWN = 12


def curve_document(job: Job, now_s: float) -> dict[str, Any] | None:
    """Give the curve as JSON types; None: nothing is known but what was declared.

    Steps are those of the declared batch. `age_s` is how long ago a size was measured last, in
    seconds; None: it was not measured, or nobody noted when.
    """
    curve = job.curve
    if curve is None:
        return None
    at_s = dict(zip(curve["measured"], curve.get("at_s", ()), strict=False))
    if job.size in at_s and job.rate_at_s is not None:  # it goes on being confirmed
        at_s[job.size] = max(at_s[job.size], job.rate_at_s)
    return {
        "learned_s": job.curve_at_s,
        "points": [
            {
                "gpus": int(size),
                "steps_per_s": work / curve["per_step"],
                "samples_per_s": work / curve["per_step"] * job.samples_per_step,
                "measured": int(size) in curve["measured"],
                "age_s": max(0.0, now_s - at_s[int(size)]) if int(size) in at_s else None,
            }
            for size, work in curve["points"]
        ],
        "affinity": curve["affinity"],
    }


def curve_table(job: Job, now_s: float) -> Table | None:
    """Lay the curve out; None: nothing is known but what was declared."""
    document = curve_document(job, now_s)
    if document is None:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("GPUs", justify="right")
    table.add_column("steps/s", justify="right", style="bold")
    table.add_column("samples/s", justify="right")
    table.add_column("known from")
    # A size at which nothing gets done is one that the job cannot have.
    points = [point for point in document["points"] if point["samples_per_s"] > 0.0]
    for point in points[:_SHOWN]:
        known = Text("modelled", "dim")
        if point["measured"]:
            age_s = point["age_s"]
            known = Text("measured" if age_s is None else f"measured {duration(age_s)} ago")
        here = f"▸ {point['gpus']}" if point["gpus"] == job.size else str(point["gpus"])
        table.add_row(here, f"{point['steps_per_s']:.4g}", f"{point['samples_per_s']:.4g}", known)
    if len(points) > _SHOWN:
        table.add_row("…", "", "", Text(f"{len(points) - _SHOWN} more, see --json", "dim"))
    for pool, speed in sorted(document["affinity"].items()):
        table.add_row("", "", "", Text(f"in {pool} {speed:.3g} times that, as measured there"))
    return table
