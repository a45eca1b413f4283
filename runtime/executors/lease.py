"""The lease as supervisors keep it, so that gangs end with it whatever has become of their agent.

One file for all gangs of an agent. Its moment is of the machine's own clock since boot (boottime of
clock_gettime(2)), which goes on in suspend and which nobody sets: whoever changes the wall clock
changes no lease that was given.

Imports little, because the supervisor does.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from runtime.executors.folder import read_json, write_json
from runtime.executors.processes import boot_id

LEASE = "lease.json"
#: The agent ends its gangs itself when the lease ends, and knows why; it gets so much time for it.
_AGENT_FIRST_S = 2.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when gangs may run, and what they have to save and leave then."""

    until_s: float
    grace_s: float

    def left_s(self) -> float:
        """How long it still lasts for a supervisor; 0: it is over."""
        return max(0.0, self.until_s + _AGENT_FIRST_S - _boottime_s())


def write_lease(path: Path, left_s: float | None, grace_s: float) -> None:
    """Write down that the lease lasts for so long from now on; None: that there is none.

    Raises:
        OSError: the disk does not take it; what stood there still holds.
    """
    if left_s is None:
        path.unlink(missing_ok=True)
    else:
        until_s = _boottime_s() + left_s
        write_json(path, {"boot": boot_id(), "until_s": until_s, "grace_s": grace_s})


def read_lease(path: Path) -> Lease | None:
    """Give the lease; None where none was ever given, or this boot has not heard of it yet."""
    said = read_json(path)
    if said is None or said.get("boot") != boot_id():
        return None
    try:
        return Lease(float(said["until_s"]), float(said["grace_s"]))
    except (KeyError, TypeError, ValueError):
        return None


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
