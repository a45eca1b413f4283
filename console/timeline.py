"""`tidegate timeline JOB`: where a job ran, when and how large; as a table or a picture."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from bus.contract import Bus
from console.output import JsonPath, duration, emit_json, fail, out, say
from console.reading import DEFAULT_LOG, CellName, LogAddress, Reading, read_bus, with_log
from console.story import Story, read_story

_ENDS = ("JobQueued", "JobMigrating", "JobCompleted", "JobFailed", "JobCancelled")


@dataclass(frozen=True, slots=True)
class Stay:
    """A stretch of time on the same GPUs. Moments in seconds since the Unix epoch."""

    since_s: float
    until_s: float | None  #: None: it is there still.
    pool: str
    nodes: tuple[str, ...]
    gpus: int
    #: How it came there: started, migrated, scaled.
    how: str
    step: int | None  #: That it began from, if it was started.


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that the job wrote down about itself."""

    at_s: float
    value: float


def timeline(
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
    log: LogAddress = DEFAULT_LOG,
    cell: CellName = None,
    loss: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What the job wrote: lines of a Unix time first, a value last."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """Show where a job ran and how large; with --loss and --plot, its loss over its moves.

    Example: tidegate timeline job-0042 --log run.db --plot moves.png
    """

    async def ask(bus: Bus) -> tuple[Reading, Story]:
        reading = await read_bus(bus, cell)
        return reading, await read_story(bus, reading.cell, job, reading.state.number)

    reading, story = with_log(log, ask)
    if not story.events:
        fail(f"{job}: no such job in this log; `tidegate jobs --all` lists all.")
    stays = list(stays_of(story))
    samples = [] if loss is None else samples_of(loss)
    if plot is not None:
        drawn = [one for one in samples if math.isfinite(one.value)]
        _draw(job, stays, drawn, reading.state.now_s, plot)
        left_out = len(samples) - len(drawn)
        say(f"Drawn: {plot}." + (f" Left out: {left_out} losses, nan or inf." if left_out else ""))
    if json_path is not None:
        emit_json({"job": job, "stays": [_document(stay) for stay in stays]}, json_path)
    if json_path != "-":
        out().print(_table(job, stays, reading))


def stays_of(story: Story) -> Iterator[Stay]:
    """Give the stretches of a job's life on GPUs, in order; empty ones are left out."""
    open_: dict[str, Any] | None = None
    migrated = False

    def closed(until_s: float | None) -> Iterator[Stay]:
        if open_ is not None and (until_s is None or until_s > open_["since_s"]):
            yield Stay(until_s=until_s, **open_)

    for one in story.events:
        if one.kind == "GangStarting":
            yield from closed(one.at_s)
            how = "migrated" if migrated else "started"
            pool, step = one.fields["pool"], one.fields["step"]
        elif one.kind == "GangScaling" and open_ is not None:
            yield from closed(one.at_s)
            how, pool, step = "scaled", open_["pool"], None
        elif one.kind in _ENDS:
            yield from closed(one.at_s)
            open_, migrated = None, one.kind == "JobMigrating"
            continue
        else:
            continue
        allocation = one.fields["allocation"]
        open_ = {
            "since_s": one.at_s,
            "pool": pool,
            "nodes": tuple(sorted(allocation)),
            "gpus": sum(map(len, allocation.values())),
            "how": how,
            "step": step,
        }
    yield from closed(None)


def samples_of(path: Path) -> list[Sample]:
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
        found.append(Sample(at_s, value))
    return sorted(found, key=lambda sample: sample.at_s)


def _document(stay: Stay) -> dict[str, Any]:
    return {
        "since_s": stay.since_s,
        "until_s": stay.until_s,
        "pool": stay.pool,
        "nodes": list(stay.nodes),
        "gpus": stay.gpus,
        "how": stay.how,
        "step": stay.step,
    }


def _table(job: str, stays: Sequence[Stay], reading: Reading) -> Table:
    table = Table(title=Text(job, "bold"), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("after", "how", "GPUs", "pool", "nodes", "from step", "for"):
        table.add_column(name, justify="right" if name in ("GPUs", "from step") else "left")
    for stay in stays:
        ended_s = reading.state.now_s if stay.until_s is None else stay.until_s
        table.add_row(
            duration(stay.since_s - stays[0].since_s),
            stay.how,
            str(stay.gpus),
            stay.pool,
            ", ".join(stay.nodes),
            "" if stay.step is None else f"{stay.step:,}",
            duration(ended_s - stay.since_s) + ("" if stay.until_s else ", still there"),
        )
    return table


def _draw(
    job: str, stays: Sequence[Stay], samples: Sequence[Sample], now_s: float, path: Path
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
        draw(job, blocks, [(one.at_s, one.value) for one in samples], path)
    except OSError as error:
        fail(f"--plot: {path} cannot be written: {error.strerror or error}.")
