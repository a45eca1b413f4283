"""A tree of queues: what each is guaranteed, may have and uses, and which leaf goes next."""

import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: GPUs that are rounding: guarantees are fractions.
NEARLY = 1e-9


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, or a group of them.

    Numbers are parts of the parent's, or GPUs where `gpus` is set.
    """

    path: str  #: `a/b` is a child of `a`.
    guaranteed: float
    maximum: float | None = None  #: None: all that the parent may have.
    gpus: bool = False
    user_limit: float = math.inf  #: most of one tenant, as a multiple of the guarantee.
    order: Literal["fifo", "shortest"] = "fifo"  #: after priority; of a leaf.
    preemptible: bool = True  #: its bonus may be taken back.


@dataclass(slots=True, eq=False)
class Branch:
    """A queue at work."""

    index: int
    rule: Queue
    least: float  #: GPUs it is guaranteed.
    most: float  #: GPUs it may have.
    above: "Branch | None"
    children: list["Branch"] = field(default_factory=list)
    used: float = 0.0
    by_user: dict[str, int] = field(default_factory=dict)  #: of a leaf.
    wants: bool = False
    _queue: list[tuple[tuple[float, ...], int]] = field(default_factory=list)

    def path_up(self) -> Iterator["Branch"]:
        """Yield this queue and all above."""
        one: Branch | None = self
        while one is not None:
            yield one
            one = one.above

    def is_below(self, other: "Branch") -> bool:
        """Tell whether this is a queue, or below it."""
        return any(one is other for one in self.path_up())

    def below_common(self, other: "Branch") -> Iterator["Branch"]:
        """Yield this queue and those above that are not also above `other`."""
        shared = {one.index for one in other.path_up()}
        return (one for one in self.path_up() if one.index not in shared)

    def add(self, gpus: int, user: str) -> None:
        """Count GPUs of a user, here and in all above."""
        self.by_user[user] = self.by_user.get(user, 0) + gpus
        for one in self.path_up():
            one.used += gpus

    def full(self, gpus: int) -> list["Branch"]:
        """Return the queues from here up whose maximum forbids so many more GPUs.

        The cluster is none of them: that nothing is free there is no limit of a queue.
        """
        above = (one for one in self.path_up() if one.above is not None)
        return [one for one in above if one.used + gpus > one.most + NEARLY]

    def user_most(self) -> float:
        """GPUs that one tenant may have."""
        limit = self.rule.user_limit
        return limit * self.least if math.isfinite(limit) else math.inf

    def ratio(self) -> float:
        """Use for the guarantee."""
        return self.used / self.least if self.least > 0 else math.inf if self.used else 0.0

    def over(self, dead_zone: float) -> bool:
        """Tell whether its bonus may be taken back."""
        return self.rule.preemptible and self.used > self.least * (1 + dead_zone) + NEARLY

    def push(self, job: int, key: tuple[float, ...]) -> None:
        """Add a job; smaller keys go first."""
        heapq.heappush(self._queue, (key, job))

    def pop(self) -> int:
        """Take the next job."""
        return heapq.heappop(self._queue)[1]

    def clear(self) -> None:
        """Let the others wait."""
        self._queue.clear()

    @property
    def waiting(self) -> bool:
        """Whether jobs wait here."""
        return bool(self._queue)

    def urgency(self) -> tuple[bool, float, int]:
        """Below the guarantee first, then the smallest use for it."""
        return (self.used >= self.least - NEARLY, self.ratio(), self.index)


@dataclass(slots=True, eq=False)
class QueueTree:
    """All queues; the root is the cluster."""

    branches: list[Branch]
    leaves: Mapping[str, Branch]  #: tenant -> leaf.

    def leaf(self, tenant: str) -> Branch:
        """Return a tenant's leaf."""
        return self.leaves[tenant]

    def next(self) -> Branch | None:
        """Return the leaf that is served next; None if nobody wants anything."""
        one = self.branches[0]
        if not one.wants:
            return None
        while not one.waiting:
            one = min((child for child in one.children if child.wants), key=Branch.urgency)
        return one

    def refresh(self, leaf: Branch | None = None) -> None:
        """Tell who wants something, after queues changed; `leaf`: only there and above."""
        for one in leaf.path_up() if leaf else reversed(self.branches):
            one.wants = one.waiting or any(child.wants for child in one.children)


def check(queues: Sequence[Queue], named: Collection[str]) -> None:
    """Find what makes no tree.

    Raises:
        ValueError: A path twice, a parent missing, more guaranteed than the parent is, a maximum
            below the guarantee, or a tenant's queue that is no leaf.
    """
    paths = [queue.path for queue in queues]
    parents = {path.rpartition("/")[0] for path in paths}
    if len({*paths}) < len(paths) or "" in paths:
        raise ValueError("each queue needs a path of its own")
    for parent in sorted(parents - {""} - {*paths}):
        raise ValueError(f"queue {parent} is a parent, but not listed")
    for path in named:
        if path not in paths or path in parents:
            raise ValueError(f"queue {path} has tenants, but is no leaf")
    for queue in queues:
        if queue.guaranteed < 0 or (queue.maximum is not None and queue.maximum < 0):
            raise ValueError(f"queue {queue.path} has a negative share")
        if queue.maximum is not None and queue.maximum < queue.guaranteed:
            raise ValueError(f"queue {queue.path} is guaranteed more than it may have")
    for parent in sorted(parents):
        mine = [queue for queue in queues if queue.path.rpartition("/")[0] == parent]
        if sum(queue.guaranteed for queue in mine if not queue.gpus) > 1 + NEARLY:
            raise ValueError(f"queues below {parent or 'the root'} are guaranteed more than all")


def grow_tree(
    queues: Sequence[Queue],
    leaf_of: Mapping[str, str],
    default_leaf: str,
    tenants: Sequence[str],
    cluster: int,
) -> QueueTree:
    """Build the tree for a cluster of so many GPUs.

    Args:
        queues: Parents and leaves; none: one leaf for each tenant, all guaranteed the same.
        leaf_of: Tenant -> path.
        default_leaf: Path for the others; "": the first leaf.
        tenants: Whoever has jobs.
        cluster: GPUs in all.
    """
    names = sorted({*tenants})
    root = Branch(0, Queue("", 1.0), float(cluster), float(cluster), None)
    branches = [root]
    at = {"": root}

    def add(queue: Queue, above: Branch) -> Branch:
        unit_least, unit_most = (1.0, 1.0) if queue.gpus else (above.least, above.most)
        most = above.most if queue.maximum is None else queue.maximum * unit_most
        branch = Branch(
            len(branches), queue, queue.guaranteed * unit_least, min(most, above.most), above
        )
        branches.append(branch)
        above.children.append(branch)
        return branch

    if not queues:
        leaves = {name: add(Queue(name, 1 / len(names)), root) for name in names}
        return QueueTree(branches, leaves)
    for queue in sorted(queues, key=lambda queue: (queue.path.count("/"), queue.path)):
        at[queue.path] = add(queue, at[queue.path.rpartition("/")[0]])
    first = next(queue.path for queue in queues if not at[queue.path].children)
    return QueueTree(
        branches, {name: at[leaf_of.get(name, default_leaf or first)] for name in names}
    )
