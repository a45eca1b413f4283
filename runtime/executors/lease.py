"""The lease file, by which supervisors end their gangs even if their agent is gone.

While the agent lives it ends them itself (`runtime.core.agent`), else each supervisor does its own
(`runtime.executors.shim`).

One file for all gangs of an agent. Its time is CLOCK_BOOTTIME (clock_gettime(2)), which counts
during suspend and cannot be set: changing the wall clock changes no lease that was given.

Imports little, because the supervisor does.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.executors.processes import boot_id

LEASE = "lease.json"
#: The agent stops its gangs itself when the lease ends, and can report why; it gets this long.
_AGENT_FIRST_S = 2.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when gangs may run, and the grace that they then have to save and leave."""

    until_s: float
    grace_s: float

    def left_s(self) -> float:
        """How long it still lasts for a supervisor; 0: it is over."""
        return max(0.0, self.until_s + _AGENT_FIRST_S - _boottime_s())


def write_lease(path: Path, left_s: float | None, grace_s: float) -> None:
    """Record how long the lease lasts from now on; None: there is no lease.

    Raises:
        OSError: the disk refuses it; the previous lease stays in force.
    """
    if left_s is None:
        path.unlink(missing_ok=True)
    else:
        until_s = _boottime_s() + left_s
        write_json(path, {"boot": boot_id(), "until_s": until_s, "grace_s": grace_s})


def read_lease(path: Path) -> Lease | None:
    """Give the lease; None if none was given, or none since the machine's boot."""
    said = read_json(path)
    if said is None or said.get("boot") != boot_id():
        return None
    try:
        return Lease(float(said["until_s"]), float(said["grace_s"]))
    except (KeyError, TypeError, ValueError):
        return None


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
