"""What is known of steps, as one job's curve: work per second at each size that it declared.

Work is in steps at the reference batch, `samples_per_step`. At a size that was measured it is what
was measured, on the fewest nodes that it ran on. Where two sizes were, those below the larger
follow from the fitted step time, put right by what was measured. Above the largest that anybody ran
at, the declared curve goes on from there: a model of few points may be wrong by much, and a size
that is thought to be bad is never tried, while one that was declared to be good is tried once and
then known.
"""

import math
from collections.abc import Mapping

import numpy as np

from scheduler.core.job_work import declared_rate
from scheduler.core.state import Job
from scheduler.core.stimuli import Curve
from scheduler.estimator.goodput import Noise
from scheduler.estimator.kin import Kin, Own, Row, level
from scheduler.estimator.noise import Measured, Trend
from scheduler.estimator.steps import Seen, Shape, Timed
from scheduler.policies.interface import Floats

#: Batches alike by so much are one batch.
_SAME_BATCH = 1.01
#: Work per second beyond is an invention.
_LEAST, _MOST = 1e-12, 1e12


def curve_of(job: Job, own: Own, kin: Kin) -> Curve | None:
    """Give a job's curve; None: nothing is known of it but what it declared.

    Args:
        job: As it is now.
        own: What it showed.
        kin: What all that are like it showed; `look` has brought it up to date.
    """
    mine, theirs = own.rows(), kin.rows
    ratio = level(mine, theirs)
    rows = {shape: row._replace(step_s=row.step_s * ratio) for shape, row in theirs.items()} | mine
    known = _by_size(rows)
    sizes = _sizes(job, known)
    if not known or not sizes:
        return None
    batches = _batches(sizes, _by_size(mine) or known)
    with np.errstate(all="ignore"):
        steps = _declared(job, sizes, batches, known)
        if kin.steps.time is not None and len(known) > 1:
            right = Seen(kin.steps.time, _seen(mine, kin, ratio))
            modelled = _modelled(sizes, batches, right, kin.per_node)
            steps = np.where(np.array(sizes) <= max(known), modelled, steps)
        for at, size in enumerate(sizes):
            if size in known:
                batches[at], steps[at] = known[size].batch, known[size].step_s
        work = _gains(batches, own.noise, kin.trend, job.samples_per_step) / steps
    if not ((work >= _LEAST) & (work <= _MOST)).all():
        return None
    measured = [size for size in sizes if size in known]
    return Curve(
        points=[[float(n), float(f"{w:.6g}")] for n, w in zip(sizes, work.tolist(), strict=True)],
        per_step=1.0,
        left=None,
        measured=measured,
        affinity=own.affinity(),
        at_s=[known[size].at_s for size in measured],
    )


def _by_size(rows: Mapping[Shape, Row]) -> dict[int, Row]:
    """Give the row of each size, by size: that on the fewest nodes."""
    found: dict[int, Row] = {}
    for nodes, gpus in sorted(rows, key=lambda shape: (shape[1], shape[0])):
        found.setdefault(gpus, rows[nodes, gpus])
    return found


def _sizes(job: Job, known: Mapping[int, Row]) -> list[int]:
    """Choose the sizes of the points: those that were declared or measured, from end to end."""
    low = max(job.gpus_min, int(job.rates[0][0]))
    high = min(job.gpus_max, int(job.rates[-1][0]))
    every = {low, high, *known, *(int(size) for size, _ in job.rates)}
    return sorted(size for size in every if low <= size <= high)


def _batches(sizes: list[int], known: Mapping[int, Row]) -> Floats:
    """Give the batch at each size: always the same, or that on each GPU as it was at sizes near."""
    whole = np.array([row.batch for row in known.values()])
    if whole.max() <= _SAME_BATCH * whole.min():
        return np.full(len(sizes), whole[-1])
    each = whole / np.array(list(known))
    found: Floats = np.array(sizes) * np.interp(sizes, list(known), each)
    return found


def _seen(mine: Mapping[Shape, Row], kin: Kin, ratio: float) -> dict[Shape, Timed]:
    """Give what the job's kin showed, at its own pace; its own steps where it showed any."""
    found = {}
    for shape, timed in kin.steps.seen.items():
        both = zip(timed.pass_s.tolist(), (timed.step_s * ratio).tolist(), strict=True)
        found[shape] = Timed(dict(zip(timed.micro.tolist(), both, strict=True)))
    for shape, row in mine.items():
        found[shape] = Timed({row.batch / shape[1]: (row.pass_s, row.step_s)})
    return found


def _modelled(sizes: list[int], batches: Floats, right: Seen, per_node: int) -> Floats:
    """Give seconds of a step at each size by the fitted model, put right by what was seen."""
    none = np.zeros(1)
    each = zip(sizes, batches.tolist(), strict=True)
    steps = [
        right.step_s(-(-size // per_node), size, np.array([batch / size]), none)
        for size, batch in each
    ]
    return np.concatenate(steps)


def _declared(job: Job, sizes: list[int], batches: Floats, known: Mapping[int, Row]) -> Floats:
    """Give seconds of a step at each size: as declared, drawn through what was measured."""
    rates = {size: declared_rate(job, size) for size in {*sizes, *known}}
    off = {
        size: math.log(row.batch / row.step_s / rates[size])
        for size, row in known.items()
        if rates[size] > 0.0
    }
    right = np.interp(np.log(sizes), np.log(list(off)), list(off.values())) if off else 0.0
    found: Floats = batches / (np.array([rates[size] for size in sizes]) * np.exp(right))
    return found


def _gains(batches: Floats, noise: Measured, trend: Trend, reference: float) -> Floats:
    """Give what steps of such batches are worth, in steps at the reference batch."""
    scales, now = batches / reference, noise.now()
    if now is None:
        return scales
    batch, there = now
    var = there * trend.times(batches, batch) / reference
    return Noise(sqr=1.0, var=var).gain(scales)
