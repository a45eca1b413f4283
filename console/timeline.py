"""`tidegate timeline JOB`: where a job ran, when and how large; as a table or a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from console.columns import LEFT, RIGHT, Columns, fitted
from console.forms import Found, looks
from console.output import fail, out, say
from console.source import Source
from explain.metrics import Curves
from explain.moments import duration
from explain.spans import Stay

_COLUMNS: Columns = {
    "after": LEFT,
    "how": LEFT,
    "GPUs": RIGHT,
    "pool": LEFT,
    "from step": RIGHT,
    "for": LEFT,
    "nodes": {"overflow": "fold", "ratio": 1},
}
_DROP = ("pool", "from step")


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

    Where its outputs are is told as well, once they are kept.

    Example: tidegate timeline job-0042 --log run.db --plot moves.png
    """
    if loss is not None and metric is not None:
        fail("--loss and --metric: each says what is drawn; leave one of the two out.")
    stays, now_s = at.stays(job).it, at.overview().it.now_s
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
    kept = at.why(job, 80).document.outputs
    document = {"job": job, "stays": stays, "curves": curves, "outputs": kept}
    told = [] if kept is None else [Text(f"Its outputs: {kept}.")]
    return Found(document, [_table(job, stays, now_s), *told])


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


def _table(job: str, stays: Sequence[Stay], now_s: float) -> Table:
    rows = [
        [
            duration(stay.since_s - stays[0].since_s),
            stay.how,
            str(stay.gpus),
            stay.pool,
            "" if stay.step is None else f"{stay.step:,}",
            duration((now_s if stay.until_s is None else stay.until_s) - stay.since_s)
            + ("" if stay.until_s else " so far"),
            ", ".join(stay.nodes),
        ]
        for stay in stays
    ]
    return fitted(Text(job, "bold"), _COLUMNS, rows, _DROP, out())


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
