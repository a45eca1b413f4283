"""What a run was like, in numbers. Jobs that did not finish, or were rejected, are always counted.

Definitions: N jobs submitted; job i submitted at s, first started at a, ended at c, due at d. The
horizon is from the first submission to the last end, or to where the run stopped.
"""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import Bools, Floats
from simulator.world import Outcome

Number = float | int | None


def measure(run: Outcome) -> dict[str, Number]:
    """Return every figure of a run by name; None where it has no meaning, as for no deadlines.

    - JCT is c - s, over the jobs that ended. Queueing is a - s, over those that started; waiting is
      all time without GPUs, over those not rejected; response is the end of the first start's
      pause, less s.
    - Utilisation is GPU time held over GPU time there was; *effective* leaves out pauses.
    - The deadline ratio is jobs with c <= d over all submitted with a deadline: rejected and
      unfinished ones missed it. `deadline_ratio_admitted` is over those not rejected.
    - The preemption ratio is jobs preempted at least once over jobs that started. Restarts are
      changes to another allocation after the first start; growing, shrinking and moving a running
      job, and resuming a preempted one, each count.
    - Fragmentation is, of the GPUs free while a job waits, the share that no gang of the size
      asked for first could use on whole nodes' parts.
    - Jain's index is over the GPU time of tenants: 1 is even.
    """
    ended: Bools = np.isfinite(run.end_s)
    started: Bools = np.isfinite(run.start_s)
    refused = run.refused > 0
    first_s = float(run.submit_s.min()) if len(run.ids) else 0.0
    last_end_s = float(run.end_s[ended].max()) if ended.any() else None
    all_over = bool((ended | refused).all()) and last_end_s is not None
    span_s = max((last_end_s if all_over and last_end_s else run.until_s) - first_s, 1e-9)
    held, paused = float(run.attained_gpu_s.sum()), float(run.paused_gpu_s.sum())
    decision_ms = run.decision_s * 1e3
    preempted = int((run.preemptions > 0).sum())
    count, running = len(run.ids), int(started.sum())
    return {
        "jobs": count,
        "completed": int(ended.sum()),
        "unfinished": int((~ended & ~refused).sum()),
        "rejected": int(refused.sum()),
        **_spread("jct_s", (run.end_s - run.submit_s)[ended]),
        **_spread("queueing_s", (run.start_s - run.submit_s)[started]),
        "mean_waiting_s": _mean(run.waited_s[~refused]),
        "mean_response_s": _mean((run.ready_s - run.submit_s)[started]),
        "makespan_s": None if last_end_s is None else last_end_s - first_s,
        "jobs_per_h": int(ended.sum()) / span_s * 3600.0,
        **_deadlines(run, ended, refused),
        "utilisation": held / (run.room.gpus * span_s),
        "effective_utilisation": (held - paused) / (run.room.gpus * span_s),
        "gpu_h": held / 3600.0,
        "fragmentation": run.stranded_gpu_s / run.idle_gpu_s if run.idle_gpu_s else None,
        "restarts": int(run.restarts.sum()),
        "restarts_per_job": int(run.restarts.sum()) / running if running else None,
        "preemptions": int(run.preemptions.sum()),
        "preemptions_per_job": int(run.preemptions.sum()) / running if running else None,
        "preemption_ratio": preempted / running if running else None,
        "grown": int(run.grown.sum()),
        "shrunk": int(run.shrunk.sum()),
        "moved": int(run.moved.sum()),
        "jain_tenants": _jain(run),
        "decisions": len(decision_ms),
        **_spread("decision_ms", decision_ms),
    }


def _deadlines(run: Outcome, ended: Bools, refused: Bools) -> Mapping[str, Number]:
    due = np.isfinite(run.deadline_s)
    met = int((due & ended & (run.end_s <= run.deadline_s)).sum())
    total, admitted = int(due.sum()), int((due & ~refused).sum())
    return {
        "deadlines": total,
        "deadlines_met": met,
        "deadline_ratio": met / total if total else None,
        "deadline_ratio_admitted": met / admitted if admitted else None,
        "admission_rate": admitted / total if total else None,
    }


def _spread(name: str, values: Floats) -> Mapping[str, Number]:
    if not len(values):
        return {f"{what}_{name}": None for what in ("mean", "p50", "p95", "p99", "max")}
    p50, p95, p99 = np.percentile(values, [50, 95, 99]).tolist()
    return {
        f"mean_{name}": float(values.mean()),
        f"p50_{name}": p50,
        f"p95_{name}": p95,
        f"p99_{name}": p99,
        f"max_{name}": float(values.max()),
    }


def _mean(values: Floats) -> Number:
    return float(values.mean()) if len(values) else None


def _jain(run: Outcome) -> Number:
    names = sorted({*run.tenants})
    at = {name: i for i, name in enumerate(names)}
    which = np.array([at[name] for name in run.tenants], dtype=np.int64)
    shares = np.bincount(which, run.attained_gpu_s, len(names))
    squares = len(names) * float((shares**2).sum())
    return float(shares.sum()) ** 2 / squares if squares else None
