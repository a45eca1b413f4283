"""The time of a cell: it never falls, and never stands still."""

from bus.clock import Clock
from scheduler.core.cell_moments import SLOWER


class CellTime:
    """Goes by the clock, or on from the journal's newest moment if that is ahead of the clock.

    A leader's clock may have been ahead. Whoever waited until its own is there would schedule
    nothing and notice no failure until then.
    """

    def __init__(self, clock: Clock) -> None:
        """Go by this clock."""
        self._clock = clock
        self._begun_s = self._ahead_s = 0.0

    def begin(self, newest_s: float) -> None:
        """Go on from the newest moment that was recorded, in seconds since the Unix epoch."""
        self._begun_s = self._clock.now_s()
        self._ahead_s = max(0.0, newest_s - self._begun_s)

    @property
    def ahead_s(self) -> float:
        """How far ahead of the clock it is, in seconds."""
        passed_s = self._clock.now_s() - self._begun_s
        return max(0.0, self._ahead_s - SLOWER * max(0.0, passed_s))

    def now_s(self, newest_s: float) -> float:
        """Give the time of the cell; begin again if the clock went back behind the newest."""
        now_s = self._clock.now_s() + self.ahead_s
        if now_s < newest_s:
            self.begin(newest_s)
            return newest_s
        return now_s
