"""How long one cycle of a policy takes: `python -m benchmarks.decisions`.

A cluster runs by the policy's own plans: each cycle carries the last plan out, loans included, some
jobs end and others arrive, so that most cycles are the ordinary ones: little to change. Its own
inference pool has a tide, so that nodes come and go. *Cold* is the first cycle: nothing runs and
all jobs wait, as after a takeover of an empty cluster.

Every figure is that of the best of several runs (`--repeat`), by its mean: other work on the
machine only ever adds to it. For the same reason CPU time stands beside wall time, and is what
`--plot` draws: a cycle is one thread that waits for nothing.
"""

import argparse
import gc
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from scheduler.policies.interface import Kind, LoanPhase, Plan
from scheduler.policies.registry import POLICIES, make_policy
from tests.snapshots import Job, Pool, apply, snapshot

CYCLE_S, SLOT_S, DAY_S = 60.0, 300.0, 86_400.0
HISTORY_SLOTS = 2 * 288
#: GPUs and active jobs.
SIZES = ((64, 20), (512, 100), (2_048, 400), (10_000, 5_000))
#: Cold starts measured at each size; each is of another cluster.
COLD = 3
SEED = 7


@dataclass(frozen=True, slots=True, eq=False)
class Spent:
    """Seconds that t cycles took."""

    wall_s: np.ndarray  #: (t,)
    cpu_s: np.ndarray  #: (t,)

    def part(self, cycles: slice) -> "Spent":
        """Return that of some of the cycles."""
        return Spent(self.wall_s[cycles], self.cpu_s[cycles])

    @property
    def mean_s(self) -> float:
        """Wall time of a cycle."""
        return float(self.wall_s.mean())


def run(seconds: float = 4.0) -> dict[str, float]:
    """Measure; returns milliseconds per cycle, mean and 99th percentile, by GPUs and jobs.

    Args:
        seconds: Time to spend, shared among the sizes.
    """
    results: dict[str, float] = {}
    for gpus, running, waiting in ((64, 20, 10), (1000, 200, 50)):
        times = cycles("tide", gpus, running + waiting, seconds / 2).wall_s[1:]
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
            steady = [cycles(name, gpus, jobs, seconds).part(slice(1, None)) for _ in range(repeat)]
            for mode, spent in (("cold", _joined(cold)), ("steady", _best(steady))):
                row = {"policy": name, "gpus": gpus, "jobs": jobs, "mode": mode, **_row(spent)}
                found.append(row)
                print(_line(row), file=sys.stderr, flush=True)
    return found


_SEEDS = range(SEED, SEED + COLD)


def _best(runs: list[Spent]) -> Spent:
    return min(runs, key=lambda spent: spent.mean_s)


def _joined(parts: list[Spent]) -> Spent:
    return Spent(
        np.concatenate([part.wall_s for part in parts]),
        np.concatenate([part.cpu_s for part in parts]),
    )


def _row(spent: Spent) -> dict[str, float]:
    wall = spent.wall_s
    figures = {
        "mean_ms": wall.mean(),
        "p99_ms": np.quantile(wall, 0.99),
        "max_ms": wall.max(),
        "cpu_ms": spent.cpu_s.mean(),
        "cpu_p99_ms": np.quantile(spent.cpu_s, 0.99),
    }
    return {key: round(1e3 * float(s), 3) for key, s in figures.items()} | {"cycles": len(wall)}


_COLUMNS = ("mean_ms", "p99_ms", "max_ms", "cpu_ms", "cpu_p99_ms")
_HEAD = " ".join(
    [f"{'policy':12} {'gpus':>6} {'jobs':>5} {'mode':6}", *(f"{c:>10}" for c in _COLUMNS), "cycles"]
)


def _line(row: dict[str, Any]) -> str:
    who = f"{row['policy']:12} {row['gpus']:6} {row['jobs']:5} {row['mode']:6}"
    return " ".join([who, *(f"{row[c]:10.2f}" for c in _COLUMNS), f"{row['cycles']:6}"])


class _Cluster:
    """Pools whose loans follow the plans. The inference pool is an eighth of it at its least."""

    def __init__(self, gpus: int, now_s: float) -> None:
        nodes = gpus // 8
        self._lent = max(1, nodes // 4)
        self._load = 8 * self._lent * 0.3 * (1 + np.sin(np.arange(HISTORY_SLOTS) / 45))
        self._train = nodes - self._lent
        self._loan = {f"infer-{n:03}": LoanPhase.LENT for n in range(self._lent + 1)}
        for number in range(1 + int(self._needed(now_s)) // 8):  # its owner's now, and headroom
            self._loan[f"infer-{number:03}"] = LoanPhase.OWNED

    def _needed(self, at_s: float) -> float:
        """GPUs that the inference pool needs: up to half of them."""
        return 8 * self._lent * 0.25 * (1 + float(np.sin(2 * np.pi * at_s / DAY_S)))

    def pools(self, now_s: float) -> list[Pool]:
        """Return the pools as they are."""
        slot = now_s // SLOT_S
        past = (slot - np.arange(HISTORY_SLOTS)[::-1]) * SLOT_S
        tide = [self._needed(at_s) for at_s in past.tolist()]
        quiet = [0.0] * HISTORY_SLOTS
        loan = list(self._loan.values())
        return [
            Pool("edge", Kind.EDGE, nodes=2, gpus=1, speed=0.3, loan=LoanPhase.LENT, history=quiet),
            Pool("infer", Kind.INFERENCE, nodes=len(loan), speed=0.8, loan=loan, history=tide),
            Pool("train", nodes=self._train),
            Pool("owned", Kind.INFERENCE, nodes=2, history=self._load.tolist()),
        ]

    def carry_out(self, plan: Plan) -> None:
        """Let the nodes change hands that the plan says."""
        for node in plan.lend:
            if node in self._loan:
                self._loan[node] = LoanPhase.LENT
        for node in plan.reclaim:
            if node in self._loan:
                self._loan[node] = LoanPhase.OWNED


def cycles(name: str, gpus: int, jobs: int, seconds: float, seed: int = SEED) -> Spent:
    """Run cycles for some seconds. The first is a cold start; without seconds it is the only one.

    Args:
        name: Of the policy.
        gpus: In the cluster, edge servers and the headroom of the inference pool not counted.
        jobs: Active ones.
        seconds: Wall time to spend, that of building snapshots included.
        seed: Another cluster.
    """
    gc.set_threshold(50_000, 20, 20)  # as in the scheduler's process
    rng = np.random.default_rng(seed)
    made = 0

    def job(now_s: float) -> Job:
        nonlocal made
        made += 1
        low = int(rng.integers(0, 4))
        return Job(
            f"job-{made:05}",
            work_s=float(rng.lognormal(9, 1)),
            sizes=(1, 2, 4, 8, 16, 32)[low : low + int(rng.integers(1, 5))],
            power=float(rng.uniform(0.6, 0.95)),
            submit_s=now_s,
            waiting_since_s=now_s,
            deadline_s=now_s + float(rng.uniform(3000, 30000)) if rng.random() < 0.2 else np.inf,
            edge_allowed=bool(rng.random() < 0.3),
        )

    now_s = 1e6
    cluster = _Cluster(gpus, now_s)
    live = [job(now_s + i) for i in range(jobs)]
    policy = make_policy(name)
    wall_s: list[float] = []
    cpu_s: list[float] = []
    stop_s = perf_counter() + seconds
    while perf_counter() < stop_s or len(wall_s) < (4 if seconds else 1):
        seen = snapshot(cluster.pools(now_s), live, now_s=now_s)
        begin_s, begin_cpu_s = perf_counter(), process_time()
        plan = policy.plan(seen)
        cpu_s.append(process_time() - begin_cpu_s)
        wall_s.append(perf_counter() - begin_s)
        cluster.carry_out(plan)
        live = apply(seen, plan, live)
        live = [replace(j, work_s=j.work_s - CYCLE_S * sum(j.held.values()) ** 0.8) for j in live]
        live = [j for j in live if j.work_s > 0]
        live += [job(now_s) for _ in range(jobs - len(live))]
        now_s += CYCLE_S
    return Spent(np.array(wall_s), np.array(cpu_s))


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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.add_argument("--policy", default=",".join(POLICIES), help="names, by commas (all)")
    parser.add_argument(
        "--sizes",
        default=",".join(f"{gpus}x{jobs}" for gpus, jobs in SIZES),
        help="GPUSxJOBS, by commas (%(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (2)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the best counts (3)")
    parser.add_argument("--json", metavar="PATH", help="write the rows; - is standard output")
    parser.add_argument("--plot", metavar="PATH", help="draw means against jobs (matplotlib)")
    options = parser.parse_args()
    names = options.policy.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        parser.error(f"no policy is called {unknown[0]!r}; there are: {', '.join(POLICIES)}")
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
    print(_HEAD, file=sys.stderr)
    found = rows(names, [(gpus, jobs) for gpus, jobs in sizes], options.seconds, options.repeat)
    document = {"rows": found}
    if options.json == "-":
        sys.stdout.write(json.dumps(document) + "\n")
    elif options.json:
        Path(options.json).write_text(json.dumps(document) + "\n", encoding="utf-8")
    if options.plot:
        draw(found, Path(options.plot))
    return 0


if __name__ == "__main__":
    sys.exit(main())
