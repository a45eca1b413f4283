"""Throughput tables: samples per second of a model at a global batch, by number of GPUs.

Without tables, a built-in curve (Amdahl's law, `simulator.models`) passes through the one point
that a workload's row gives: its GPUs and its duration.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from schemas.events import RatePoint
from simulator.csv_rows import BadRow, WorkloadError, read_table
from simulator.models import DEFAULT_SERIAL, MODELS, speedup
from simulator.pollux_profiles import has_pollux_layout, read_pollux_tables

_SIZE = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_NOT_RUNNABLE = frozenset({"", "nan"})
_BATCH = "global_batch_size"
#: Samples per second that a job may declare.
_SAMPLES_MOST = 1e9


@dataclass(frozen=True, slots=True)
class RateTable:
    """Rates of one model at one global batch, at every size that runs, as they were measured."""

    model: str
    batch: float
    rates: tuple[RatePoint, ...]

    @property
    def gpus_min(self) -> int:
        """The smallest size that runs."""
        return self.rates[0].gpus

    @property
    def gpus_max(self) -> int:
        """The largest size that pays: the smallest one with the highest rate."""
        return max(self.rates, key=lambda point: (point.samples_per_s, -point.gpus)).gpus


@dataclass(frozen=True, slots=True)
class Profiles:
    """Tables by (model, global batch), and where they are from."""

    name: str
    tables: Mapping[tuple[str, int], RateTable]
    #: Optimiser steps a job takes in all at this batch; only the Pollux profiles know.
    steps: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def find(self, model: str, batch: float) -> RateTable | None:
        """Give the table of a model at a batch, None if there is none."""
        return self.tables.get((model, int(batch))) if batch == int(batch) else None


def rate_table(model: str, batch: float, points: Sequence[tuple[int, float]]) -> RateTable | None:
    """Build a table from (GPUs, samples/s) points, sizes ascending; None if nothing runs."""
    rates = tuple(RatePoint(gpus=n, samples_per_s=rate) for n, rate in points if rate > 0.0)
    return RateTable(model, batch, rates) if rates else None


def builtin_table(model: str, batch: float, gpus: int, samples_per_s: float) -> RateTable:
    """Draw the built-in curve through `samples_per_s` at `gpus`.

    Sizes are the powers of two up to max(16, 2 x gpus), no further than the model is known to
    gain but always as far as `gpus`, and `gpus` itself.
    """
    facts = MODELS.get(model)
    serial = DEFAULT_SERIAL if facts is None else facts.serial
    top = max(16, 2 * gpus) if facts is None else min(max(16, 2 * gpus), facts.gpus_max)
    sizes = sorted({1 << power for power in range(17) if 1 << power <= top} | {gpus})
    one = samples_per_s / speedup(gpus, serial)
    points = [(n, samples_per_s if n == gpus else one * speedup(n, serial)) for n in sizes]
    if serial >= 1.0:  # more GPUs never help; rounding must not say otherwise
        points = [(n, samples_per_s) for n in sizes]
    table = rate_table(model, batch, points)
    assert table is not None
    return table


def load_profiles(directory: Path) -> Profiles:
    """Read a directory of ElasticFlow tables (`<model>.csv`) or of Pollux profiles (`<app>/`).

    Raises:
        WorkloadError: the directory has neither, or a table has bad cells.
    """
    try:
        if not directory.is_dir():
            raise WorkloadError(f"{directory}: not a directory. Give one with throughput tables.")
        if has_pollux_layout(directory):
            return _pollux(directory)
        files = sorted(directory.glob("*.csv"))
        inside = sorted(path.name for path in directory.iterdir() if any(path.glob("*.csv")))
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{str(directory)!r}: cannot be read ({error}).") from error
    if not files:
        hint = f"It has them in {', '.join(inside)}: give one of these." if inside else ""
        raise WorkloadError(
            f"{directory}: no <model>.csv with the columns {_BATCH},1,2,4,… and no "
            f"<model>/placements.csv. {hint}".rstrip()
        )
    tables: dict[tuple[str, int], RateTable] = {}
    for path in files:
        for table in _read_elasticflow(path):
            tables[table.model, int(table.batch)] = table
    return Profiles(f"ElasticFlow tables {directory.name}", MappingProxyType(tables))


def _pollux(directory: Path) -> Profiles:
    tables: dict[tuple[str, int], RateTable] = {}
    steps: dict[tuple[str, int], int] = {}
    for key, points, total_steps in read_pollux_tables(directory):
        table = rate_table(key[0], key[1], points)
        if table is not None:
            tables[key] = table
            steps[key] = total_steps
    return Profiles(
        f"Pollux profiles {directory.name}", MappingProxyType(tables), MappingProxyType(steps)
    )


def _read_elasticflow(path: Path) -> list[RateTable]:
    file = read_table(path)
    sizes = {name: index for index, name in enumerate(file.header) if _SIZE.fullmatch(name)}
    if _BATCH not in file.header or not sizes:
        raise WorkloadError(f"{path}: the header must be {_BATCH},1,2,4,… (GPU counts).")
    columns = {_BATCH: file.header.index(_BATCH), **sizes}
    bad: list[BadRow] = list(file.bad)
    tables = []
    first_line: dict[int, int] = {}
    for row in file.named(columns):
        batch = row.integer(_BATCH, 1, 2**40)
        if batch and (line := first_line.setdefault(batch, row.line)) != row.line:
            row.bad(_BATCH, f"is on line {line} too")
        points = []
        for name in sorted(sizes, key=int):
            if row.text(name).lower() in _NOT_RUNNABLE:
                continue
            # A table's are iterations; in samples there is a limit, too.
            rate = row.number(name, 0.0, min(1e6, _SAMPLES_MOST / max(batch, 1)))
            points.append((int(name), rate * batch))
        bad.extend(row.problems)
        if not row.problems:
            table = rate_table(path.stem, batch, points)
            if table is not None:
                tables.append(table)
    if bad:
        raise WorkloadError(f"{path}: bad rows in a throughput table. Correct them.", bad)
    return tables
