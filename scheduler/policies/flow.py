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

from scheduler.policies.interface import (
    MOVING,
    RUNNING,
    WAITING,
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    Need,
    Plan,
    Snapshot,
)
from scheduler.policies.parts.allot import (
    KEEP,
    Allotment,
    Because,
    allot,
    capacity,
    no_pool,
    training_pool,
)
from scheduler.policies.parts.curves import Curves, curves
from scheduler.policies.parts.elastic import ElasticOptions, grow, weights


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
    jobs, kinds = seen.jobs, seen.pools.kind[seen.pools.occupied(seen.nodes)]
    return bool(
        kinds.tolist() == [Kind.TRAINING]
        and not np.isfinite(jobs.deadline_s).any()
        and (jobs.priority == 0).all()
    )


def flow(seen: Snapshot, options: FlowOptions) -> Plan:
    """Decide all sizes; some jobs wait or are stopped, if others gain more."""
    if not len(seen.jobs.sizes):
        return Plan()
    curve = curves(seen.jobs)
    stake = stake_of(seen, curve)
    gpus, worth = shares(seen, curve, stake, options)
    why: dict[int, Because] = {
        job: Because(
            "elastic.marginal_return", figures=(Figure("worth_per_gpu", float(worth[job])),)
        )
        for job in ((gpus != seen.jobs.size) & (gpus != KEEP)).nonzero()[0].tolist()
    }
    why.update(_waits(seen, curve, stake))
    return allot(seen, Allotment(gpus, "elastic.marginal_return", why=why))


@dataclass(frozen=True, slots=True, eq=False)
class Stake:
    """What is shared out. n jobs."""

    pool: int
    gpus: int  #: that are free, or held by jobs that may be touched.
    fits: Bools  #: (n,) whether the pool can run the job.
    able: Bools  #: (n,) whether the policy may give the job another size.


def stake_of(seen: Snapshot, curve: Curves) -> Stake:
    """Find out what may be shared out, and to whom."""
    jobs, pool = seen.jobs, training_pool(seen)
    fits = (jobs.memory_mib <= seen.pools.gpu_memory_mib[pool]) & (jobs.affinity[:, pool] > 0)
    rested = (jobs.phase == RUNNING) | (jobs.backoff_until_s <= seen.now_s)
    able = curve.runnable & (jobs.phase != MOVING) & fits & rested
    return Stake(pool, int(capacity(seen)[pool]), fits, able)


def shares(
    seen: Snapshot, curve: Curves, stake: Stake, options: FlowOptions
) -> tuple[Ints, Floats]:
    """Return (n,) sizes, `KEEP` for jobs that must be left alone, and (n,) worth of a GPU."""
    jobs = seen.jobs
    n = len(jobs.ids)
    gpus = np.full(n, KEEP, dtype=np.int64)
    worth = np.zeros(n)
    rows = stake.able.nonzero()[0]
    if not len(rows):
        return gpus, worth
    speedup = curve.rate[rows] / curve.unit_rate[rows, None]
    work_s, pause_s = curve.work_s[rows], curve.change_s[rows, None]
    without_s = np.maximum(seen.now_s - jobs.submit_s[rows] - jobs.held_s[rows], 0.0)
    weight = weights(work_s, options.weights) * np.maximum(1.0, without_s / options.patience_s)
    run_s = work_s[:, None] / np.maximum(speedup, 1e-9)
    present = np.where(jobs.size[rows] > 0, curve.present[rows], -1)
    takes_s = run_s + pause_s
    factor = np.maximum(
        1.0 - options.ripple * pause_s / np.minimum(options.horizon_s, takes_s), 0.0
    )
    factor = np.where(present[:, None] < 0, run_s / takes_s, factor)
    runs = (present >= 0).nonzero()[0]
    factor[runs, present[runs]] = 1.0
    # A level below the others: nothing at all.
    value = np.zeros((len(rows), 1 + len(curve.sizes)))
    value[:, 1:] = np.where(curve.allowed[rows], weight[:, None] * speedup * factor, -np.inf)
    sizes = np.concatenate(([0], curve.sizes))
    none = np.zeros(len(rows), dtype=np.int64)
    level = grow(sizes, value, none, curve.top[rows] + 1, stake.gpus)
    gpus[rows] = sizes[level]
    worth[rows] = value[np.arange(len(rows)), level] / np.maximum(sizes[level], 1)
    return gpus, worth


def _waits(seen: Snapshot, curve: Curves, stake: Stake) -> Mapping[int, Because]:
    """Explain waits that no share of the pool could end."""
    jobs = seen.jobs
    base = curve.sizes[curve.base]
    found: dict[int, Because] = {}
    stuck = (jobs.phase == WAITING) & (~stake.able | (base > stake.gpus))
    for job in stuck.nonzero()[0].tolist():
        waited = (Figure("waited_s", seen.now_s - float(jobs.waiting_since_s[job])),)
        if not curve.runnable[job]:
            rule, need = "gang.size", Need("allowed_sizes", 0, 1)
        elif not stake.fits[job]:
            rule, need = "gang.no_pool", no_pool(seen, job)
        elif jobs.backoff_until_s[job] > seen.now_s:
            rest_s = float(jobs.backoff_until_s[job]) - seen.now_s
            rule, need = "gang.backoff", Need("backoff_s", rest_s, 0.0)
        else:
            rule, need = "gang.capacity", Need("gpus_of_the_pool", stake.gpus, int(base[job]))
        found[job] = Because(rule, figures=waited, needs=(need,))
    return found
