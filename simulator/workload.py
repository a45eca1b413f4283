"""Training jobs and when they arrive: read from public trace formats, fitted to a demo's hours.

Nothing is changed silently: whatever is not as the file has it is said in `Workload.notes`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from schemas.events import JobSubmitted
from simulator.csv_rows import BadRow, WorkloadError, read_table
from simulator.models import MODELS
from simulator.pollux_profiles import steps_at, tuned_rate
from simulator.profiles import Profiles, RateTable, builtin_table
from simulator.trace_formats import TraceJob, left_out_of, no_jobs, parse_table, recognise

__all__ = ["BadRow", "JobArrival", "Workload", "WorkloadError", "read_workload"]

#: Which part of a demo's hours jobs arrive in; the rest is for finishing what has begun.
ARRIVAL_SHARE = 0.75
#: A window with fewer jobs than this is dull: the whole trace is compressed instead.
WINDOW_JOBS_MIN = 20


@dataclass(frozen=True, slots=True)
class JobArrival:
    """A job, and when it arrives, in seconds after the workload's start."""

    at_s: float
    submission: JobSubmitted  #: Without a deadline; `Workload.submissions` sets it.
    deadline_after_s: float | None  #: After the arrival.
    gpus_asked: int  #: What its tenant asked for; policies with fixed sizes give exactly this.

    @property
    def gpu_s(self) -> float:
        """GPU-seconds that the job takes at the size nearest to what was asked for."""
        job = self.submission
        point = min(job.rates, key=lambda one: (abs(one.gpus - self.gpus_asked), one.gpus))
        assert job.total_steps is not None  # traces say how long their jobs were
        return job.total_steps * job.samples_per_step / point.samples_per_s * point.gpus


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs by arrival. `notes` are sentences for people."""

    jobs: tuple[JobArrival, ...]
    name: str
    source_format: str
    notes: tuple[str, ...] = ()
    #: Inference rows of a DeepBoot file: (at_s, application, duration_s), one GPU each.
    services: tuple[tuple[float, str, float], ...] = ()

    @property
    def span_s(self) -> float:
        """When the last job arrives."""
        return self.jobs[-1].at_s if self.jobs else 0.0

    def submissions(self, start_s: float) -> Iterator[tuple[float, JobSubmitted]]:
        """Give (moment, submission) by arrival, deadlines absolute, for a start at `start_s`."""
        for job in self.jobs:
            at_s = start_s + job.at_s
            if job.deadline_after_s is None:
                yield at_s, job.submission
            else:
                deadline_s = at_s + job.deadline_after_s
                yield at_s, job.submission.model_copy(update={"deadline_s": deadline_s})

    def _compress(self, factor: float) -> "Workload":
        """Let jobs arrive `factor` times faster; work and deadline slack stay."""
        jobs = tuple(replace(job, at_s=job.at_s / factor) for job in self.jobs)
        services = tuple((at_s / factor, app, for_s) for at_s, app, for_s in self.services)
        note = f"Jobs arrive {factor:.3g} times as fast; their work and deadline slack are as were."
        return replace(self, jobs=jobs, services=services, notes=(*self.notes, note))

    def fit(self, hours: float) -> "Workload":
        """Choose what to show of a workload in a run of `hours`.

        A trace that is short enough stays whole. Of a longer one, the window of 3/4 of the hours
        with the most arrivals is kept as it is: real gaps, real work, real deadlines. Only if
        that window has fewer than 20 jobs (and the trace more), all arrivals are compressed into
        3/4 of the hours. Fit the fleet to the result with `simulator.scenario.scenario_for`.

        Raises:
            WorkloadError: `hours` is not above 0.
        """
        if not hours > 0.0:
            raise WorkloadError(f"hours: {hours} is not a duration. Give a number above 0.")
        window_s = hours * 3600.0 * ARRIVAL_SHARE
        if self.span_s <= window_s:
            return self
        times = [job.at_s for job in self.jobs]
        counts = [bisect_left(times, at_s + window_s) - i for i, at_s in enumerate(times)]
        busiest = max(range(len(times)), key=lambda i: (counts[i], -i))
        if counts[busiest] < min(WINDOW_JOBS_MIN, len(times)):
            return self._compress(self.span_s / window_s)
        return self._window(times[busiest], window_s)

    def _window(self, from_s: float, window_s: float) -> "Workload":
        jobs = tuple(
            replace(job, at_s=job.at_s - from_s)
            for job in self.jobs
            if from_s <= job.at_s < from_s + window_s
        )
        services = tuple(
            (at_s - from_s, app, for_s)
            for at_s, app, for_s in self.services
            if from_s <= at_s < from_s + window_s
        )
        note = (
            f"Only the {len(jobs)} jobs of the busiest {window_s / 3600.0:.3g} hours "
            f"(from hour {from_s / 3600.0:.1f}) of {len(self.jobs)}; nothing else is changed."
        )
        return replace(self, jobs=jobs, services=services, notes=(*self.notes, note))


def read_workload(path: Path, *, profiles: Profiles | None = None) -> Workload:
    """Read a workload of any known format; the first job arrives at 0.

    Args:
        path: an ElasticFlow, Pollux, DeepBoot or Philly-like CSV file, told by its header.
        profiles: throughput tables; without them a built-in curve through the row's duration.

    Raises:
        WorkloadError: the file is unusable, or rows are bad.
    """
    table = read_table(path)
    kind = recognise(path, table.header)
    read = parse_table(table, kind)
    rows, services, bad = read.jobs, read.services, read.bad
    arrivals: list[JobArrival] = []
    maker = _Maker(profiles)
    rows.sort(key=lambda row: (row.submit_s, row.line))
    start_s = rows[0].submit_s if rows else 0.0
    for row in rows:
        try:
            arrivals.append(maker.arrival(row, row.submit_s - start_s))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            problem = f"makes an impossible job ({field}: {first['msg']})"
            bad.append(BadRow(row.line, "duration", f"{row.duration_s}", problem))
    if bad:
        count = len({one.line for one in bad})
        lines = f"{count} bad {'row' if count == 1 else 'rows'}"
        raise WorkloadError(f"{path}: {lines} in a {kind.name} file. Correct them.", bad)
    if not arrivals:
        raise no_jobs(path, table, read)
    notes = list(maker.notes())
    if read.idle:
        notes.append(left_out_of(table, read))
    used = set(kind.columns(table.header).values())
    ignored = [name for index, name in enumerate(table.header) if name and index not in used]
    if ignored:
        notes.append(f"Columns not used: {', '.join(ignored[:20])}.")
    if services:
        notes.append(
            f"{len(services)} inference rows are no training jobs; they are in `services`."
        )
    ordered = sorted(services, key=lambda row: (row.submit_s, row.line))
    return Workload(
        jobs=tuple(arrivals),
        name=path.stem,
        source_format=kind.name,
        notes=tuple(notes),
        services=tuple(
            (row.submit_s - start_s, row.application, row.duration_s) for row in ordered
        ),
    )


class _Maker:
    """Turns rows into submissions, and remembers what it had to assume."""

    def __init__(self, profiles: Profiles | None) -> None:
        self._profiles = profiles
        self._curved: dict[str, int] = {}
        self._equal_samples = 0
        self._typical: dict[str, int] = {}

    def arrival(self, row: TraceJob, at_s: float) -> JobArrival:
        table = None if self._profiles is None else self._profiles.find(row.model, row.batch)
        steps = self._steps(row, table)
        if table is None:
            key = f"{row.model}@{row.batch:g}"
            self._curved[key] = self._curved.get(key, 0) + 1
            table = self._curve(row, steps)
        facts = MODELS.get(row.model)
        if facts is not None:
            self._typical[row.model] = facts.memory_mib
        submission = JobSubmitted(
            job=row.job,
            tenant=row.tenant,
            model=row.model,
            gpus_min=table.gpus_min,
            gpus_max=table.gpus_max,
            total_steps=steps,
            samples_per_step=row.batch,
            rates=list(table.rates),
            memory_mib=0 if facts is None else facts.memory_mib,
            checkpoint_mib=0 if facts is None else facts.checkpoint_mib,
        )
        slack_s = None if row.deadline_s is None else row.deadline_s - row.submit_s
        return JobArrival(at_s, submission, slack_s, row.gpus)

    def _steps(self, row: TraceJob, table: RateTable | None) -> int:
        if row.steps is not None:
            return row.steps
        if table is not None and self._profiles is not None:
            steps = self._profiles.steps.get((row.model, int(row.batch)))
            if steps is not None:
                return steps
        self._equal_samples += 1
        return steps_at(row.model, row.batch)

    def _curve(self, row: TraceJob, steps: int) -> RateTable:
        if row.duration_s is not None:
            rate = steps * row.batch / row.duration_s
            return builtin_table(row.model, row.batch, row.gpus, rate)
        gpus, rate = tuned_rate(row.model)
        return builtin_table(row.model, row.batch, gpus, rate)

    def notes(self) -> Iterator[str]:
        if self._curved:
            names = ", ".join(sorted(self._curved)[:8]) + (", …" if len(self._curved) > 8 else "")
            where = (
                "no profiles given" if self._profiles is None else f"not in {self._profiles.name}"
            )
            yield (
                f"{sum(self._curved.values())} jobs have the built-in speed-up curve, "
                f"{where}: {names}."
            )
        if self._equal_samples:
            yield (
                f"{self._equal_samples} Pollux jobs take as many samples as at their initial "
                "batch; their profiles would say how many really."
            )
        if self._typical:
            yield (
                "GPU memory and checkpoint sizes are typical for the model, not from the file: "
                f"{', '.join(sorted(self._typical))}."
            )
