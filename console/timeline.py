"""`tidegate timeline JOB`: where a job ran, when and how large; as a table or a picture."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from console.columns import LEFT, RIGHT, Columns, fitted
from console.forms import Found, looks
from console.output import fail, out, say
from console.source import Source
from explain.documents import LineDocument
from explain.metrics import Curves
from explain.moments import duration
from explain.phrases import SHORT
from explain.spans import Stay
from explain.work import Work, work_of

_COLUMNS: Columns = {
    "after": LEFT,
    "how": LEFT,
    "GPUs": RIGHT,
    "pool": LEFT,
    "from step": RIGHT,
    "for": LEFT,
    "nodes": {"overflow": "fold", "ratio": 1},
    "how it ended": {"overflow": "fold", "max_width": 40},
}
_DROP = ("pool", "from step", "from unit", "how it ended")
#: Of a line of the history: that it ends a stay, that people asked for that, and where they did.
_ENDS = (
    "scaled", "re-placed", "preempted", "failed", "move given up", "held", "requeued", "migrated",
    "completed", "cancelled", "failed for good",
)  # fmt: skip
_BY_PEOPLE = ("held", "requeued", "cancelled")
_ASKED = (*_BY_PEOPLE, "asked to requeue", "asked to cancel")
#: What a line says of a job that waits again; after it what its agent said.
_AGAIN = "waits again, "


@dataclass(frozen=True, slots=True)
class Written:
    """One value that the job wrote down about itself."""

    at_s: float
    value: float


@looks
def timeline(
    at: Source,
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
    loss: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of what is recorded, what the job wrote: lines of a Unix time first, a "
            "value last.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Which of the figures that the job reports is drawn; if left out, `loss`, else "
            "the first."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")
    ] = None,
) -> Found:
    """Show where a job ran and how large; with --plot, its loss over its moves, if it reports it.

    How and why each stay on some GPUs ended is told, as the journal has it; where its outputs are
    as well, once they are kept.

    Example: tidegate timeline job-0042 --log run.db --plot moves.png
    """
    if loss is not None and metric is not None:
        fail("--loss and --metric: each says what is drawn; leave one of the two out.")
    stays, now_s = at.stays(job).it, at.overview().it.now_s
    if not stays and plot is not None:
        fail(f"--plot: {job} had no GPUs so far; there is nothing to draw.", code=1)
    curves = at.curves(job)
    name = _chosen(job, curves, metric)
    if loss is not None:
        name, samples = "loss", samples_of(loss)
    else:
        samples = [Written(at_s, value) for at_s, _, value in curves.get(name, ())]
    if plot is not None:
        drawn = [one for one in samples if math.isfinite(one.value)]
        _draw(job, stays, name, drawn, now_s, plot)
        left_out = len(samples) - len(drawn)
        say(f"Drawn: {plot}." + (f" Left out: {left_out} losses, nan or inf." if left_out else ""))
    explained = at.why(job, 80).document
    kept, ends = explained.outputs, ends_of(stays, explained.history)
    rows = [{**asdict(stay), "ended": end} for stay, end in zip(stays, ends, strict=True)]
    document = {"job": job, "stays": rows, "curves": curves, "outputs": kept}
    told = [] if kept is None else [Text(f"Its outputs: {kept}.")]
    work = work_of(explained.spec)
    table = _table(job, stays, ends, now_s, work) if stays else Text(f"{job} had no GPUs so far.")
    return Found(document, [table, *told])


def ends_of(stays: Sequence[Stay], history: Sequence[LineDocument]) -> list[str]:
    """Say of each stay how it ended and, where the journal has it, why; empty: it has not."""
    ends = [stay.until_s for stay in stays]
    begins = [stay.since_s for stay in stays[1:]]
    return [_end(history, *one) for one in zip_longest(ends, begins)]


def _end(history: Sequence[LineDocument], end_s: float | None, next_s: float | None) -> str:
    if end_s is None:
        return ""
    asked, found = "", None
    for line in history:
        # A move is told as one, when it starts again; who asked, when that was asked for.
        if line.at_s <= end_s and line.what in _ASKED and _AGAIN not in line.detail:
            asked = line.detail or asked
        if (line.at_s == end_s and line.what in _ENDS) or (
            line.at_s == next_s and line.what == "migrated"
        ):
            found = line
    if found is None:
        return "scaled" if next_s == end_s else ""
    detail = found.detail.partition(_AGAIN)[2].partition("; ")[2] if _AGAIN in found.detail else ""
    if found.what == "failed for good":
        detail = found.detail
    elif found.what in _BY_PEOPLE:
        detail = found.detail if found.what == "cancelled" and found.detail else asked
    elif not detail and found.rule is not None:
        detail = SHORT.get(found.rule, found.rule)
    return f"{found.what}: {detail}" if detail else found.what


def _chosen(job: str, curves: Curves, metric: str | None) -> str:
    if metric is not None and metric not in curves:
        known = f"it reports {', '.join(curves)}" if curves else "it reports none"
        fail(f"--metric: {job} has no figure {metric!r}; {known}.")
    return metric or ("loss" if "loss" in curves else next(iter(curves), "loss"))


def samples_of(path: Path) -> list[Written]:
    """Read what a job wrote: the first field of each line is the moment, the last the value."""
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--loss: {path} cannot be read: {error}")
    for number, line in enumerate(lines, 1):
        fields = line.split()
        try:
            at_s, value = float(fields[0]), float(fields[-1])
            if not math.isfinite(at_s):
                raise ValueError(at_s)
        except (ValueError, IndexError):
            fail(f"--loss: {path}, line {number}: {line[:60]!r} does not begin and end in a number")
        found.append(Written(at_s, value))
    return sorted(found, key=lambda sample: sample.at_s)


def _table(job: str, stays: Sequence[Stay], ends: Sequence[str], now_s: float, work: Work) -> Table:
    rows: list[list[Text | str]] = [
        [
            duration(stay.since_s - stays[0].since_s),
            stay.how,
            str(stay.gpus),
            stay.pool,
            "" if stay.step is None else work.count(stay.step),
            duration((now_s if stay.until_s is None else stay.until_s) - stay.since_s)
            + ("" if stay.until_s else " so far"),
            ", ".join(stay.nodes),
            Text(end, "dim"),
        ]
        for stay, end in zip(stays, ends, strict=True)
    ]
    columns = {
        "from unit" if work.is_simulated and name == "from step" else name: how
        for name, how in _COLUMNS.items()
    }
    return fitted(Text(job, "bold"), columns, rows, _DROP, out())


def _draw(
    job: str, stays: Sequence[Stay], name: str, samples: Sequence[Written], now_s: float, path: Path
) -> None:
    try:
        from simulator.timeline_plot import FORMATS, draw
    except ModuleNotFoundError as error:
        fail(f"--plot: needs {error.name}; install `tidegate[sim]`.")
    if path.suffix.lower() not in FORMATS:
        fail(f"--plot: {path} is no kind of picture known here; end it in {', '.join(FORMATS)}.")
    blocks = [
        (stay.since_s, stay.until_s or now_s, stay.gpus, stay.pool, f"{stay.how} {stay.gpus}")
        for stay in stays
    ]
    try:
        draw(job, blocks, [(one.at_s, one.value) for one in samples], path, name)
    except OSError as error:
        fail(f"--plot: {path} cannot be written: {error.strerror or error}.")
