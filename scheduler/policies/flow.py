"""Sharing out one pool among jobs that may all be scaled and stopped: nobody has a right to GPUs.

The sizes maximise the sum of weight times speed-up (policies.md 15). With many jobs and a convex
cost of waiting, the best split gives each job a marginal cost of its remaining work times its
speed-up; for equal power-law speed-ups these costs depend on rank alone (heSRPT, Berg et al.
2020, as recalled). Jobs here are not equal, so both the rank and the length count; and so does the
time that a job went without, or a long gang would wait for as long as shorter ones come.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.allot import KEEP, Allotment, Because, allot, capacity, training_pool
from scheduler.policies.curves import Curves, curves
from scheduler.policies.elastic import ElasticOptions, grow, weights
from scheduler.policies.interface import (
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    Need,
    Phase,
    Plan,
    Snapshot,
)


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """How dear a change is, and a wait. Tuned on the public Pollux workloads (docs/results.md)."""

    horizon_s: float = 600.0  #: a change of size must pay for its pause within this.
    #: A change is counted so many times: others have to change because of it.
    ripple: float = 2.0
    weights: ElasticOptions = field(
        default_factory=lambda: ElasticOptions(rank_power=0.3, length_power=0.35)
    )
    #: A job's weight grows with the time it went without GPUs, from so long on.
    patience_s: float = 6 * 3600.0


def is_plain(seen: Snapshot) -> bool:
    """Whether nothing but best-effort training in one pool is at stake."""
    jobs, pools = seen.jobs, seen.pools
    return bool(
        len(pools.ids) == 1
        and pools.kind[0] == Kind.TRAINING
        and not np.isfinite(jobs.deadline_s).any()
        and (jobs.priority == 0).all()
    )


def flow(seen: Snapshot, options: FlowOptions) -> Plan:
    """Decide all sizes; some jobs wait or are stopped, if others gain more."""
    if not len(seen.jobs.sizes):
        return Plan()
    curve = curves(seen.jobs)
    gpus, worth = shares(seen, curve, options)
    why: dict[int, Because] = {
        job: Because("elastic.marginal_return", figures=(Figure("worth_per_gpu", worth[job]),))
        for job in np.flatnonzero((gpus != seen.jobs.size) & (gpus != KEEP)).tolist()
    }
    return allot(
        seen, Allotment(gpus, "elastic.marginal_return", why={**why, **_waits(seen, curve)})
    )


def _able(seen: Snapshot, curve: Curves) -> Bools:
    """Return (n,) whether the policy may give a job another size."""
    jobs = seen.jobs
    fits = jobs.memory_mib <= seen.pools.gpu_memory_mib[training_pool(seen)]
    rested = (jobs.phase == Phase.RUNNING) | (jobs.backoff_until_s <= seen.now_s)
    found: Bools = curve.runnable & (jobs.phase != Phase.MOVING) & fits & rested
    return found


def shares(seen: Snapshot, curve: Curves, options: FlowOptions) -> tuple[Ints, Floats]:
    """Return (n,) sizes, `KEEP` for jobs that must be left alone, and (n,) worth of a GPU."""
    jobs = seen.jobs
    n = len(jobs.ids)
    gpus = np.full(n, KEEP, dtype=np.int64)
    worth = np.zeros(n)
    free = int(capacity(seen)[training_pool(seen)])
    rows = np.flatnonzero(_able(seen, curve))
    if not len(rows):
        return gpus, worth
    speedup = curve.rate[rows] / curve.unit_rate[rows, None]
    work_s, pause_s = curve.work_s[rows], curve.change_s[rows, None]
    without_s = np.maximum(seen.now_s - jobs.submit_s[rows] - jobs.held_s[rows], 0.0)
    weight = weights(work_s, options.weights) * np.maximum(1.0, without_s / options.patience_s)
    run_s = work_s[:, None] / np.maximum(speedup, 1e-9)
    present = np.where(jobs.size[rows] > 0, curve.present[rows], -1)
    within_s = np.minimum(options.horizon_s, run_s + pause_s)
    factor = np.maximum(1.0 - options.ripple * pause_s / within_s, 0.0)
    factor = np.where(present[:, None] < 0, run_s / (run_s + pause_s), factor)
    runs = np.flatnonzero(present >= 0)
    factor[runs, present[runs]] = 1.0
    value = np.where(curve.allowed[rows], weight[:, None] * speedup * factor, -np.inf)
    # A level below the others: nothing at all.
    value = np.concatenate((np.zeros((len(rows), 1)), value), axis=1)
    sizes = np.concatenate(([0], curve.sizes))
    none = np.zeros(len(rows), dtype=np.int64)
    level = grow(sizes, value, none, curve.top[rows] + 1, free)
    gpus[rows] = sizes[level]
    at = np.arange(len(rows))
    worth[rows] = value[at, level] / np.maximum(sizes[level], 1)
    return gpus, worth


def _waits(seen: Snapshot, curve: Curves) -> Mapping[int, Because]:
    """Explain waits that no share of the pool could end."""
    jobs, pool = seen.jobs, training_pool(seen)
    free, memory_mib = int(capacity(seen)[pool]), float(seen.pools.gpu_memory_mib[pool])
    base = curve.sizes[curve.base]
    found: dict[int, Because] = {}
    waiting = jobs.phase == Phase.WAITING
    stuck = ~_able(seen, curve) | (base > free)
    for job in np.flatnonzero(waiting & stuck).tolist():
        waited = (Figure("waited_s", seen.now_s - float(jobs.waiting_since_s[job])),)
        if not curve.runnable[job]:
            rule, need = "gang.size", Need("allowed_sizes", 0, 1)
        elif jobs.memory_mib[job] > memory_mib:
            need = Need("gpu_memory_mib", memory_mib, float(jobs.memory_mib[job]))
            rule = "gang.no_pool"
        elif jobs.backoff_until_s[job] > seen.now_s:
            rest_s = float(jobs.backoff_until_s[job]) - seen.now_s
            rule, need = "gang.backoff", Need("backoff_s", rest_s, 0.0)
        else:
            rule, need = "gang.capacity", Need("gpus_of_the_pool", free, int(base[job]))
        found[job] = Because(rule, figures=waited, needs=(need,))
    return found
