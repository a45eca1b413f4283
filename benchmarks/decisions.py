"""How long one cycle of the default policy takes.

A cluster runs by the policy's own plans: each cycle carries the last plan out, some jobs end and
others arrive, so that most cycles are the ordinary ones: little to change.
"""

from dataclasses import replace
from time import perf_counter

import numpy as np

from scheduler.policies.interface import Kind, LoanPhase
from scheduler.policies.registry import make_policy
from tests.snapshots import Job, Pool, apply, snapshot

CYCLE_S = 60.0
HISTORY_SLOTS = 2 * 288


def run(seconds: float = 4.0) -> dict[str, float]:
    """Measure; returns milliseconds per cycle, mean and 99th percentile, by GPUs and jobs.

    Args:
        seconds: Time to spend, shared among the sizes.
    """
    results: dict[str, float] = {}
    for gpus, running, waiting in ((64, 20, 10), (1000, 200, 50)):
        times = cycles(gpus, running + waiting, seconds / 2)
        results[f"tide_{gpus}_gpus_mean_ms"] = round(1e3 * float(times.mean()), 3)
        results[f"tide_{gpus}_gpus_p99_ms"] = round(1e3 * float(np.quantile(times, 0.99)), 3)
        results[f"tide_{gpus}_gpus_cycles"] = float(len(times))
    return results


def cycles(gpus: int, jobs: int, seconds: float) -> np.ndarray:
    """Run cycles for some seconds; returns the time of each, without the first (a cold start)."""
    rng = np.random.default_rng(7)
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
    policy = make_policy("tide")
    times: list[float] = []
    stop_s = perf_counter() + seconds
    while perf_counter() < stop_s or len(times) < 3:
        seen = snapshot(pools, live, now_s=now_s)
        begin_s = perf_counter()
        plan = policy.plan(seen)
        times.append(perf_counter() - begin_s)
        live = apply(seen, plan, live)
        live = [replace(j, work_s=j.work_s - CYCLE_S * sum(j.held.values()) ** 0.8) for j in live]
        live = [j for j in live if j.work_s > 0]
        live += [job(now_s) for _ in range(jobs - len(live))]
        now_s += CYCLE_S
    return np.array(times[1:])


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:28} {value}")
