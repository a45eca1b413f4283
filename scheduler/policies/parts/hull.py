"""Sharing GPUs out where the next one gains most.

Speed against size is not concave in practice, so each job climbs the upper concave hull of its
points (policies.md 15). The steepest steps of all jobs, as far as the GPUs go, are the best there
is but for the last step.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints

#: Gains per GPU below this are noise.
LEAST_SLOPE = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of many hulls, the steepest first. Those of one hull are in their order."""

    row: Ints  #: (t,) whose.
    end: Ints  #: (t,) level it leads to.
    cost: Ints  #: (t,) GPUs it takes.
    slope: Floats  #: (t,) what each of them gains.

    def of(self, which: Bools | Ints | slice, span: slice = slice(None)) -> "Steps":
        """Return some of them, or some of a span of them."""
        return Steps(
            self.row[span][which],
            self.end[span][which],
            self.cost[span][which],
            self.slope[span][which],
        )

    def fitting(self, gpus: int) -> int:
        """Return how many steps, from the first on, so many GPUs pay for."""
        return int(np.cumsum(self.cost).searchsorted(gpus, side="right")) if gpus > 0 else 0


def climb(sizes: Ints, value: Floats, start: Ints) -> Steps:
    """Return the steps of each job's hull, from a level up.

    Args:
        sizes: (k,) GPUs of each level, ascending.
        value: (n, k) worth at each level; -inf where not allowed.
        start: (n,) level each job begins at; one for which that is not allowed has no steps.
    """
    k = len(sizes)
    # From a level that is not allowed no step has a gain that could be compared.
    now = value[np.arange(len(start)), start]
    best = np.maximum.reduce(np.ascontiguousarray(value.T))
    mine: Ints = ((best > now) & (now > -np.inf)).nonzero()[0]
    here, own = start[mine], value[mine]
    #: (k, k) GPUs from one level to another, and minus infinity for steps that are none.
    up = np.arange(k) > np.arange(k)[:, None]
    extra, no_step = np.where(up, sizes - sizes[:, None], 1), np.where(up, 0.0, -np.inf)
    found = [(mine[:0], here[:0], here[:0], own[:0, 0])]
    while len(mine):  # one step of every job per round
        slope = (own - own[np.arange(len(mine)), here][:, None]) / extra[here] + no_step[here]
        # The largest size among equal slopes: fewer steps.
        best = k - 1 - slope[:, ::-1].argmax(axis=1)
        steepest = slope[np.arange(len(mine)), best]
        rises = (steepest > LEAST_SLOPE).nonzero()[0]
        mine, best, own = mine[rises], best[rises], own[rises]
        found.append((mine, best, extra[here[rises], best], steepest[rises]))
        here = best
    row, end, cost, slopes = map(np.concatenate, zip(*found, strict=True))
    order = np.lexsort((row, -slopes))
    return Steps(row[order], end[order], cost[order], slopes[order])


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
    rows = (cap > start).nonzero()[0]
    if gpus <= 0 or not len(rows):
        return start.copy()
    open_to = np.where(np.arange(len(sizes)) <= cap[rows, None], value[rows], -np.inf)
    level: Ints = start.copy()
    level[rows] = take(sizes, open_to, start[rows], climb(sizes, open_to, start[rows]), gpus)
    return level


def take(sizes: Ints, value: Floats, start: Ints, steps: Steps, gpus: int) -> Ints:
    """Take the steepest steps that fit, and use up what the first that did not left over.

    Args:
        sizes: (k,)
        value: (n, k)
        start: (n,) levels that the steps begin at.
        steps: Of the rows of `value`.
        gpus: To share out.
    """
    level: Ints = start.copy()
    whole = steps.fitting(gpus)
    np.maximum.at(level, steps.row[:whole], steps.end[:whole])
    left = gpus - int(steps.cost[:whole].sum())
    if left <= 0 or whole == len(steps.row):
        return level
    missed = np.arange(len(steps.row)) >= whole
    for at in (missed & (steps.cost <= left)).nonzero()[0].tolist():
        row, end, cost = int(steps.row[at]), int(steps.end[at]), int(steps.cost[at])
        if cost <= left and sizes[end] - sizes[level[row]] == cost:
            level[row], left, missed[at] = end, left - cost, False
            if not left:
                return level
    # Whoever still has a step that does not fit takes the best size in between, if any fits.
    rows = steps.row[missed]
    stuck = rows[np.sort(np.unique(rows, return_index=True)[1])]
    while left > 0 and len(stuck):
        own, here = value[stuck], level[stuck]
        extra = sizes - sizes[here][:, None]
        gain = np.where(
            (extra > 0) & (extra <= left), own - own[np.arange(len(stuck)), here][:, None], -np.inf
        )
        best = gain.argmax(axis=1)
        able = (gain[np.arange(len(stuck)), best] > LEAST_SLOPE).nonzero()[0]
        if not len(able):
            break
        at = int(able[0])
        left -= int(extra[at, best[at]])
        level[stuck[at]] = best[at]
        stuck = stuck[at + 1 :]
    return level
