"""Dominant resource fairness between tenants in a tree: `drf`.

A tenant named `a/b/c` is a leaf below `a` and `a/b`. Resources are the GPUs and the GPU memory of
the training pools; with jobs that fill their GPUs' memory, or when all are alike, it is max-min
fairness on GPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import Floats, Ints, Kind, Phase, Plan, Snapshot
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, write
from scheduler.policies.ranges import Positive


@dataclass(slots=True, eq=False)
class Node:
    """One tenant, or a group of them. R resources."""

    path: str
    weight: float
    used: Floats  #: (R,) by its jobs, or, of a group, by its children as rescaled.
    total: Floats  #: (R,) as held.
    children: list["Node"] = field(default_factory=list)
    above: "Node | None" = None
    queue: list[int] = field(default_factory=list)  #: of a leaf: claims, the next one last.
    wants: bool = False  #: some claim below is neither granted nor blocked.
    share: float = 0.0  #: dominant share of `used`, over its weight.


class Tree:
    """Who has the smallest dominant share.

    Args:
        capacity: (R,) of each resource. One with none of it is left out.
        paths: Of the leaves.
        weights: Path -> weight, 1 where none is given.
    """

    def __init__(
        self, capacity: Floats, paths: Sequence[str], weights: Mapping[str, float]
    ) -> None:
        self.capacity = capacity
        self._capacity: list[float] = capacity.tolist()
        self._nodes: dict[str, Node] = {}
        self.root = self._node("", weights)
        for path in sorted(set(paths)):
            self._node(path, weights)
        for path in sorted(set(paths)):
            if self._nodes[path].children:  # a group with jobs of its own: they are one child
                self._node(path + "/", weights)

    def _node(self, path: str, weights: Mapping[str, float]) -> Node:
        if path not in self._nodes:
            zero = np.zeros(len(self.capacity))
            node = Node(path, weights.get(path, 1.0), zero, zero.copy())
            self._nodes[path] = node
            if path:
                node.above = self._node(path.rpartition("/")[0], weights)
                node.above.children.append(node)
        return self._nodes[path]

    def leaf(self, path: str) -> Node:
        """Return a leaf."""
        return self._nodes.get(path + "/") or self._nodes[path]

    def refresh(self) -> None:
        """Compute all shares, after uses and queues were filled in."""

        def visit(node: Node) -> None:
            for child in node.children:
                visit(child)
            self._update(node)

        visit(self.root)

    def count(self, leaf: Node, demand: Floats) -> None:
        """Count a demand as used, before `refresh`."""
        leaf.used = leaf.used + demand
        node: Node | None = leaf
        while node is not None:
            node.total = node.total + demand
            node = node.above

    def grant(self, leaf: Node, demand: Floats) -> None:
        """Count a demand as used, and bring the shares up to date."""
        self.count(leaf, demand)
        self._update_up(leaf)

    def block(self, leaf: Node) -> None:
        """Leave a leaf out from now on: what it asks for does not fit."""
        leaf.queue.clear()
        self._update_up(leaf)

    def next(self) -> Node | None:
        """Return the leaf that is served next: at each level the child with the smallest share."""
        node = self.root
        if not node.wants:
            return None
        while not node.queue:
            node = min((c for c in node.children if c.wants), key=lambda child: child.share)
        return node

    def _update_up(self, leaf: Node) -> None:
        node: Node | None = leaf
        while node is not None:
            self._update(node)
            node = node.above

    def _update(self, node: Node) -> None:
        wanting = [child for child in node.children if child.wants]
        node.wants = bool(wanting or node.queue)
        if wanting and node.above is not None:
            least = min(child.share for child in wanting)
            node.used = sum(
                (c.used * (least / c.share) for c in wanting if c.share > 0),
                np.zeros(len(self.capacity)),
            )
        elif node.children:
            node.used = node.total
        node.share = self.dominant(node.used) / node.weight

    def dominant(self, used: Floats) -> float:
        """Return the largest part of any resource."""
        pairs = zip(used.tolist(), self._capacity, strict=True)
        return max((part / whole for part, whole in pairs if whole > 0), default=0.0)


@dataclass(frozen=True, slots=True)
class Drf:
    """Hierarchical dominant resource fairness (DRF, and H-DRF as recalled [M]).

    Again and again the tenant with the smallest dominant share, at each level of the tree, starts
    its next gang (by priority, then submission). Running gangs count; none is preempted. A group's
    share is that of its children's uses, each scaled down to the smallest share among those that
    want more, so that a group is not held back by one child's saturated resource; children that
    want nothing are left out [M]. A weight of 2 entitles to twice as much.

    Behind a gang that does not fit its tenant's next is tried. The paper ends the round there: its
    tasks are small against a server, so that where one does not fit the cluster is full. A gang
    that does not fit says no such thing, and GPUs would stand idle behind it.
    """

    name: str = "drf"
    weights: Mapping[str, Positive] = field(default_factory=dict)  #: by path.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Fill up the smallest shares."""
        found = gangs(snapshot)
        jobs = snapshot.jobs
        per_gpu: Floats = np.stack([np.ones(len(jobs.ids)), jobs.memory_mib], axis=1)
        demand: Floats = per_gpu * found.size[:, None]
        tree = Tree(_capacity(snapshot), jobs.tenants, self.weights)
        leaves = [tree.leaf(tenant) for tenant in jobs.tenants]
        training = snapshot.pools.kind[np.maximum(jobs.pool, 0)] == Kind.TRAINING
        holds = (jobs.phase != Phase.WAITING) & (jobs.size > 0) & training & ~found.ousted
        for job in np.flatnonzero(holds).tolist():
            tree.count(leaves[job], per_gpu[job] * jobs.size[job])
        for job in np.lexsort((-np.arange(len(leaves)), jobs.priority)).tolist():
            if found.starts[job]:
                leaves[job].queue.append(job)
        tree.refresh()
        given = self._fill(found, tree, demand)
        share = np.array([tree.dominant(leaf.total) for leaf in leaves], dtype=np.float64)
        return write(found, Verdict(given, "drf.share", figures={"tenant_share": share}))

    def _fill(self, found: Gangs, tree: Tree, demand: Floats) -> Ints:
        given, room = found.pool.copy(), found.room.tolist()
        while any(room) and (leaf := tree.next()):
            job = leaf.queue.pop()
            pool = found.fits(job, room)
            if pool >= 0:
                given[job] = pool
                room[pool] -= int(found.size[job])
                tree.grant(leaf, demand[job])
            elif not leaf.queue:
                tree.block(leaf)
        return given


def _capacity(seen: Snapshot) -> Floats:
    """(2,) GPUs and GPU memory of the training pools."""
    trains = (seen.pools.kind[seen.nodes.pool] == Kind.TRAINING) & seen.nodes.usable
    gpus = np.where(trains, seen.nodes.gpus, 0).astype(np.float64)
    return np.array([gpus.sum(), (gpus * seen.pools.gpu_memory_mib[seen.nodes.pool]).sum()])
