"""How long one cycle of the engine takes: `python -m benchmarks.decisions`.

A real engine runs a cluster that does at once what it is told: nodes of an inference pool with a
tide come and go, some jobs end and others arrive, so that most cycles are the ordinary ones: little
to change. A cycle is all of `TimePassed`: what is due, the columns of the snapshot, the policy's
plan, and its adoption; what is left is checks, claims and nodes that go back. Not in it is what
the scheduler's process does after each tick, where nobody waits for it: rows of what changed, and
Python's look for garbage. Jobs that come just before a cycle are in it. *Cold* is the first cycle:
nothing runs and all jobs wait, as when a cell begins; they came in the ticks before.

Every figure is that of the best of several runs (`--repeat`), by its mean: other work on the
machine only ever adds to it. For the same reason CPU time stands beside wall time, and is what
`--plot` draws: a cycle is one thread that waits for nothing. The parts are CPU time.
"""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.busy_cell import PARTS, Cell, Spent
from benchmarks.figures import parser_of, write
from scheduler import garbage
from scheduler.policies.registry import POLICIES

#: GPUs and active jobs.
SIZES = ((64, 20), (512, 100), (2_048, 400), (10_000, 5_000))
#: Cold starts measured at each size; each is of another cluster.
COLD = 3
SEED = 7


def joined(found: Sequence[Spent]) -> Spent:
    """Put cycles of several runs together."""
    return Spent(
        np.concatenate([one.wall_s for one in found]),
        np.concatenate([one.cpu_s for one in found]),
        np.concatenate([one.parts_s for one in found]),
    )


def run(seconds: float = 4.0) -> dict[str, float]:
    """Measure; returns milliseconds per cycle, mean and 99th percentile, by GPUs and jobs.

    Args:
        seconds: Time to spend, shared among the sizes.
    """
    results: dict[str, float] = {}
    for gpus, running, waiting in ((64, 20, 10), (1000, 200, 50)):
        times = cycles("tide", gpus, running + waiting, seconds / 2).steady().wall_s
        results[f"tide_{gpus}_gpus_mean_ms"] = round(1e3 * float(times.mean()), 3)
        results[f"tide_{gpus}_gpus_p99_ms"] = round(1e3 * float(np.quantile(times, 0.99)), 3)
        results[f"tide_{gpus}_gpus_cycles"] = float(len(times))
    return results


def rows(
    names: list[str], sizes: list[tuple[int, int]], seconds: float, repeat: int
) -> list[dict[str, Any]]:
    """Measure each policy at each size, cold and steady, for some seconds each, several times."""
    found = []
    for name in names:
        for gpus, jobs in sizes:
            cold = [
                _best([cycles(name, gpus, jobs, 0.0, s) for _ in range(repeat)]) for s in _SEEDS
            ]
            steady = [cycles(name, gpus, jobs, seconds).steady() for _ in range(repeat)]
            for mode, spent in (("cold", joined(cold)), ("steady", _best(steady))):
                row = {"policy": name, "gpus": gpus, "jobs": jobs, "mode": mode, **_row(spent)}
                found.append(row)
                print(_line(row), file=sys.stderr, flush=True)
    return found


_SEEDS = range(SEED, SEED + COLD)


def _best(runs: list[Spent]) -> Spent:
    return min(runs, key=lambda spent: spent.mean_s)


def _row(spent: Spent) -> dict[str, float]:
    wall = spent.wall_s
    figures = {
        "mean_ms": wall.mean(),
        "p99_ms": np.quantile(wall, 0.99),
        "max_ms": wall.max(),
        "cpu_ms": spent.cpu_s.mean(),
        "cpu_p99_ms": np.quantile(spent.cpu_s, 0.99),
    }
    figures |= {f"{part}_ms": s for part, s in zip(PARTS, spent.parts_s.mean(axis=0), strict=True)}
    return {key: round(1e3 * float(s), 3) for key, s in figures.items()} | {"cycles": len(wall)}


_COLUMNS = ("mean_ms", "p99_ms", "max_ms", "cpu_ms", "cpu_p99_ms", *(f"{p}_ms" for p in PARTS))
_HEAD = " ".join(
    [f"{'policy':12} {'gpus':>6} {'jobs':>5} {'mode':6}", *(f"{c:>10}" for c in _COLUMNS), "cycles"]
)


def _line(row: dict[str, Any]) -> str:
    who = f"{row['policy']:12} {row['gpus']:6} {row['jobs']:5} {row['mode']:6}"
    return " ".join([who, *(f"{row[c]:10.2f}" for c in _COLUMNS), f"{row['cycles']:6}"])


def cycles(name: str, gpus: int, jobs: int, seconds: float, seed: int = SEED) -> Spent:
    """Run cycles for some seconds. The first is a cold start; without seconds it is the only one.

    Args:
        name: Of the policy.
        gpus: In the cluster, edge servers and the headroom of the inference pool not counted.
        jobs: Active ones.
        seconds: Wall time to spend, that of the cluster's own doings included.
        seed: Another cluster.
    """
    garbage.put_off()  # as in the scheduler's process
    cell = Cell(name, gpus, seed)
    for _ in range(jobs):
        cell.submit()
    gc.collect()
    cell.rest()
    spent = [cell.cycle()]
    stop_s = perf_counter() + seconds
    while seconds and (len(spent) < 4 or perf_counter() < stop_s):
        cell.work()
        cell.rest()
        for _ in range(jobs - cell.live):
            cell.submit()
        spent.append(cell.cycle())
    return joined(spent)


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw the mean of each policy against the number of jobs, cold and steady, beside n log n."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6), layout="constrained")
    for axes, mode in zip(figure.subplots(1, 2, sharey=True), ("steady", "cold"), strict=True):
        policies = dict.fromkeys(row["policy"] for row in found)
        for index, name in enumerate(policies):
            own = [row for row in found if row["policy"] == name and row["mode"] == mode]
            style = {"color": "black", "linewidth": 2.5, "zorder": 9} if name == "tide" else {}
            dash = ("-", "--", ":")[index // 10 % 3]
            points = [row["jobs"] for row in own], [row["cpu_ms"] for row in own]
            axes.plot(*points, marker="o", markersize=3, label=name, linestyle=dash, **style)
        first = [row for row in found if row["policy"] == found[0]["policy"]]
        last = next(row for row in reversed(first) if row["mode"] == mode)
        jobs = np.geomspace(first[0]["jobs"], last["jobs"], 50)
        guide = last["cpu_ms"] * jobs * np.log(jobs) / (last["jobs"] * np.log(last["jobs"]))
        axes.plot(jobs, guide, color="grey", linewidth=7, alpha=0.3, label="n log n")
        axes.set(xscale="log", yscale="log", xlabel="active jobs", title=mode)
        axes.set_ylim(bottom=0.5 * min(row["cpu_ms"] for row in found))
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].set_ylabel("mean CPU time of a cycle, ms")
    figure.axes[1].legend(fontsize=7, ncols=2, handlelength=3.5)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Measure and print; the rows as JSON where asked."""
    parser = parser_of("decisions", __doc__)
    parser.add_argument("--policy", default=",".join(POLICIES), help="names, by commas (all)")
    parser.add_argument(
        "--sizes",
        default=",".join(f"{gpus}x{jobs}" for gpus, jobs in SIZES),
        help="GPUSxJOBS, by commas (%(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (2)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the best counts (3)")
    parser.add_argument("--plot", metavar="PATH", help="draw means against jobs (matplotlib)")
    options = parser.parse_args()
    names = options.policy.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        parser.error(f"no policy is called {unknown[0]!r}; there are: {', '.join(POLICIES)}")
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
    print(_HEAD, file=sys.stderr)
    found = rows(names, [(gpus, jobs) for gpus, jobs in sizes], options.seconds, options.repeat)
    write(options.json, rows=found)
    if options.plot:
        draw(found, Path(options.plot))
    return 0


if __name__ == "__main__":
    sys.exit(main())
