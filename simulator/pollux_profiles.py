"""Pollux (OSDI '21) training profiles, for jobs that keep the batch of their row.

A profile directory has `<app>/placements.csv`, `scalability.csv` and `validation-<batch>.csv`. A
size uses as few 4-GPU nodes as can be. Statistical efficiency counts only as the number of steps
that the profile needs at the row's batch; tuning the batch as a job runs is for a later release.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from simulator.csv_rows import WorkloadError, rows_of

GPUS_PER_NODE = 4
_MOST = 1e24  # squared norms of gradients reach 1e16
Points = list[tuple[int, float]]
#: By (nodes, GPUs), then local batch: (step, sync) in seconds.
Times = dict[tuple[int, int], dict[float, tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class PolluxApp:
    """What the workloads say nothing of. Source: design notes on the artifact, section A.4."""

    batch0: int  #: Initial batch, in whose iterations progress is counted.
    progress: float  #: Iterations at `batch0` in all.
    epochs: int
    local_max: int  #: Largest batch on one GPU.
    #: A tuned run of the whole job: GPUs, global batch, seconds.
    tuned: tuple[int, int, float]


APPS: Mapping[str, PolluxApp] = MappingProxyType(
    {
        "bert": PolluxApp(12, 14_774.0, 2, 12, (12, 384, 1589.0)),
        "cifar10": PolluxApp(128, 39_062.9, 100, 1024, (12, 4096, 573.0)),
        "ncf": PolluxApp(256, 194_174.0, 10, 32_768, (1, 32_768, 33.0)),
        "imagenet": PolluxApp(200, 576_525.6, 90, 200, (24, 3200, 31_396.0)),
        "deepspeech2": PolluxApp(20, 28_536.0, 80, 80, (12, 640, 2573.0)),
        "yolov3": PolluxApp(8, 103_444.0, 50, 8, (4, 64, 12_870.0)),
    }
)


def steps_at(app: str, batch: float) -> int:
    """Steps of a whole job if each took equally many samples' worth: at least 1."""
    facts = APPS[app]
    return max(1, round(facts.progress * facts.batch0 / batch))


def tuned_rate(app: str) -> tuple[int, float]:
    """Give the GPUs and the rate (samples of `steps_at` per second) of the tuned run."""
    gpus, batch, duration_s = APPS[app].tuned
    return gpus, steps_at(app, batch) * batch / duration_s


def has_pollux_layout(directory: Path) -> bool:
    """Whether a directory holds `<app>/placements.csv` of at least one known app."""
    return any((directory / app / "placements.csv").is_file() for app in APPS)


def read_pollux_tables(directory: Path) -> Iterator[tuple[tuple[str, int], Points, int]]:
    """Give ((app, batch), (GPUs, samples/s) points, total steps) of each profiled batch."""
    for app in sorted(APPS):
        if not (directory / app / "placements.csv").is_file():
            continue
        times = _step_times(directory / app)
        rows = validations(directory / app, ("progress", "iteration"))
        curves = {batch: tuple(zip(*epochs, strict=True)) for batch, epochs in rows.items()}
        # An epoch ends at the least progress that any batch made in it (section A.4).
        goal = min(float(progress[-1]) for progress, _ in curves.values())
        for batch, (progress, iterations) in curves.items():
            steps = max(1, round(float(np.interp(goal, progress, iterations))))
            yield (app, batch), _points(times, batch, APPS[app]), steps


def _points(times: Times, batch: int, app: PolluxApp) -> Points:
    points = []
    for gpus in sorted({gpus for _, gpus in times}):
        at = times.get((-(-gpus // GPUS_PER_NODE), gpus))
        if at is None:
            continue
        local = -(-batch // gpus)
        # One GPU above the initial batch accumulates at least twice, to measure gradient noise.
        passes = max(-(-local // app.local_max), 2 if gpus == 1 and batch > app.batch0 else 1)
        micro = -(-local // passes)
        locals_ = np.array(sorted(at))
        if not locals_[0] <= micro <= locals_[-1]:
            continue
        step, sync = (
            float(np.interp(micro, locals_, [at[size][which] for size in sorted(at)]))
            for which in (0, 1)
        )
        # Only the last of the accumulated passes waits for the others' gradients.
        step_s = step + (step - sync) * (passes - 1)
        if step_s > 0.0:
            points.append((gpus, batch / step_s))
    return points


def _step_times(folder: Path) -> Times:
    seen: dict[tuple[int, int], dict[float, list[tuple[float, float]]]] = {}
    rows = numbers(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time"))
    for placement, local, step, sync in rows:
        digits = [int(digit) for digit in str(int(placement))]
        seen.setdefault((len(digits), sum(digits)), {}).setdefault(local, []).append((step, sync))
    names = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    if (folder / "scalability.csv").is_file():
        for nodes, gpus, local, step, sync in numbers(folder / "scalability.csv", names):
            at = seen.setdefault((int(nodes), int(gpus)), {})
            at.setdefault(local, []).append((step, sync))
    return {
        size: {
            local: (sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs))
            for local, pairs in by_local.items()
        }
        for size, by_local in seen.items()
    }


def validations(folder: Path, names: tuple[str, ...]) -> dict[int, list[tuple[float, ...]]]:
    """Read these columns of each epoch, by batch, ascending; some batches may have fewer epochs.

    Raises:
        WorkloadError: There is no file of a batch, or one is bad.
    """
    found = {}
    for path in folder.glob("validation-*.csv"):
        batch = path.stem.removeprefix("validation-")
        if batch.isascii() and batch.isdigit() and int(batch) > 0:
            found[int(batch)] = numbers(path, names)[: APPS[folder.name].epochs]
    if not found:
        raise WorkloadError(f"{folder}: no validation-<batch>.csv. Copy the whole profile.")
    return dict(sorted(found.items()))


def numbers(path: Path, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    """Read columns of a profile's file, row by row.

    Raises:
        WorkloadError: a column is missing, or a row is bad.
    """
    # Sizes count from 1; a placement is a row of digits; times may be 0 (no sync on one GPU).
    low = {"placement": 1.0, "num_nodes": 1.0, "num_replicas": 1.0, "local_bsz": 1.0}
    return [
        tuple([row.number(name, low.get(name, 0.0), _MOST) for name in names])
        for row in rows_of(path, names)
    ]
