"""Sharing GPUs out where the next one gains most.

Speed against size is not concave in practice, so each job climbs the upper concave hull of its
points. The steepest steps of all jobs, as far as the GPUs go, are the best there
is but for the last step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints

#: Gains per GPU below this are noise.
LEAST_SLOPE = 1e-12
#: The least of the others.
_LEAST_STEP = float(np.nextafter(LEAST_SLOPE, 1.0))
#: In the place of minus infinity, where a difference of two of those would be no number.
_LEAST = -1e300
#: Jobs times levels squared up to which all steps of all jobs are looked at at once.
_AT_ONCE = 8192


@dataclass(slots=True, eq=False)
class Steps:
    """The steps of many hulls, the steepest first. Those of one hull are in their order."""

    row: Ints  #: (t,) whose.
    end: Ints  #: (t,) level it leads to.
    cost: Ints  #: (t,) GPUs it takes.
    slope: Floats  #: (t,) what each of them gains.

    def of(self, which: Ints | slice) -> "Steps":
        """Return some of them."""
        if isinstance(which, slice):
            return Steps(self.row[which], self.end[which], self.cost[which], self.slope[which])
        take = self.row.take, self.end.take, self.cost.take, self.slope.take
        return Steps(take[0](which), take[1](which), take[2](which), take[3](which))

    def of_rows(self, which: Bools) -> "Steps":
        """Return those of some rows."""
        return self.of(which[self.row].nonzero()[0])

    def fitting(self, gpus: int) -> int:
        """Return how many steps, from the first on, so many GPUs pay for."""
        return int(self.cost.cumsum().searchsorted(gpus, side="right")) if gpus > 0 else 0


def climb(sizes: Ints, value: Floats, start: Ints, groups: int = 1) -> Steps:
    """Return the steps of each job's hull, from a level up.

    Args:
        sizes: (k,) GPUs of each level, ascending.
        value: (n, k) worth at each level; -inf where not allowed.
        start: (n,) level each job begins at; one for which that is not allowed has no steps.
        groups: Jobs in so many groups of equal length: the steps of the first come first.
    """
    n, k = value.shape
    # From a level that is not allowed no step has a gain that could be compared.
    now = value[np.arange(n), start]
    by_level = np.ascontiguousarray(value.T)  # numpy is slow along so short an axis as levels
    best = np.maximum.reduce(by_level)
    mine: Ints = ((best > now) & (now > -np.inf)).nonzero()[0]
    if not len(mine):
        return Steps(mine, mine, mine, now[:0])
    if len(mine) * k * k <= _AT_ONCE:
        row, before, end, slope = _walk(mine, start[mine], value[mine, ::-1], sizes[::-1])
    else:
        row, before, end, slope = _rounds(mine, start[mine], by_level.take(mine, axis=1), sizes)
    order = _steepest(slope, row, row // (n // groups))
    end = end[order]
    return Steps(row[order], end, sizes[end] - sizes[before[order]], slope[order])


def climb_anew(sizes: Ints, value: Floats, start: Ints, before: Steps, same: Bools) -> Steps:
    """Return what `climb` does, where most jobs climb as they did before.

    Args:
        sizes: (k,)
        value: (n, k)
        start: (n,)
        before: The steps of other values and starts.
        same: (n,) jobs whose values and starts are those.
    """
    others = (~same).nonzero()[0]
    if 4 * len(others) > len(same):
        return climb(sizes, value, start)
    new = climb(sizes, value[others], start[others])
    return _joined(before, same[before.row].nonzero()[0], replace(new, row=others[new.row]))


def _joined(old: Steps, kept: Ints, new: Steps) -> Steps:
    """Return some steps, and a few of other jobs, as one, the steepest first.

    Args:
        old: The steepest first.
        kept: Which of them.
        new: The steepest first.
    """
    slope, other = -old.slope[kept], -new.slope
    at = slope.searchsorted(other)
    if not len(kept) or np.count_nonzero(slope[np.minimum(at, len(kept) - 1)] == other):
        return merged((old.of(kept), new))
    comes = at + np.arange(len(at))
    source = np.zeros(len(kept) + len(at), dtype=np.int64)
    stays = np.ones(len(source), dtype=np.bool_)
    stays[comes] = False
    source[stays] = kept
    found = old.of(source)
    found.row[comes], found.end[comes] = new.row, new.end
    found.cost[comes], found.slope[comes] = new.cost, new.slope
    return found


def merged(parts: Sequence[Steps]) -> Steps:
    """Return the steps of different jobs as one, the steepest first."""
    row, end, cost, slope = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("row", "end", "cost", "slope")
    )
    # Each part is in order already: to join such parts is what a stable sort is quick at.
    order = _steepest(slope, row, np.zeros_like(row), "stable")
    return Steps(row, end, cost, slope).of(order)


#: Rows, levels from and to, slopes of steps.
_Found = tuple[Ints, Ints, Ints, Floats]


def _more(sizes: Ints) -> Floats:
    """(k, k) GPUs from one level to another; inf, so that nothing is gained, where not more."""
    gpus = sizes.astype(np.float64)
    extra: Floats = gpus - gpus[:, None]
    extra[extra <= 0] = np.inf
    return extra


def _walk(mine: Ints, here: Ints, own: Floats, sizes: Ints) -> _Found:
    """Find the best step from each level at once, then follow each job's: quicker for few jobs.

    Args:
        mine: (m,) rows.
        here: (m,) levels that they begin at.
        own: (m, k) worth, the largest level first: of equal slopes the first is found, so there are
            fewer steps.
        sizes: (k,) in the same order.
    """
    top, own = len(sizes) - 1, np.maximum(own, _LEAST)
    slopes = own[:, None, :] - own[:, :, None]
    slopes /= _more(sizes)
    best = slopes.argmax(axis=2)
    # Along so short an axis numpy takes several times as long for a maximum as for its place.
    at = best.ravel() + np.arange(0, slopes.size, len(sizes))
    rise = slopes.ravel().take(at).reshape(best.shape)
    found = list[int]()  # steps, as indices into both
    for first, level, ahead, gains in zip(
        range(0, best.size, top + 1),
        (top - here).tolist(),
        best.tolist(),
        rise.tolist(),
        strict=True,
    ):
        while gains[level] > LEAST_SLOPE:
            found.append(first + level)
            level = ahead[level]
    step = np.array(found, dtype=np.int64)
    job = step // (top + 1)
    before = step - job * (top + 1)
    return mine[job], top - before, top - best.ravel()[step], rise.ravel()[step]


def _rounds(mine: Ints, here: Ints, own: Floats, sizes: Ints) -> _Found:
    """Take one step of every job per round.

    Args:
        mine: (m,) rows.
        here: (m,) levels that they begin at.
        own: (k, m) worth.
        sizes: (k,)
    """
    rounds, own = list[_Found](), np.maximum(own, _LEAST)
    extra = np.ascontiguousarray(_more(sizes).T)  # to each level
    while len(mine):
        now = own[here, np.arange(len(mine))]
        steepest, end = np.full(len(mine), _LEAST_STEP), np.zeros(len(mine), dtype=np.int16)
        for level in range(1, len(own)):
            slope = own[level] - now
            slope /= extra[level].take(here)
            # Of equal slopes the largest level counts, so there are fewer steps.
            np.maximum(end, (slope >= steepest) * np.int16(level), out=end)
            np.maximum(steepest, slope, out=steepest)
        to, rises = end.astype(np.int64), end.nonzero()[0]
        if len(rises) < len(mine):
            mine, here, to, own = mine[rises], here[rises], to[rises], own.take(rises, axis=1)
            steepest = steepest[rises]
        rounds.append((mine, here, to, steepest))
        here = to
    row, before, to, slope = map(np.concatenate, zip(*rounds, strict=True))
    return row, before, to, slope


def _steepest(
    slope: Floats, row: Ints, group: Ints, kind: Literal["quicksort", "stable"] = "quicksort"
) -> Ints:
    """Order steps by group, then the steepest first, equal ones by job, then as they are.

    Few are equal, and where none are, the order of the fastest sort is the only one.
    """
    order = (-slope).argsort(kind=kind)
    if np.count_nonzero(group):
        small = group.astype(np.min_scalar_type(int(group.max())))
        order = order[small[order].argsort(kind="stable")]  # small whole numbers: by radix
    ranked, of = slope[order], group[order]
    if np.count_nonzero((ranked[1:] == ranked[:-1]) & (of[1:] == of[:-1])):
        order = np.lexsort((row, -slope, group))
    return order


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
    level[rows], _ = take(sizes, open_to, start[rows], climb(sizes, open_to, start[rows]), gpus)
    return level


def take(sizes: Ints, value: Floats, start: Ints, steps: Steps, gpus: int) -> tuple[Ints, int]:
    """Take the steepest steps that fit, and use up what the first that did not left over.

    Args:
        sizes: (k,)
        value: (n, k)
        start: (n,) levels that the steps begin at.
        steps: Of the rows of `value`.
        gpus: To share out.

    Returns:
        Levels, and how many GPUs are left.
    """
    level: Ints = start.copy()
    whole = steps.fitting(gpus)
    level[steps.row[:whole]] = steps.end[:whole]  # of several of one job the last, its largest
    left = gpus - int(np.add.reduce(steps.cost[:whole]))
    if left <= 0 or whole == len(steps.row):
        return level, left
    missed = np.arange(len(steps.row)) >= whole
    for at in (missed & (steps.cost <= left)).nonzero()[0].tolist():
        row, end, cost = int(steps.row[at]), int(steps.end[at]), int(steps.cost[at])
        if cost <= left and sizes[end] - sizes[level[row]] == cost:
            level[row], left, missed[at] = end, left - cost, False
            if not left:
                return level, left
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
    return level, left
