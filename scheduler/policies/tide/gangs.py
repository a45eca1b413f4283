"""Room for a large gang that waits: it goes first where it gains more by that than others lose.

GPUs go to the steepest steps, as far as they reach. A gang of many GPUs that gains a little less by
each than others do would so wait beside GPUs that nobody can use, for as long as small jobs come.
With those, and a few that others would have, it may gain more than they lose.
"""

import numpy as np

from scheduler.policies.interface import Floats, Ints
from scheduler.policies.parts.hull import LEAST_SLOPE, Steps, take

#: So many gangs that find no room are tried at most.
TRIES = 8


def shared_out(
    sizes: Ints, value: Floats, start: Ints, steps: Steps, gpus: int, rank: Ints
) -> tuple[Ints, int]:
    """Take the steepest steps as `take` does, but start one gang before all others if that pays.

    Args:
        sizes: (k,) GPUs of each level, ascending.
        value: (n, k) worth at each level.
        start: (n,) levels that the steps begin at.
        steps: Of the rows of `value`.
        gpus: To share out.
        rank: (n,) class of each: nobody has less for one of a lower class.

    Returns:
        (n,) levels, and who went first, -1: nobody.
    """
    level, left = take(sizes, value, start, steps, gpus)
    for at in _may_gain(sizes, level, steps, left) if left > 0 else ():
        row = int(steps.row[at])
        others = np.arange(len(steps.row)) != at
        order = steps.of(np.concatenate(([at], others.nonzero()[0])))
        other, _ = take(sizes, value, start, order, gpus)
        loses = (other < level).nonzero()[0]
        lost = np.add.reduce(value[loses, level[loses]] - value[loses, other[loses]])
        # What others find room for besides is not its gain: a smaller gang would go before a larger
        # one whose GPUs are worth more.
        gain = steps.slope[at] * steps.cost[at] - lost
        if gain > LEAST_SLOPE and rank[loses].max(initial=0) <= rank[row]:
            return other, row
    return level, -1


def _may_gain(sizes: Ints, level: Ints, steps: Steps, left: int) -> list[int]:
    """List first steps that found no room, but gain more than the least that would have to go.

    Args:
        sizes: (k,)
        level: (n,) what each has.
        steps: The steepest first.
        left: GPUs that nobody has.
    """
    waits = (level[steps.row] == 0) & (sizes[steps.end] == steps.cost) & (steps.cost > left)
    at = waits.nonzero()[0]
    if not len(at):
        return []
    had = level[steps.row] >= steps.end
    cost, slope = steps.cost[had][::-1], steps.slope[had][::-1]
    paid, worth = (np.append(0.0, one.cumsum()) for one in (cost, cost * slope))
    lost = np.interp(steps.cost[at] - left, paid, worth, right=np.inf)
    found: list[int] = at[steps.slope[at] * steps.cost[at] > lost][:TRIES].tolist()
    return found


def displaced_by(sizes: Ints, steps: Steps) -> Ints:
    """(t,) how many GPUs a gang behind each step takes at most, if it may go before that step.

    Args:
        sizes: (k,)
        steps: The steepest first.
    """
    # Products, as in `market.barred`: where choices are many, to choose takes longer.
    cost = steps.cost * (sizes[steps.end] == steps.cost)
    worth, behind, most = cost * steps.slope, np.zeros(len(cost)), np.zeros_like(cost)
    # What is not below 0 has the order of its bits, and whole numbers are compared faster.
    bits, greatest = worth.view(np.int64), behind.view(np.int64)
    np.maximum.accumulate(bits[:0:-1], out=greatest[-2::-1])
    np.maximum.accumulate(cost[:0:-1], out=most[-2::-1])
    found: Ints = most * (behind > steps.cost * steps.slope)
    return found
