"""The multiple-choice knapsack: one size for every job, the greatest sum of worths, so many GPUs.

Optimus, Pollux, Aryl and DeepBoot all end here. The hull greedy of `elastic` is
within one step of the best; `exact` closes that gap. It first bounds what any answer can be worth
by pricing GPUs (Lagrange), drops every option that the bound rules out, and runs a max-plus
dynamic program over the few that are left. Its cost is that of the greedy unless many jobs tie.
"""

from dataclasses import dataclass
from functools import reduce
from math import gcd

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints
from scheduler.policies.parts.hull import grow

#: Elements the dynamic program may touch, options times GPUs; beyond it the greedy answer stands.
WORK_MOST = 10_000_000
#: Worths nearer than this part of the largest one are equal.
_SAME = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A level for every job, and how good that is at most wrong."""

    level: Ints  #: (n,) index into the sizes.
    worth: float  #: sum over the jobs.
    #: No choice is worth more. Equal to `worth` where the choice is proven best.
    bound: float


def greedy(sizes: Ints, value: Floats, start: Ints, gpus: int) -> Choice:
    """Choose by the upper concave hull of each job's worths: best but for the last step.

    Args:
        sizes: (k,) GPUs of each level, ascending; the first may be 0.
        value: (n, k) worth of each level; -inf where it is not allowed.
        start: (n,) level each job has anyway; allowed. Its GPUs are not part of `gpus`.
        gpus: To share out on top.
    """
    last = np.full(len(start), len(sizes) - 1)
    level = grow(sizes, value, start, last, gpus)
    worth = _worth(value, level)
    price = _price(sizes, value, level)
    return Choice(level, worth, max(worth, _bound(sizes, value, start, gpus, price)))


def exact(sizes: Ints, value: Floats, start: Ints, gpus: int, work_most: int = WORK_MOST) -> Choice:
    """Choose the best there is; arguments as for `greedy`.

    Of equally good choices the one with the fewest GPUs for the last jobs wins. Where the program
    would touch more than `work_most` elements the greedy choice is returned, with its bound.
    """
    first = greedy(sizes, value, start, gpus)
    rows = np.arange(len(start))
    if not len(rows) or gpus <= 0:
        return Choice(first.level, first.worth, first.worth)
    gap = first.bound - first.worth
    scale = float(np.abs(value[np.isfinite(value)]).max(initial=1.0))
    if gap <= _SAME * scale:
        return Choice(first.level, first.worth, first.worth)
    weight = sizes[None, :] - sizes[start][:, None]
    keep = _options(value, weight, gpus, _price(sizes, value, first.level), gap + _SAME * scale)
    low = np.where(keep, weight, np.iinfo(np.int64).max).min(axis=1)
    high = np.where(keep, weight, 0).max(axis=1)
    room = min(gpus - int(low.sum()), int((high - low).sum()))
    core = np.flatnonzero(keep.sum(axis=1) > 1)
    if room < 0 or not len(core):
        return Choice(first.level, first.worth, first.worth)
    options = [np.flatnonzero(keep[job]) for job in core]
    extra = [weight[job, mine] - low[job] for job, mine in zip(core, options, strict=True)]
    unit = max(1, reduce(gcd, (int(w) for part in extra for w in part)))
    room //= unit
    if (room + 1) * sum(map(len, options)) > work_most:
        return first
    gains = [value[job, mine] for job, mine in zip(core, options, strict=True)]
    picked = _program([part // unit for part in extra], gains, room)
    level: Ints = keep.argmax(axis=1)
    level[core] = [mine[pick] for mine, pick in zip(options, picked, strict=True)]
    worth = _worth(value, level)
    if worth <= first.worth:
        return Choice(first.level, first.worth, first.worth)
    return Choice(level, worth, worth)


def _worth(value: Floats, level: Ints) -> float:
    return float(value[np.arange(len(level)), level].sum())


def _price(sizes: Ints, value: Floats, level: Ints) -> float:
    """Return what one more GPU would bring: the steepest step that was not taken."""
    rows = np.arange(len(level))
    extra = sizes[None, :] - sizes[level][:, None]
    gain = value - value[rows, level][:, None]
    slope = np.where(extra > 0, gain / np.maximum(extra, 1), 0.0)
    return float(slope.max(initial=0.0))


def _bound(sizes: Ints, value: Floats, start: Ints, gpus: int, price: float) -> float:
    """Return the most that any choice is worth if GPUs could be bought and sold at a price."""
    weight = sizes[None, :] - sizes[start][:, None]
    net = np.where((weight >= 0) & (weight <= gpus), value - price * weight, -np.inf)
    return price * gpus + float(net.max(axis=1).sum())


def _options(value: Floats, weight: Ints, gpus: int, price: float, gap: float) -> Bools:
    """(n, k) options that some better choice than the greedy one may contain."""
    valid = np.isfinite(value) & (weight >= 0) & (weight <= gpus)
    worth = np.where(valid, value, -np.inf)
    net = np.where(valid, worth - price * weight, -np.inf)
    near = net >= net.max(axis=1)[:, None] - gap
    # A size that is worth no more than a smaller one is never needed.
    smaller = np.maximum.accumulate(worth, axis=1)[:, :-1]
    near[:, 1:] &= worth[:, 1:] > smaller
    found: Bools = valid & near
    return found


def _program(weights: list[Ints], gains: list[Floats], room: int) -> list[int]:
    """Return the best option of each job; the first option of each weighs 0.

    Every option is one shifted vector; the choices are kept, so that going back compares no sums.
    """
    best = np.zeros(room + 1)
    chosen = np.zeros((len(weights), room + 1), dtype=np.int16)
    for job, (weight, gain) in enumerate(zip(weights, gains, strict=True)):
        after = best + gain[0]
        for option in range(1, len(weight)):
            w = int(weight[option])
            if w > room:
                break
            tried = best[: room + 1 - w] + gain[option]
            better = tried > after[w:]
            np.copyto(after[w:], tried, where=better)
            chosen[job, w:][better] = option
        best = after
    picked = [0] * len(weights)
    left = room
    for job in range(len(weights) - 1, -1, -1):
        picked[job] = int(chosen[job, left])
        left -= int(weights[job][picked[job]])
    return picked
