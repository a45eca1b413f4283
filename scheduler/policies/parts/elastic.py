"""How large each job should be: GPUs go where the next one gains most.

The sizes maximise the sum of weight times speed-up (policies.md 15). Speed-up against size is not
concave in practice, so the greedy walks the upper concave hull of each job's points: the best
there is but for the last step.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints
from scheduler.policies.parts.curves import Curves
from scheduler.policies.ranges import Positive, Power

#: Gains per GPU below this are noise.
_LEAST_SLOPE = 1e-12


@dataclass(frozen=True, slots=True)
class ElasticOptions:
    """Weights and inertia. The defaults were measured (policies.md 15)."""

    rank_power: Power = 0.25  #: good from 0.2 to 0.4.
    length_power: Power = 0.3  #: good from 0.25 to 0.5.
    horizon_s: Positive = 600.0  #: within which a change of size must pay for its pause.
    #: A job keeps its size for this long, but for a gang's base size, a deadline's share or a
    #: node that goes back: what was given must have the time to pay for its pause.
    interval_s: float = 300.0
    gain_least: float = 0.02  #: a new set of sizes must be better by this for the jobs it changes.


def weights(work_s: Floats, options: ElasticOptions) -> Floats:
    """(n,) worth of one unit of speed: (2 rank - 1)^0.25 * T^-0.3, rank 1 the longest.

    Equal works are ranked by index: two jobs must not swap ranks from cycle to cycle.
    """
    rank = np.empty(len(work_s))
    rank[np.argsort(-work_s, kind="stable")] = np.arange(1, len(work_s) + 1)
    return (2 * rank - 1) ** options.rank_power * work_s**-options.length_power


def worth(curve: Curves, weight: Floats, options: ElasticOptions) -> Floats:
    """(n, k) what each job is worth at each size; -inf where the size is not allowed.

    A size other than the present one costs a pause c, spread over the shorter of the horizon and
    the run time T at that size: factor 1 - c / min(horizon, T + c). A job that holds nothing pays
    its pause at any size: factor T / (T + c).
    """
    speedup = curve.rate / curve.unit_rate[:, None]
    run_s = curve.work_s[:, None] / np.maximum(speedup, 1e-9)
    pause_s = curve.change_s[:, None]
    changed = np.maximum(1.0 - pause_s / np.minimum(options.horizon_s, run_s + pause_s), 0.0)
    changed = np.where(curve.present[:, None] < 0, run_s / (run_s + pause_s), changed)
    held = np.flatnonzero(curve.present >= 0)
    changed[held, curve.present[held]] = 1.0
    return np.where(curve.allowed, weight[:, None] * speedup * changed, -np.inf)


def grow(sizes: Ints, value: Floats, start: Ints, cap: Ints, gpus: int) -> Ints:
    """Share GPUs out by marginal worth.

    Args:
        sizes: (k,) GPUs of each level, ascending.
        value: (n, k) worth at each level; -inf where not allowed.
        start: (n,) level each job has anyway; a job for which it is not allowed stays there.
        cap: (n,) level it must not exceed.
        gpus: To share out, on top of the start levels.

    Returns:
        (n,) levels.
    """
    k = len(sizes)
    level: Ints = start.copy()
    # From a level that is not allowed no step has a gain that could be compared.
    rows = ((cap > start) & np.isfinite(value[np.arange(len(start)), start])).nonzero()[0]
    if gpus <= 0 or not len(rows):
        return level
    columns = np.arange(k)
    open_to = np.where(columns <= cap[rows, None], value[rows], -np.inf)
    #: (k, k) GPUs from one level to another, and minus infinity for steps that are none.
    up = columns > columns[:, None]
    extra, no_step = np.where(up, sizes - sizes[:, None], 1), np.where(up, 0.0, -np.inf)
    steps = []
    mine, here, worth_of = rows, start[rows], open_to
    while len(mine):  # one hull step of every job per round
        each = np.arange(len(mine))
        slope = (worth_of - worth_of[each, here][:, None]) / extra[here] + no_step[here]
        # The largest size among equal slopes: fewer steps.
        best = k - 1 - slope[:, ::-1].argmax(axis=1)
        steepest = slope[each, best]
        rises = (steepest > _LEAST_SLOPE).nonzero()[0]
        mine, best, worth_of = mine[rises], best[rises], worth_of[rises]
        steps.append((mine, best, extra[here[rises], best], steepest[rises]))
        here = best
    job, end, cost, rise = map(np.concatenate, zip(*steps, strict=True))
    order = np.lexsort((job, -rise))
    job, end, cost = job[order], end[order], cost[order]
    whole = int(np.cumsum(cost).searchsorted(gpus, side="right"))
    np.maximum.at(level, job[:whole], end[:whole])
    left = gpus - int(cost[:whole].sum())
    if left > 0 and whole < len(job):
        rest = job[whole:].tolist(), end[whole:].tolist(), cost[whole:].tolist()
        _fit_rest(level, *rest, sizes, rows, open_to, left)
    return level


def _fit_rest(
    level: Ints,
    job: list[int],
    end: list[int],
    cost: list[int],
    sizes: Ints,
    rows: Ints,
    value: Floats,
    left: int,
) -> None:
    """Use up what the first step that did not fit left over. Row i of `value` is job `rows[i]`."""
    stuck: dict[int, None] = {}
    for i, to, gpus in zip(job, end, cost, strict=True):
        if i in stuck:
            continue
        if gpus <= left and sizes[to] - sizes[level[i]] == gpus:
            level[i] = to
            left -= gpus
        else:
            stuck[i] = None
        if not left:
            return
    for i in stuck:  # in order of slope: the best size in between, if any fits
        extra = sizes - sizes[level[i]]
        fits = (extra > 0) & (extra <= left)
        own = value[rows.searchsorted(i)]
        gain = np.where(fits, own - own[level[i]], -np.inf)
        best = int(gain.argmax())
        if gain[best] > _LEAST_SLOPE:
            left -= int(extra[best])
            level[i] = best
        if not left:
            break


def settle(
    sizes: Ints,
    value: Floats,
    present: Ints,
    start: Ints,
    cap: Ints,
    gpus: int,
    settled: Bools,
    options: ElasticOptions,
) -> Ints:
    """Choose levels as `grow` does, but leave running jobs as they are unless it pays.

    Args:
        sizes: (k,) GPUs of each level.
        value: (n, k) worth at each level.
        present: (n,) level now held; -1 if none.
        start: (n,) level below which no job may go.
        cap: (n,) level above which no job may go.
        gpus: To share out, on top of the start levels.
        settled: (n,) jobs that changed a moment ago: they keep their level if that is possible.
        options: How much better is better.
    """
    stay = np.where(present >= 0, np.clip(present, start, cap), start)
    need = sizes[stay] - sizes[start]
    if settled.any():
        kept = stay
        if int(need[settled].sum()) > gpus:  # some have to shrink: as few of them as possible
            kept = grow(sizes, value, start, np.where(settled, stay, start), gpus)
        gpus -= int((sizes[kept] - sizes[start])[settled].sum())
        start = np.where(settled, kept, start)
        cap = np.where(settled, kept, cap)
        stay = np.where(settled, kept, stay)
        need = sizes[stay] - sizes[start]
    free = grow(sizes, value, start, cap, gpus)
    if int(need.sum()) > gpus:
        return free  # somebody has to shrink
    still = grow(sizes, value, stay, np.where(present >= 0, stay, cap), gpus - int(need.sum()))
    rows = np.flatnonzero(free != still)
    if not len(rows):
        return still
    # A level that is not allowed is worth nothing: minus infinity would outweigh all other jobs.
    after, before = (np.maximum(value[rows, one[rows]], 0.0) for one in (free, still))
    gain = float((after - before).sum())
    return free if gain > options.gain_least * float(before.sum()) else still
