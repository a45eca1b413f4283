"""The tide of a stretch of time, for charts: some two hundred samples of the state."""

from explain.tide import Tide, tide_of
from scheduler.core.state import ClusterState

#: The number of parts, each with one sample.
PARTS = 200


class Tides:
    """Samples a state that goes on, once in each part of a stretch of time."""

    def __init__(self, from_s: float, until_s: float) -> None:
        """Begin with none."""
        self._part_s = max((until_s - from_s) / PARTS, 1e-3)
        self._next_s, self._until_s = from_s, until_s
        self.rows: list[Tide] = []

    def look(self, state: ClusterState) -> None:
        """Take a sample if it is time for the next."""
        if self._next_s <= state.now_s <= self._until_s:
            self._take(state)

    def close(self, state: ClusterState) -> None:
        """Take the last sample, at the end."""
        if not self.rows or state.now_s > self.rows[-1].at_s:
            self._take(state)

    def _take(self, state: ClusterState) -> None:
        self.rows.append(tide_of(state))
        passed = (state.now_s - self._next_s) // self._part_s
        self._next_s += (passed + 1.0) * self._part_s
