"""How long one cycle of a policy takes: `python -m benchmarks.decisions`.

A cluster runs by the policy's own plans: each cycle carries the last plan out, some jobs end and
others arrive, so that most cycles are the ordinary ones: little to change. *Cold* is the first:
nothing runs and all jobs wait, as after a takeover of an empty cluster.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from scheduler.policies.interface import Kind, LoanPhase
from scheduler.policies.registry import POLICIES, make_policy
from tests.snapshots import Job, Pool, apply, snapshot

CYCLE_S = 60.0
HISTORY_SLOTS = 2 * 288
#: GPUs and active jobs.
SIZES = ((64, 20), (512, 100), (2_048, 400), (10_000, 5_000))
#: Cold starts measured at each size; each is of another cluster.
COLD = 3


def run(seconds: float = 4.0) -> dict[str, float]:
    """Measure; returns milliseconds per cycle, mean and 99th percentile, by GPUs and jobs.

    Args:
        seconds: Time to spend, shared among the sizes.
    """
    results: dict[str, float] = {}
    for gpus, running, waiting in ((64, 20, 10), (1000, 200, 50)):
        _, times = cycles("tide", gpus, running + waiting, seconds / 2)
        results[f"tide_{gpus}_gpus_mean_ms"] = round(1e3 * float(times.mean()), 3)
        results[f"tide_{gpus}_gpus_p99_ms"] = round(1e3 * float(np.quantile(times, 0.99)), 3)
        results[f"tide_{gpus}_gpus_cycles"] = float(len(times))
    return results


def rows(names: list[str], sizes: list[tuple[int, int]], seconds: float) -> list[dict[str, Any]]:
    """Measure each policy at each size, cold and steady, for some seconds each."""
    found = []
    for name in names:
        for gpus, jobs in sizes:
            cold = [cycles(name, gpus, jobs, 0.0, seed)[0] for seed in range(COLD - 1)]
            first, steady = cycles(name, gpus, jobs, seconds, COLD)
            for mode, times in (("cold", np.array([*cold, first])), ("steady", steady)):
                mean, p99, most = (round(1e3 * value, 3) for value in _summary(times))
                found.append(
                    {
                        "policy": name,
                        "gpus": gpus,
                        "jobs": jobs,
                        "mode": mode,
                        "mean_ms": mean,
                        "p99_ms": p99,
                        "max_ms": most,
                        "cycles": len(times),
                    }
                )
                print(
                    f"{name:12} {gpus:6} {jobs:5} {mode:6} {mean:10.2f} {p99:10.2f} {most:10.2f} "
                    f"{len(times):6}",
                    file=sys.stderr,
                )
    return found


def _summary(times: np.ndarray) -> tuple[float, float, float]:
    return float(times.mean()), float(np.quantile(times, 0.99)), float(times.max())


def cycles(
    name: str, gpus: int, jobs: int, seconds: float, seed: int = 7
) -> tuple[float, np.ndarray]:
    """Run cycles for some seconds; returns the time of the first, a cold start, and of others."""
    rng = np.random.default_rng(seed)
    nodes = gpus // 8
    lent = max(1, nodes // 4)
    loan = [LoanPhase.OWNED, *[LoanPhase.LENT] * lent]  # the owner keeps one for headroom
    quiet = [0.0] * HISTORY_SLOTS
    load = (8 * lent * 0.3 * (1 + np.sin(np.arange(HISTORY_SLOTS) / 45))).tolist()
    pools = [
        Pool("edge", Kind.EDGE, nodes=2, gpus=1, speed=0.3, loan=LoanPhase.LENT, history=quiet),
        Pool("infer", Kind.INFERENCE, nodes=lent + 1, speed=0.8, loan=loan, history=quiet),
        Pool("train", nodes=nodes - lent),
        Pool("owned", Kind.INFERENCE, nodes=2, loan=LoanPhase.OWNED, history=load),
    ]
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
    live = [job(now_s + i) for i in range(jobs)]
    policy = make_policy(name)
    times: list[float] = []
    stop_s = perf_counter() + seconds
    while perf_counter() < stop_s or len(times) < (4 if seconds else 1):
        seen = snapshot(pools, live, now_s=now_s)
        begin_s = perf_counter()
        plan = policy.plan(seen)
        times.append(perf_counter() - begin_s)
        live = apply(seen, plan, live)
        live = [replace(j, work_s=j.work_s - CYCLE_S * sum(j.held.values()) ** 0.8) for j in live]
        live = [j for j in live if j.work_s > 0]
        live += [job(now_s) for _ in range(jobs - len(live))]
        now_s += CYCLE_S
    return times[0], np.array(times[1:])


def main() -> int:
    """Measure and print; the rows as JSON where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.add_argument("--policy", default=",".join(POLICIES), help="names, by commas (all)")
    parser.add_argument(
        "--sizes",
        default=",".join(f"{gpus}x{jobs}" for gpus, jobs in SIZES),
        help="GPUSxJOBS, by commas (%(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="at each size (2)")
    parser.add_argument("--json", metavar="PATH", help="write the rows; - is standard output")
    options = parser.parse_args()
    names = options.policy.split(",")
    if unknown := [name for name in names if name not in POLICIES]:
        parser.error(f"no policy is called {unknown[0]!r}; there are: {', '.join(POLICIES)}")
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
    print(
        f"{'policy':12} {'gpus':>6} {'jobs':>5} {'mode':6} {'mean ms':>10} {'p99 ms':>10} "
        f"{'max ms':>10} {'cycles':>6}",
        file=sys.stderr,
    )
    document = {"rows": rows(names, [(gpus, jobs) for gpus, jobs in sizes], options.seconds)}
    if options.json == "-":
        sys.stdout.write(json.dumps(document) + "\n")
    elif options.json:
        Path(options.json).write_text(json.dumps(document) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
