"""What a run was like, in numbers. Jobs that did not finish, or were rejected, are always counted.

Definitions: N jobs submitted; job i submitted at s, first started at a, ended at c, due at d. The
horizon is from the first submission to the last end, or to where the run stopped.
"""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import Bools, Floats
from simulator.outcome import FleetRecord, Outcome

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

    Of runs with other pools or failures also:

    - GPU time there was is that of training nodes that were up, nodes on loan until they were
      back, and edge servers open to training. `cluster_usage` is GPU time that jobs held or that
      owners of inference pools used, over all GPU time of all pools.
    - Loaned GPU hours offered are from being lent until being back, used are those jobs held; loan
      efficiency is used over offered.
    - Reclaim latency is from the plan that asked until the last node of its batch was back with
      its owner; what is not back by the end of the run counts as taking until then. A node is late
      if it was back after the moment that the plan named. `reclaim_preemptions` are jobs that
      plans stopped on nodes they asked back, or that were killed there.
    - The shortfall is GPU time that inference needed and did not have, over what it needed; with
      `_owned`, over all that its pools have. Need above a pool's GPUs does not count.
    - Migrations are starts in another pool, or on another edge server, than the one before; lost
      work is GPU time that has to be done again after kills.
    """
    ended: Bools = np.isfinite(run.end_s)
    started: Bools = np.isfinite(run.start_s)
    refused = run.refused > 0
    first_s = float(run.submit_s.min()) if len(run.ids) else 0.0
    last_end_s = float(run.end_s[ended].max()) if ended.any() else None
    all_over = bool((ended | refused).all()) and last_end_s is not None
    span_s = max((last_end_s if all_over and last_end_s else run.until_s) - first_s, 1e-9)
    held, paused = float(run.attained_gpu_s.sum()), float(run.paused_gpu_s.sum())
    fleet = run.fleet
    there_gpu_s = run.cluster.gpus * span_s if fleet is None else max(fleet.ready_gpu_s, 1e-9)
    decision_ms = run.decision_s * 1e3
    preempted = int((run.preemptions > 0).sum())
    count, running = len(run.ids), int(started.sum())
    return {
        "jobs": count,
        "completed": int(ended.sum()),
        "unfinished": int((~ended & ~refused).sum()),
        "rejected": int(refused.sum()),
        **_spread("jct_s", (run.end_s - run.submit_s)[ended]),
        **_spread("queueing_s", np.maximum(run.start_s - run.submit_s, 0.0)[started]),
        "mean_waiting_s": _mean(run.waited_s[~refused]),
        "mean_response_s": _mean((run.ready_s - run.submit_s)[started]),
        "makespan_s": None if last_end_s is None else last_end_s - first_s,
        "jobs_per_h": int(ended.sum()) / span_s * 3600.0,
        **_deadlines(run, ended, refused),
        "utilisation": held / there_gpu_s,
        "effective_utilisation": (held - paused) / there_gpu_s,
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
        "claims": run.claims,
        "claims_timed_out": run.claims_timed_out,
        "invariant_violations": run.invariant_violations,
        "decisions": len(decision_ms),
        **_spread("decision_ms", decision_ms),
        **({} if fleet is None else _beyond(run, fleet, held, max(running, 1))),
    }


def _beyond(run: Outcome, fleet: FleetRecord, held: float, running: int) -> Mapping[str, Number]:
    """Return the figures of loans, owners, the edge and failures."""
    back_s = np.minimum(fleet.reclaim_back_s, run.until_s)
    late = int((back_s > fleet.reclaim_due_s).sum())
    asked, crossed = len(back_s), int(run.crossed.sum())
    served = fleet.needed_gpu_s - fleet.short_gpu_s
    migrated = int(run.migrated.sum())
    return {
        "cluster_usage": (held + served) / max(fleet.gpus * run.until_s, 1e-9),
        "loans": fleet.loans,
        "loaned_gpu_h_offered": fleet.lent_gpu_s / 3600.0,
        "loaned_gpu_h_used": fleet.lent_used_gpu_s / 3600.0,
        "loan_efficiency": _ratio(fleet.lent_used_gpu_s, fleet.lent_gpu_s),
        "reclaims": asked,
        **_spread("reclaim_s", _latencies(fleet, back_s)),
        "reclaims_late": late,
        "reclaim_late_ratio": _ratio(late, asked),
        "reclaim_preemptions": run.reclaim_preemptions,
        "preemptions_per_reclaim": _ratio(run.reclaim_preemptions, asked),
        "inference_gpu_h": fleet.needed_gpu_s / 3600.0,
        "inference_shortfall_gpu_s": fleet.short_gpu_s,
        "inference_shortfall_ratio": _ratio(fleet.short_gpu_s, fleet.needed_gpu_s),
        "inference_shortfall_ratio_owned": _ratio(fleet.short_gpu_s, fleet.owned_gpu_s),
        "edge_gpu_h_open": fleet.edge_gpu_s / 3600.0,
        "edge_gpu_h_used": fleet.edge_used_gpu_s / 3600.0,
        "edge_shortfall_gpu_s": fleet.edge_short_gpu_s,
        "migrations": migrated,
        "migrations_cloud_edge": crossed,
        "migrations_per_job": migrated / running,
        "migrations_cloud_edge_per_job": crossed / running,
        "kills": int(run.killed.sum()),
        "lost_gpu_s": float(run.lost_gpu_s.sum()),
        "failures": fleet.failures,
    }


def _latencies(fleet: FleetRecord, back_s: Floats) -> Floats:
    """(b,) from asking until the last node of each batch is back."""
    batches = int(fleet.reclaim_batch.max()) + 1 if len(back_s) else 0
    found = np.zeros(batches)
    np.maximum.at(found, fleet.reclaim_batch, back_s - fleet.reclaim_asked_s)
    return found


def _ratio(part: float, whole: float) -> Number:
    return part / whole if whole else None


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
