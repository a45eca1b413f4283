"""The three kinds of workload file, told apart by their header, and what a row of each says.

Columns that are not named here are not used, so exports with more columns need no trimming;
`Workload.notes` names them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from simulator.csv_rows import BadRow, Row, Table, WorkloadError, is_number, read_table
from simulator.pollux_profiles import APPS

#: The year 2286; leaves room below the limit of a moment in an event.
_MOMENT_MAX = 1e10
_DURATION_MAX = 315_360_000.0
_GPUS_MAX = 65_536
_STEPS_MAX = 2**53


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A training job as its row has it. Times in seconds on the file's own axis."""

    line: int
    job: str
    submit_s: float
    gpus: int
    model: str
    batch: float
    steps: int | None  #: None: for the profiles to say.
    duration_s: float | None  #: On `gpus` GPUs; None: for the profiles to say.
    deadline_s: float | None = None
    tenant: str = "default"


@dataclass(frozen=True, slots=True)
class Service:
    """An inference row of a DeepBoot workload: one GPU for `duration_s`, from `submit_s` on."""

    line: int
    name: str
    submit_s: float
    application: str
    duration_s: float


Parsed = TraceJob | Service


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: its columns with their other names, and how to read a row."""

    name: str
    required: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]]
    #: What it gives counts if the row has no problems; None: of a job that used no GPU, whatever
    #: else is in the row.
    parse: Callable[[Row], Parsed | None]

    def missing(self, header: tuple[str, ...]) -> list[str]:
        """Name the required columns that a header lacks."""
        return [
            "/".join((column, *others))
            for column, others in self.required.items()
            if not any(name in header for name in (column, *others))
        ]

    def columns(self, header: tuple[str, ...]) -> dict[str, int]:
        """Map this format's column names to positions in a header."""
        found = {}
        for column, others in {**self.required, **self.optional}.items():
            names = [name for name in (column, *others) if name in header]
            if names:
                found[column] = header.index(names[0])
        return found


def _elasticflow(row: Row) -> Parsed:
    job, model = row.name("job_id"), row.name("model_name")
    submit_s = row.number("submission_time", 0.0, _MOMENT_MAX)
    steps = row.integer("num_iteration", 1, _STEPS_MAX)
    batch = row.number("batch_size", 1.0, 1e9)
    gpus = row.integer("num_gpu", 1, _GPUS_MAX)
    duration_s = row.number("duration", 0.0, _DURATION_MAX, above=True)
    deadline_s = None
    if not (row.has("best_effort") and row.integer("best_effort", 0, 1) == 1):
        deadline_s = row.number("deadline", 0.0, _MOMENT_MAX)
        if deadline_s < submit_s:
            row.bad("deadline", "is before the job's submission")
    return TraceJob(row.line, job, submit_s, gpus, model, batch, steps, duration_s, deadline_s)


def _pollux(row: Row) -> Parsed:
    name, model = row.name("name"), row.name("application")
    submit_s = row.number("time", 0.0, _MOMENT_MAX)
    if "infer" in model:
        duration_s = row.number("duration", 0.0, _DURATION_MAX, above=True)
        return Service(row.line, name, submit_s, model, duration_s)
    if model not in APPS and not any(one.column == "application" for one in row.problems):
        row.bad("application", f"is not one of {', '.join(sorted(APPS))}, or infer-…")
    gpus = row.integer("num_replicas", 1, _GPUS_MAX)
    batch = row.number("batch_size", 1.0, 1e9)
    return TraceJob(row.line, name, submit_s, gpus, model, batch, None, None)


def _generic(row: Row) -> Parsed | None:
    if _is_zero(row, "num_gpus") or _is_zero(row, "duration"):
        return None  # accounting has those that needed processors alone, and that never ran
    job = row.name("job_id")
    submit_s = _moment(row, "submit_time")
    gpus = row.integer("num_gpus", 0, _GPUS_MAX)
    duration_s = row.number("duration", 0.0, _DURATION_MAX)
    tenant_column = "tenant" if row.has("tenant") else "user"
    tenant = row.name(tenant_column) if row.has(tenant_column) else "default"
    model = row.name("model") if row.has("model") else "unknown"
    deadline_s = _moment(row, "deadline") if row.has("deadline") else None
    if deadline_s is None or row.problems:
        pass
    elif _is_date(row, "deadline") != _is_date(row, "submit_time"):
        kinds = ("is a date", "seconds") if _is_date(row, "deadline") else ("is seconds", "a date")
        row.bad("deadline", f"{kinds[0]}, but the submission {kinds[1]}")
    elif deadline_s < submit_s:
        row.bad("deadline", "is before the job's submission")
    # A step is a second's work of the recorded run, one sample each.
    steps = 1 if row.problems else max(1, round(duration_s))
    return TraceJob(
        row.line, job, submit_s, gpus, model, 1.0, steps, duration_s, deadline_s, tenant
    )


def _is_zero(row: Row, column: str) -> bool:
    text = row.text(column)
    return is_number(text) and float(text) == 0.0


def _is_date(row: Row, column: str) -> bool:
    return ":" in row.text(column)


def _moment(row: Row, column: str) -> float:
    text = row.text(column)
    if not text or is_number(text):
        return row.number(column, 0.0, _MOMENT_MAX)
    try:
        moment = datetime.fromisoformat(text if _is_date(row, column) else "")
    except ValueError:
        row.bad(column, "is neither seconds nor a time like 2017-10-03 06:21:04")
        return math.nan
    # Cluster logs that name no zone are read as UTC: only differences matter here.
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    try:
        seconds = moment.timestamp()
    except OverflowError:
        seconds = -1.0
    if not 0.0 <= seconds <= _MOMENT_MAX:
        row.bad(column, "is before 1970 or too far in the future")
        return math.nan
    return seconds


FORMATS: tuple[Format, ...] = (
    Format(
        "elasticflow",
        {
            "job_id": (),
            "submission_time": ("submit_time",),
            "num_iteration": ("iteration",),
            "model_name": (),
            "deadline": ("ddl",),
            "batch_size": (),
            "num_gpu": (),
            "duration": (),
        },
        {"best_effort": ()},
        _elasticflow,
    ),
    Format(
        "pollux",
        {"name": (), "time": (), "application": (), "num_replicas": (), "batch_size": ()},
        {"duration": ()},
        _pollux,
    ),
    Format(
        "philly",
        {
            "job_id": ("jobid",),
            "submit_time": ("submission_time", "submitted_time"),
            "num_gpus": ("num_gpu", "gpu_num", "gpus"),
            "duration": ("duration_s",),
        },
        {
            "tenant": ("vc", "virtual_cluster"),
            "user": (),
            "model": ("model_name",),
            "deadline": ("ddl",),
        },
        _generic,
    ),
)


def recognise(path: Path, header: tuple[str, ...]) -> Format:
    """Tell the format by the header.

    Raises:
        WorkloadError: no format has all its columns; it lists what each one lacks.
    """
    for one in FORMATS:
        if not one.missing(header):
            return one
    lacks = "\n".join(f"  {one.name}: lacks {', '.join(one.missing(header))}" for one in FORMATS)
    found = repr(", ".join(header)[:200])
    raise WorkloadError(
        f"{path}: the header fits no known format; it has {found}. Rename columns to fit one:\n"
        f"{lacks}"
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """What the rows of a file say."""

    jobs: list[TraceJob]
    services: list[Service]
    bad: list[BadRow]  #: What is wrong, by line.
    idle: int  #: Rows of jobs that used no GPU.


def parse_table(table: Table, kind: Format) -> Rows:
    """Read all rows."""
    jobs: list[TraceJob] = []
    services: list[Service] = []
    bad, idle = list(table.bad), 0
    first_line: dict[str, int] = {}
    dated: bool | None = None
    for row in table.named(kind.columns(table.header)):
        parsed = kind.parse(row)
        if row.problems:
            bad.extend(row.problems)
            continue
        if parsed is None:
            idle += 1
            continue
        name = parsed.name if isinstance(parsed, Service) else parsed.job
        if name in first_line:
            column = "name" if kind.name == "pollux" else "job_id"
            bad.append(BadRow(row.line, column, name, f"is on line {first_line[name]} too"))
            continue
        first_line[name] = row.line
        if isinstance(parsed, Service):
            services.append(parsed)
            continue
        is_date = _is_date(row, "submit_time")
        dated = is_date if dated is None else dated
        if is_date != dated:
            row.bad("submit_time", "mixes dates and seconds; earlier rows have the other kind")
            bad.extend(row.problems)
            continue
        jobs.append(parsed)
    return Rows(jobs, services, sorted(bad, key=lambda one: (one.line, one.column)), idle)


def no_jobs(path: Path, table: Table, rows: Rows) -> WorkloadError:
    """Say that a file has no job to run, and why its rows are none."""
    left_out = f": {left_out_of(table, rows)}" if rows.idle else "."
    return WorkloadError(f"{path}: has no training job that can be used{left_out}")


def left_out_of(table: Table, rows: Rows) -> str:
    """Say how many rows are left out, and why."""
    return (
        f"{rows.idle:,} of {len(table.rows):,} rows are left out: their jobs had no GPU, or ran "
        "for 0 s."
    )


def read_jobs(path: Path, kind: str | None = None) -> list[TraceJob]:
    """Read the training jobs of a file that has no bad row.

    Raises:
        WorkloadError: the file is unusable, has no job, or is of another kind than is asked for.
    """
    table = read_table(path)
    found = recognise(path, table.header)
    if kind not in (None, found.name):
        wanted = next(one for one in FORMATS if one.name == kind)
        raise WorkloadError(
            f"{path}: is a workload of kind {found.name}; this physics needs one with the columns "
            f"{', '.join(wanted.required)}."
        )
    rows = parse_table(table, found)
    if rows.bad:
        raise WorkloadError(f"{path}: bad rows. Correct them.", rows.bad)
    if not rows.jobs:
        raise no_jobs(path, table, rows)
    return rows.jobs
