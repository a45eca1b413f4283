"""The Executor: whatever really runs workers, behind five verbs and a list of reports.

An executor never waits: it notes what is asked and later reports what came of it, in order,
through `advance`. It reports a gang under the newest epoch it was given for it. It may be asked
the same twice. One whose workers outlive the agent names them in `running`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.core import (
    CheckpointWorkers,
    GangProgress,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.meters import GpuMeter, Owner


class Executor(Protocol):
    """Runs gangs on the agent's nodes. Moments are seconds since the Unix epoch."""

    def start(self, order: StartWorkers, now_s: float) -> None:
        """Run the gang; report `GangStarted` at its first step."""
        ...

    def scale(self, order: ScaleWorkers, now_s: float) -> None:
        """Change its GPUs; report `WorkersLeft` if some are given up, then `GangStarted`."""
        ...

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        """Save and go on; report `CheckpointDone` or `CheckpointLost`."""
        ...

    def stop(self, order: StopWorkers, now_s: float) -> None:
        """Save if asked, leave within the grace; report `GangStopped`."""
        ...

    def progress(self, now_s: float) -> Sequence[GangProgress]:
        """Say how far the gangs are that have taken their first step, by job."""
        ...

    def advance(self, now_s: float) -> Sequence[Report]:
        """Give what has happened since the last call, in order."""
        ...

    def next_due_s(self) -> float | None:
        """When to call `advance` next; None if nothing is under way.

        One that cannot foresee gives the moment it wants to be asked again.
        """
        ...

    def running(self) -> tuple[str, ...]:
        """The jobs whose workers are alive although the agent has just begun."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What an agent looks after: workers, GPUs, and an owner where the nodes have one."""

    executor: Executor
    meter: GpuMeter
    owner: Owner | None = None
