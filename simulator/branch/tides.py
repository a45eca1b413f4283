"""The tide of a stretch of time, for drawing: some two hundred looks at the state."""

from explain.tide import Tide, tide_of
from scheduler.core.state import ClusterState

#: Into so many parts the time is cut.
PARTS = 200


class Tides:
    """Takes looks at a state that goes on, one in each part of a stretch of time."""

    def __init__(self, from_s: float, until_s: float) -> None:
        """Begin with none."""
        self._part_s = max((until_s - from_s) / PARTS, 1e-3)
        self._next_s, self._until_s = from_s, until_s
        self.rows: list[Tide] = []

    def look(self, state: ClusterState) -> None:
        """Look at the state if it is time."""
        if self._next_s <= state.now_s <= self._until_s:
            self._take(state)

    def close(self, state: ClusterState) -> None:
        """Look a last time, at the end."""
        if not self.rows or state.now_s > self.rows[-1].at_s:
            self._take(state)

    def _take(self, state: ClusterState) -> None:
        self.rows.append(tide_of(state))
        passed = (state.now_s - self._next_s) // self._part_s
        self._next_s += (passed + 1.0) * self._part_s
