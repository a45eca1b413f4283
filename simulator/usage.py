"""GPU time of a fleet by kind of pool: open to training, held by jobs; and who holds what lent."""

import numpy as np

from scheduler.policies.interface import Bools, Ints, Kind

#: What a node counts as: its pool's kind while open to training, else closed.
_CLOSED = 3


class Usage:
    """Sums over time, kept up by whoever changes a fleet."""

    def __init__(self, gpus: Ints, kind: Ints) -> None:
        """Begin with all nodes closed.

        Args:
            gpus: (p,) of each node.
            kind: (p,) `Kind` of each node's pool.
        """
        self._gpus, self._kind = gpus, kind
        self._class: Ints = np.full(len(gpus), _CLOSED)
        self._open = [0] * 4  # GPUs by class
        self._held = [0] * 4
        self.open_gpu_s = [0.0] * 4  #: By `Kind`.
        self.held_gpu_s = [0.0] * 4
        self._since_s = 0.0
        self.line: list[tuple[float, int, int]] = []  #: Moment, GPUs lent, and held of them.

    def open(self, nodes: Bools) -> None:
        """Set which nodes are open to training, or still lent."""
        self._class = np.where(nodes, self._kind, _CLOSED)
        self._open = self._sums(self._gpus)

    def look(self, free: Ints) -> None:
        """Set what is free."""
        self._held = self._sums(self._gpus - free)
        lent = int(Kind.INFERENCE)
        now = (self._since_s, self._open[lent], self._held[lent])
        if not self.line or self.line[-1][1:] != now[1:]:
            self.line.append(now)

    def _sums(self, gpus: Ints) -> list[int]:
        found: list[int] = np.bincount(self._class, gpus, 4).astype(np.int64).tolist()
        return found

    def book(self, now_s: float) -> None:
        """Count the time until now."""
        since_s, self._since_s = now_s - self._since_s, now_s
        if since_s > 0.0:
            for kind in range(_CLOSED):
                self.open_gpu_s[kind] += self._open[kind] * since_s
                self.held_gpu_s[kind] += self._held[kind] * since_s
