"""A choice of nodes to empty, and what one node more or less would cost, kept up to date.

The cost of a choice is a sum over jobs, and a job's part depends only on how many of its GPUs are
on chosen nodes. So adding or taking back a node changes the figures only of nodes that share a job
with it; a search can try thousands of choices in the time of a few from the start.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from scheduler.policies.interface import Floats, Ints

#: Nodes that mending may add and take back, in all: some milliseconds.
MEND_STEPS = 400
#: How the place of a spared job is filled, in turn.
MEND_RULES = ("ratio", "fraction")
_SAME = 1e-9


class Evacuation:
    """Chosen nodes, as indices into those that may be emptied; jobs as indices too.

    Of each job: it holds GPUs above its base, so many of which can go before it falls. A job
    *blocks* a node if it would fall when the node is chosen.
    """

    def __init__(
        self,
        held: Sequence[Mapping[int, int]],
        base: Sequence[int],
        stop_cost: Sequence[float],
        shrink_cost: Sequence[float],
        nodes: Sequence[int],
    ) -> None:
        at = {node: index for index, node in enumerate(nodes)}
        self._on: list[list[tuple[int, int]]] = [[] for _ in nodes]  # node -> (job, GPUs)
        self._of: list[list[tuple[int, int]]] = []  # job -> (node, GPUs)
        self._spans = [len(mine) for mine in held]
        for job, mine in enumerate(held):
            here = [(at[node], gpus) for node, gpus in mine.items() if node in at]
            self._of.append(here)
            for node, gpus in here:
                self._on[node].append((job, gpus))
        self._extra = [
            max(0, sum(mine.values()) - least) for mine, least in zip(held, base, strict=True)
        ]
        self._stop, self._shrink = list(stop_cost), list(shrink_cost)
        self._scale = max([*self._stop, *self._shrink, 0.0])
        self._ban = 2.0 * sum(self._stop) + self._scale
        self._fresh = self._figures()
        self.clear()

    def _figures(self) -> tuple[Floats, Floats, Ints, Ints, Ints, Ints, list[dict[int, None]]]:
        """Return the figures of all nodes while none is chosen."""
        nodes, jobs = len(self._on), len(self._of)
        entries = [(job, node, gpus) for job, mine in enumerate(self._of) for node, gpus in mine]
        job, node, gpus = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        #: Of nodes that cost the same, that with the fewest GPUs in use, then the first.
        self._tie = _sums(node, gpus, nodes) * (self._scale * 1e-9)
        falls = gpus > np.array(self._extra)[job]
        stop, shrink = np.array(self._stop)[job], np.array(self._shrink)[job]
        whole = _sums(node, np.where(falls, stop, shrink), nodes)
        parts = np.where(falls, stop / np.array(self._spans)[job], shrink)
        part = _sums(node, parts, nodes)
        job, node = job[falls], node[falls]
        blocks: Ints = np.bincount(node, minlength=nodes)
        who = _sums(node, job, nodes).astype(np.int64)
        alone: Ints = np.bincount(who[blocks == 1], minlength=jobs)
        frees = _sums(node, alone[job], nodes).astype(np.int64)
        where: list[dict[int, None]] = [{} for _ in range(jobs)]
        for one, at in zip(job.tolist(), node.tolist(), strict=True):
            where[one][at] = None
        return whole, part, blocks, who, alone, frees, where

    def clear(self) -> None:
        """Choose nothing."""
        nodes, jobs = len(self._on), len(self._of)
        whole, part, blocks, who, alone, frees, where = self._fresh
        self.chosen: dict[int, None] = {}  #: in the order they were added.
        self.cost = 0.0
        self.stopped = 0
        self.steps = 0  #: nodes that mending added and took back.
        self._taken = [0] * jobs  # GPUs on chosen nodes
        self._many = [0] * jobs  # chosen nodes it holds
        self._price = list(self._stop)
        self._open = np.zeros(nodes)  # inf where chosen
        self._whole = whole.copy()  # cost of one node more
        self._part = part.copy()  # the same, a stop in equal parts on all nodes of its job
        self._blocks = blocks.copy()  # jobs that block it
        self._who: list[int] = who.tolist()  # the sum of their indices: the one, if it is one
        self._alone: list[int] = alone.tolist()  # nodes that only this job blocks
        self._frees = frees.copy()  # `_alone` of all that block it
        self._where = [dict(mine) for mine in where]  # nodes that a job blocks

    def add(self, node: int) -> None:
        """Choose a node."""
        self._change(node, 1)

    def drop(self, node: int) -> None:
        """Choose a node no more."""
        self._change(node, -1)

    def fill(self, need: int, rule: str, most: float = np.inf) -> list[int]:
        """Add the best node by a rule until there are enough, or the cost is above `most`.

        Returns those added, in order.
        """
        added = []
        while len(self.chosen) < need and self.cost <= most:
            node = self._best(need - len(self.chosen), rule)
            self.add(node)
            added.append(node)
        return added

    def mend(self) -> bool:
        """Spare one fallen job after the other if others fall at less cost; say if that helped."""
        self.steps = 0
        helped, jobs = False, len(self._of)
        job, since = 0, 0
        while since < jobs and self.steps < MEND_STEPS:
            if self._taken[job] > self._extra[job] and self._spare(job):
                helped, since = True, 0
            else:
                since += 1
            job = (job + 1) % jobs
        return helped

    def _spare(self, job: int) -> bool:
        """Let a fallen job stand if other nodes cost less, or as much and free more besides."""
        need, slight = len(self.chosen), _SAME * self._scale
        cost, surplus = self.cost, self._surplus()
        lost = [node for node, _ in self._of[job] if node in self.chosen]
        for node in lost:
            self.drop(node)
        self._set_price(job, self._ban)
        for rule in MEND_RULES:
            added = self.fill(need, rule, cost + slight)
            self.steps += len(added) + len(lost)
            if len(self.chosen) == need and (
                self.cost < cost - slight
                or (self.cost <= cost + slight and self._surplus() > surplus)
            ):
                self._set_price(job, self._stop[job])
                return True
            for node in added:
                self.drop(node)
        self._set_price(job, self._stop[job])
        for node in lost:
            self.add(node)
        return False

    def _surplus(self) -> int:
        """Nodes that come free beside the chosen ones."""
        return int(((self._whole <= _SAME * self._scale) & (self._open == 0.0)).sum())

    def _best(self, wanted: int, rule: str) -> int:
        if rule == "fraction":
            key = self._part
        elif rule == "count":
            key = self._whole
        else:  # nodes that only the fallen jobs keep busy become free with this one
            freed = self._frees + (self._blocks != 1)
            key = self._whole / np.minimum(np.maximum(freed, 1), wanted)
        return int((key + self._tie + self._open).argmin())

    def _set_price(self, job: int, price: float) -> None:
        self._count(job, -1)
        if self._taken[job] > self._extra[job]:
            self.cost += price - self._price[job]
        self._price[job] = price
        self._count(job, 1)

    def _change(self, node: int, sign: int) -> None:
        jobs = self._on[node]
        for job, _ in jobs:
            self._count(job, -1)
            self._pay(job, -1)
        if sign > 0:
            self.chosen[node] = None
            self._open[node] = np.inf
        else:
            del self.chosen[node]
            self._open[node] = 0.0
        for job, gpus in jobs:
            self._taken[job] += sign * gpus
            self._many[job] += sign
            self._pay(job, 1)
            self._count(job, 1)

    def _pay(self, job: int, sign: int) -> None:
        """Put a job's part into the cost, or take it out."""
        if self._taken[job] > self._extra[job]:
            self.cost += sign * self._price[job]
            self.stopped += sign
        elif self._taken[job]:
            self.cost += sign * self._shrink[job]

    def _count(self, job: int, sign: int) -> None:
        """Put a job's part into the figures of its nodes, or take it out."""
        taken, extra = self._taken[job], self._extra[job]
        if taken > extra:
            return
        paid = self._shrink[job] if taken else 0.0
        whole = self._price[job] - paid
        part = self._price[job] / (self._spans[job] - self._many[job] or 1) - paid
        less = self._shrink[job] - paid
        for node, gpus in self._of[job]:
            if node in self.chosen:
                continue
            if taken + gpus > extra:
                self._whole[node] += sign * whole
                self._part[node] += sign * part
                self._block(job, node, sign)
            else:
                self._whole[node] += sign * less
                self._part[node] += sign * less

    def _block(self, job: int, node: int, sign: int) -> None:
        """Let a job block a node, or no more, and keep count of the nodes blocked by one job."""
        if sign > 0:
            if self._blocks[node] == 1:
                self._lone(self._who[node], -1)
            self._where[job][node] = None
            self._frees[node] += self._alone[job]
            if not self._blocks[node]:
                self._lone(job, 1)
        else:
            if self._blocks[node] == 1:
                self._lone(job, -1)
            self._frees[node] -= self._alone[job]
            del self._where[job][node]
            if self._blocks[node] == 2:
                self._lone(self._who[node] - job, 1)
        self._blocks[node] += sign
        self._who[node] += sign * job

    def _lone(self, job: int, sign: int) -> None:
        self._alone[job] += sign
        for node in self._where[job]:
            self._frees[node] += sign


def _sums(node: Ints, weight: Floats | Ints, nodes: int) -> Floats:
    """(nodes,) sums of weights by node."""
    return np.bincount(node, weight, nodes).astype(np.float64)
