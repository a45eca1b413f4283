"""Small gangs make room on a node for a larger one, so that it needs no second node.

Nodes fragment: who keeps its size keeps its place, and what is left is a GPU here and two there. A
gang that would lie across nodes takes one, and those who leave it go where there is room. So
Gandiva defragments (Xiao et al., OSDI '18); here it is one decision with the placement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Snapshot
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
        self._apart: list[float] = []
        #: By pool and node: the cheapest to move first, and how many GPUs they hold.
        self._on: dict[int, dict[int, list[Stayer]]] | None = None

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
        if self._on is None:
            self._on = self._look()
        best, least = None, self._apart[job]
        on = self._on.get(pool, {}) if least > 0.0 else {}
        for node, all_there in on.items():
            if not all_there or all_there[0][0] >= least:
                continue  # the first is the cheapest
            short = size - room.free(node)
            there = [one for one in all_there if one[2] < size]
            # One has to go.
            if not there or there[0][0] >= least:
                continue
            found = _fewest(there, short)
            cost = sum(one[0] for one in found)
            if found and cost < least:
                best, least = (node, found), cost
        if best is None:
            return {}
        node, gone = best
        on[node] = [one for one in on[node] if one not in gone]
        for one in gone:
            room.give(node, one[2])
        return {one[1]: (node, one[2]) for one in gone}

    def _look(self) -> dict[int, dict[int, list[Stayer]]]:
        """Find who may be moved."""
        held, repack = self._seen.holdings, self._repack()
        self._apart = repack.apart.tolist()
        cost = repack.move[held.job]
        mine = self._stays[held.job] & np.isfinite(cost)
        mine &= held.gpus == self._seen.jobs.size[held.job]  # on one node
        # No larger gang comes to a node that one has whole; and nobody moves for less.
        mine &= held.gpus < self._seen.nodes.gpus[held.node]
        mine &= cost < repack.apart.max()
        rows = mine.nonzero()[0]
        rows = rows[np.lexsort((held.job[rows], cost[rows], held.node[rows]))]
        node = held.node[rows]
        each = zip(
            cost[rows].tolist(), held.job[rows].tolist(), held.gpus[rows].tolist(), strict=True
        )
        where = zip(self._seen.nodes.pool[node].tolist(), node.tolist(), strict=True)
        found: dict[int, dict[int, list[Stayer]]] = {}
        for (pool, there), one in zip(where, each, strict=True):
            found.setdefault(pool, {}).setdefault(there, []).append(one)
        return found


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
