"""One application of the Pollux profiles: measured step times and training curves as arrays.

The model is that of the simulator published with Pollux (OSDI '21), rebuilt from a description.
An iteration at batch M = R b (s + 1), on R GPUs with micro-batches of b and s accumulation steps:

    time = step + (step - sync) s                     # only the last pass waits for gradients
    gain = (var + sqr) / (var M0 / M + sqr)           # progress, in iterations at batch M0

`step` and `sync` are interpolated between measured micro-batches of the same placement, else
between (nodes, GPUs, micro-batch); `sqr` and `var` between the curves measured at two batches.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from scheduler.policies.interface import Floats, Ints
from simulator.csv_rows import WorkloadError
from simulator.physics.mesh import Mesh
from simulator.pollux_profiles import APPS, numbers, validations

#: Batch sizes tried for a placement, in geometric steps.
BATCHES = 50
#: More nodes than that were not measured: they count as so many.
_NODES_MAX = 16
_EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Batch:
    """How a batch is made of micro-batches on each GPU."""

    micro: int
    passes: int  #: Micro-batches before an update: accumulation steps and one.


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best batch of a placement in each epoch. E epochs."""

    goodput: Floats  #: (E,) progress per second.
    batch: tuple[Batch, ...]  #: (E,)


class App:
    """A profiled application. E epochs, V measured batches."""

    def __init__(self, folder: Path) -> None:
        facts = APPS[folder.name]
        self.name = folder.name
        self.epochs = facts.epochs
        self._lines: dict[str, tuple[Floats, Floats]] = {}
        self.local_max = 0
        self._read_steps(folder)
        self.local_max = min(self.local_max, facts.local_max)
        self._read_curves(folder)
        self._times: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        #: What users of the profile computed from it, under keys of theirs.
        self.tables: dict[tuple[object, ...], Floats] = {}
        self._gains: dict[int, Floats] = {}
        self._noises: dict[int, tuple[Floats, Floats]] = {}
        self._tuned: dict[tuple[int, ...], Tuned | None] = {}

    # --- files --------------------------------------------------------------------------------

    def _read_steps(self, folder: Path) -> None:
        columns = ("placement", "local_bsz", "step_time", "sync_time")
        rows = numbers(folder / "placements.csv", columns)
        by_name: dict[str, list[tuple[float, float, float]]] = {}
        grouped: dict[tuple[int, int, float], list[tuple[float, float]]] = {}
        for code, local, step_s, sync_s in rows:
            name = str(int(code))
            by_name.setdefault(name, []).append((local, step_s, sync_s))
            gpus = sum(map(int, name))
            grouped.setdefault((len(name), gpus, local), []).append((step_s, sync_s))
        for name, line in by_name.items():
            table = np.array(sorted(line))
            self._lines[name] = table[:, 0], table[:, 1:]
        measured = [int(row[1]) for row in rows]
        self.local_min, self.local_max = min(measured), max(measured)
        points = [[*key, *np.mean(grouped[key], axis=0)] for key in sorted(grouped)]
        more = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        if (folder / "scalability.csv").is_file():
            points += [[*row] for row in numbers(folder / "scalability.csv", more)]
        self._points = np.array(points, dtype=np.float64)

    def _read_curves(self, folder: Path) -> None:
        curves = validations(folder, ("progress", "iteration", "grad_sqr", "grad_var"))
        for batch, rows in curves.items():
            if len(rows) < self.epochs:
                path = folder / f"validation-{batch}.csv"
                raise WorkloadError(f"{path}: {len(rows)} epochs; {self.epochs} are needed.")
        self.measured: Ints = np.array(list(curves), dtype=np.int64)
        self.batch0, self.batch_max = int(self.measured[0]), int(self.measured[-1])
        table = np.array(list(curves.values()))  # (V, E, 4)
        #: (E,) progress at which each epoch ends: the least that any batch made in it.
        self.ends: Floats = table[:, :, 0].min(axis=0)
        self._ends: list[float] = self.ends.tolist()
        self._sqr, self._var = table[:, :, 2], table[:, :, 3]  # (V, E)

    @cached_property
    def _between(self) -> Mesh:
        return Mesh(self._points[:, :3], self._points[:, 3:])

    # --- time and gain ------------------------------------------------------------------------

    def step_times(self, gpus: tuple[int, ...], micro: Floats) -> Floats:
        """Return (m, 2) step and sync seconds of micro-batches (m,); NaN outside what is known."""
        line = self._lines.get(least_rotation(gpus))
        if line is not None:
            locals_, values = line
            inside = (micro >= locals_[0]) & (micro <= locals_[-1])
            found = np.stack([np.interp(micro, locals_, values[:, i]) for i in (0, 1)], axis=1)
            return np.where(inside[:, None], found, np.nan)
        nodes = np.full(len(micro), min(len(gpus), _NODES_MAX), dtype=np.float64)
        replicas = np.full(len(micro), sum(gpus), dtype=np.float64)
        return self._between.at(np.stack([nodes, replicas, micro], axis=1))

    def iteration_s(self, gpus: tuple[int, ...], batch: Batch) -> float:
        """Return seconds of one iteration; NaN if it cannot be known."""
        key = gpus, batch.micro
        if key not in self._times:
            step_s, sync_s = self.step_times(gpus, np.array([float(batch.micro)]))[0]
            self._times[key] = float(step_s), float(sync_s)
        step_s, sync_s = self._times[key]
        return step_s + (step_s - sync_s) * (batch.passes - 1)

    def noise(self, batch: Floats) -> tuple[Floats, Floats]:
        """Return (m, E) squared norms and variances of the gradient at batches (m,)."""
        clipped = np.clip(batch, self.measured[0], self.measured[-1])
        upper = np.clip(np.searchsorted(self.measured, clipped), 1, len(self.measured) - 1)
        low, high = self.measured[upper - 1], self.measured[upper]
        # Where one batch alone was measured, both are that one.
        share = ((clipped - low) / np.maximum(high - low, 1))[:, None]
        sqr = self._sqr[upper - 1] * (1 - share) + self._sqr[upper] * share
        var = self._var[upper - 1] * (1 - share) + self._var[upper] * share
        return sqr, var

    def noise_at(self, batch: int) -> tuple[Floats, Floats]:
        """Return (E,) squared norms and variances of the gradient at a batch."""
        if batch not in self._noises:
            sqr, var = self.noise(np.array([float(batch)]))
            self._noises[batch] = sqr[0], var[0]
        return self._noises[batch]

    def gains(self, batch: Floats) -> Floats:
        """Return (m, E) progress of an iteration at batches (m,) in each epoch."""
        sqr, var = self.noise(batch)
        scale = (batch / self.batch0)[:, None]
        found: Floats = (var + sqr) / (var / scale + sqr)
        return found

    def gain(self, batch: int) -> Floats:
        """Return (E,) progress of an iteration at a batch in each epoch."""
        if batch not in self._gains:
            self._gains[batch] = self.gains(np.array([float(batch)]))[0]
        return self._gains[batch]

    def goodput(self, gpus: tuple[int, ...], batch: Batch, epoch: int) -> float:
        """Return progress per second; 0 where it cannot run, or nobody measured it."""
        takes_s = self.iteration_s(gpus, batch)
        if not takes_s > 0.0:
            return 0.0
        return float(self.gain(sum(gpus) * batch.micro * batch.passes)[epoch]) / takes_s

    def epoch(self, progress: float) -> int:
        """Return the epoch that a job with so much progress is in, from 0."""
        return min(bisect_right(self._ends, progress), self.epochs - 1)

    # --- batches ------------------------------------------------------------------------------

    def fixed(self, batch: float, gpus: int) -> Batch | None:
        """Split a global batch over GPUs; None if it is too small for so many."""
        local = math.ceil(batch / gpus - _EPS)
        passes = math.ceil(local / self.local_max - _EPS)
        if gpus == 1 and batch > self.batch0:
            passes = max(passes, 2)  # the gradient's noise needs two samples
        micro = math.ceil(local / passes - _EPS)
        if micro < self.local_min:
            return None
        return Batch(min(micro, self.batch_max // (gpus * passes)), passes)

    def candidates(self, gpus: int) -> tuple[Floats, Floats]:
        """Return (m,) micro-batches and passes of the batches tried on so many GPUs."""
        least = max(self.batch0, self.local_min * gpus)
        if least > self.batch_max:
            return np.zeros(0), np.zeros(0)
        local = np.geomspace(least, self.batch_max, BATCHES) / gpus
        passes = np.ceil(local / self.local_max - _EPS)
        if gpus == 1:
            passes = np.where(local > self.batch0 + _EPS, np.maximum(passes, 2), passes)
        micro = np.ceil(local / passes - _EPS)
        micro = np.minimum(micro, self.batch_max // (gpus * passes))
        valid = (micro >= self.local_min) & (micro <= self.local_max)
        return micro[valid], passes[valid]

    def tuned(self, gpus: tuple[int, ...]) -> Tuned | None:
        """Return the best batch of a placement in each epoch, None if it cannot run."""
        if gpus not in self._tuned:
            self._tuned[gpus] = self._tune(gpus)
        return self._tuned[gpus]

    def _tune(self, gpus: tuple[int, ...]) -> Tuned | None:
        micro, passes = self.candidates(sum(gpus))
        times = self.step_times(gpus, micro)
        takes_s = times[:, 0] + (times[:, 0] - times[:, 1]) * (passes - 1)
        known = takes_s > 0.0  # not NaN, nor what `goodput` takes for no measurement
        if not known.any():
            return None
        micro, passes, takes_s = micro[known], passes[known], takes_s[known]
        goodput = self.gains(sum(gpus) * micro * passes) / takes_s[:, None]  # (m, E)
        best = goodput.argmax(axis=0)
        batches = tuple(Batch(int(micro[i]), int(passes[i])) for i in best)
        return Tuned(goodput[best, np.arange(self.epochs)], batches)


def least_rotation(gpus: tuple[int, ...]) -> str:
    """Name a placement: its GPUs per node, in the rotation that comes first."""
    return "".join(map(str, min(gpus[i:] + gpus[:i] for i in range(len(gpus)))))


def compact(gpus: int, per_node: int) -> tuple[int, ...]:
    """Return the GPUs on each of the fewest nodes that hold so many."""
    full, rest = divmod(gpus, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


@lru_cache(maxsize=64)
def load_app(folder: Path) -> App:
    """Read an application's profile, once in a process.

    Raises:
        WorkloadError: A file is missing or bad.
    """
    if not (folder / "placements.csv").is_file():
        raise WorkloadError(f"{folder}: no placements.csv. Copy the whole profile.")
    return App(folder)
