"""Small gangs make room on a node for a larger one, so that it needs no second node.

Nodes fragment: who keeps its size keeps its place, and what is left is a GPU here and two there. A
gang that would lie across nodes takes one, and those who leave it go where there is room. So
Gandiva defragments (Xiao et al., OSDI '18); here it is one decision with the placement.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints, Snapshot
from scheduler.policies.parts.free_gpus import FreeGpus

#: A gang that may be moved: what that costs, which job it is, and its GPUs.
Stayer = tuple[float, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Repack:
    """What it costs to move gangs, and to leave them apart, in the same unit. n jobs."""

    move: Floats  #: (n,) of a gang that keeps its size; inf: it stays.
    apart: Floats  #: (n,) of a gang on more nodes than it needs; 0: nobody moves for it.


class Stayers:
    """Gangs on one node each that would stay where they are, and may be moved."""

    def __init__(self, seen: Snapshot, repack: Callable[[], Repack], stays: Bools) -> None:
        """Remember what is asked for once a gang fits on no node.

        Args:
            seen: What is known.
            repack: Says what moves cost.
            stays: (n,) who keeps size and place, and may be touched.
        """
        self._seen, self._repack, self._stays = seen, repack, stays
        self._most = int(seen.nodes.gpus.max(initial=0))  # that a node has
        self._apart: Floats | None = None
        #: By node: the cheapest to move first, of those nodes that were asked for.
        self._on: dict[int, list[Stayer]] = {}
        #: All gangs by node, as columns of what a `Stayer` is; and by node, where its gangs are.
        self._gangs: tuple[Floats | Ints, ...] = ()
        self._span: dict[int, tuple[int, int]] = {}
        #: By pool: its nodes with such gangs, that with the cheapest first, each after that cost.
        self._order: dict[int, list[tuple[float, int]]] = {}

    def leave_for(
        self, job: int, size: int, pool: int, room: FreeGpus
    ) -> Mapping[int, tuple[int, int]]:
        """Let smaller gangs leave a node where a gang then fits, if none has room and it pays.

        Args:
            job: Who comes.
            size: Its GPUs; the room has so many in all.
            pool: Where.
            room: Of the pool; what is left is free there from now on.

        Returns:
            Job that leaves -> its node and GPUs.
        """
        if not 1 < size <= min(self._most, room.gpus) or room.fits(size):
            return {}
        if self._apart is None:
            self._apart = self._look()
        least, at, gone = float(self._apart[job]), -1, list[Stayer]()
        order = self._order.get(pool, []) if least > 0.0 else []
        for cheapest, node in order:
            if cheapest > least:
                break
            if node not in self._on:
                gangs = (column[slice(*self._span[node])].tolist() for column in self._gangs)
                self._on[node] = list(zip(*gangs, strict=True))
            # Nobody goes who costs more alone.
            there = [one for one in self._on[node] if one[2] < size and one[0] <= least]
            found = _fewest(there, size - room.free(node))
            cost = sum(one[0] for one in found)
            # Of equal ones the first node; none for as much as it loses on two.
            if found and (cost, node) < (least, at):
                least, at, gone = cost, node, found
        if not gone:
            return {}
        there = self._on[at]
        del order[bisect_left(order, (there[0][0], at))]
        there = self._on[at] = [one for one in there if one not in gone]
        if there:
            insort(order, (there[0][0], at))
        for one in gone:
            room.give(at, one[2])
        return {one[1]: (at, one[2]) for one in gone}

    def _look(self) -> Floats:
        """Find who may be moved; return what it costs to leave each job apart."""
        held, repack = self._seen.holdings, self._repack()
        cost = repack.move[held.job]
        mine = self._stays[held.job] & np.isfinite(cost)
        mine &= held.gpus == self._seen.jobs.size[held.job]  # on one node
        # No larger gang comes to a node that one has whole; and nobody moves for less.
        mine &= held.gpus < self._seen.nodes.gpus[held.node]
        mine &= cost < repack.apart.max()
        rows = mine.nonzero()[0]
        rows = rows[np.lexsort((cost[rows], held.node[rows]))]  # of equal ones by job, as they are
        if not len(rows):
            return repack.apart
        self._gangs = cost[rows], held.job[rows], held.gpus[rows]
        node = held.node[rows]
        first = np.concatenate(([0], (node[1:] != node[:-1]).nonzero()[0] + 1))
        nodes, cheapest = node[first], self._gangs[0][first]
        self._span = dict(zip(nodes.tolist(), pairwise([*first.tolist(), len(rows)]), strict=True))
        pool = self._seen.nodes.pool[nodes]
        for one in sorted({*pool.tolist()}):
            mine = pool == one
            order = zip(cheapest[mine].tolist(), nodes[mine].tolist(), strict=True)
            self._order[one] = sorted(order)
        return repack.apart


def _fewest(stayers: list[Stayer], gpus: int) -> list[Stayer]:
    """Choose the cheapest that hold so many GPUs, none needlessly; [] if all hold too few."""
    chosen, held = [], 0
    for one in stayers:
        if held >= gpus:
            break
        chosen.append(one)
        held += one[2]
    if held < gpus:
        return []
    for one in chosen[::-1]:  # the dearest first
        if held - one[2] >= gpus:
            chosen.remove(one)
            held -= one[2]
    return chosen
