"""A machine's time that is followed, but not when it leaps: steps count once they have lasted.

A clock that is set ahead for two seconds (by NTP, a hypervisor, a hand) would otherwise end leases,
give others for a day, and stop whoever waits for the moment that it has seen already.
"""

import time
from collections.abc import Callable

#: A clock that is put right moves by less than this between two looks, and is followed at once.
STEP_S = 1.0
#: A greater step is followed once it has lasted for this long: then it was meant.
SETTLE_S = 60.0


def _since_boot_s() -> float:
    """Seconds that nobody can set, in suspension too where the system counts those."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Steady:
    """Follows a clock that people can set by one that nobody can."""

    def __init__(
        self,
        wall_s: Callable[[], float] = time.time,
        since_s: Callable[[], float] = _since_boot_s,
        settle_s: float = SETTLE_S,
    ) -> None:
        """Begin with what the clock says now.

        Args:
            wall_s: Seconds since the Unix epoch, as set.
            since_s: Seconds since any moment, which only grow, each as long as the one before.
            settle_s: For how long a step must have lasted.
        """
        self._wall_s, self._since_s, self._settle_s = wall_s, since_s, settle_s
        self._offset_s = wall_s() - since_s()
        self._stepped_s: float | None = None  # since when the clock is elsewhere
        self._there_s = self._offset_s  # and where, when it was last looked at
        self.steps = 0  #: Steps seen, followed or not.

    def now_s(self) -> float:
        """Give the time: the clock's, but for a step that has not lasted. Seconds since 1970."""
        since_s = self._since_s()
        offset_s = self._wall_s() - since_s
        if abs(offset_s - self._offset_s) <= STEP_S:
            self._offset_s, self._stepped_s = offset_s, None
        elif self._stepped_s is None or abs(offset_s - self._there_s) > STEP_S:
            self._stepped_s = since_s  # another step than before has not lasted yet
            self.steps += 1
        elif since_s - self._stepped_s >= self._settle_s:
            self._offset_s, self._stepped_s = offset_s, None
        self._there_s = offset_s
        return since_s + self._offset_s

    def off_s(self) -> float:
        """Give how far the clock is ahead of the time that is gone by, in seconds."""
        return self._wall_s() - self.now_s()


#: This machine's; all clocks of a process go by it.
MACHINE = Steady()
