"""Which nodes of a pool gangs get: few, the fullest that fit, those they already hold."""

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Literal

from scheduler.policies.interface import Ints

#: `pack`: as few nodes as can be, the fullest that fits last. `most_free`: from the node with most
#: free GPUs, again and again, as the simulator of Tiresias does; never two gangs' worth moved.
Style = Literal["pack", "most_free"]


class FreeGpus:
    """The free GPUs of a pool's nodes; gives them away, and finds a node by how many it has."""

    def __init__(self, free: Ints, members: Ints) -> None:
        """Begin.

        Args:
            free: (p,) free GPUs of all nodes.
            members: Nodes of the pool, ascending.
        """
        some = members[free[members] > 0]  # most have none
        self._free: dict[int, int] = dict(zip(some.tolist(), free[some].tolist(), strict=True))
        #: By free GPUs the nodes that have so many; and some that had, which are left out later.
        self._heaps: dict[int, list[int]] = {}
        for node, gpus in self._free.items():
            self._heaps.setdefault(gpus, []).append(node)
        self._most = max(self._heaps, default=0)
        self.gpus = sum(self._free.values())  #: Free ones in all.

    def fits(self, size: int) -> bool:
        """Whether one node has so many."""
        return self._fullest(size, {}) is not None

    def free(self, node: int) -> int:
        """Return how many GPUs of a node are free."""
        return self._free.get(node, 0)

    def give(self, node: int, gpus: int) -> None:
        """Take back GPUs of a node of the pool."""
        left = self._free[node] = self.free(node) + gpus
        heappush(self._heaps.setdefault(left, []), node)
        self._most = max(self._most, left)
        self.gpus += gpus

    def take(self, size: int, own: Mapping[int, int], style: Style) -> dict[int, int] | None:
        """Find nodes for a gang, and take its GPUs.

        Args:
            size: GPUs wanted, at least 1.
            own: Node -> GPUs it held; preferred among equals, if one node is enough.
            style: How.

        Returns:
            Node -> GPUs; None if the pool has too few, and nothing is taken.
        """
        if self.gpus < size:
            return None
        found: dict[int, int] = {}
        while size:
            node = self._fullest(size, {} if found else own) if style == "pack" else None
            if node is None:
                node = self._emptiest()
            found[node] = gpus = min(size, self._free[node])
            left = self._free[node] = self._free[node] - gpus
            heappush(self._heaps.setdefault(left, []), node)
            self.gpus -= gpus
            size -= gpus
        return found

    def _fullest(self, size: int, own: Mapping[int, int]) -> int | None:
        """Give the node that a gang fits on and leaves least of."""
        for gpus in range(size, self._most + 1):
            node = self._first(gpus)
            if node is not None:
                mine = [(-had, name) for name, had in own.items() if self._free.get(name) == gpus]
                return min(mine)[1] if mine else node
        return None

    def _emptiest(self) -> int:
        """Give the node with most free GPUs; there is one with any."""
        while (node := self._first(self._most)) is None:
            self._most -= 1
        return node

    def _first(self, gpus: int) -> int | None:
        """Give the first node that has so many free GPUs."""
        heap = self._heaps.get(gpus)
        while heap and self._free[heap[0]] != gpus:
            heappop(heap)
        return heap[0] if heap else None
