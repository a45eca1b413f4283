"""The interface of executors, which run workers: five orders, and a list of reports.

An executor never blocks: it notes an order and later reports the result, in order, through
`advance`. It reports a gang under the newest epoch that was ordered. An order may be repeated. An
executor whose workers outlive the agent names their jobs in `running`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from runtime.core import (
    Action,
    CheckpointWorkers,
    DrainNode,
    GangProgress,
    HandBackNode,
    KeepLease,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.logs import LogSource, NoLogs
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

    def keep_lease(self, lease: KeepLease, now_s: float) -> None:
        """Have the workers end at the lease's end even if the agent is gone by then.

        Called with every renewal, and before any other order of a starting agent.
        """
        ...

    def progress(self, now_s: float) -> Sequence[GangProgress]:
        """Give the progress of the gangs that have taken their first step, by job."""
        ...

    def advance(self, now_s: float) -> Sequence[Report]:
        """Give what has happened since the last call, in order."""
        ...

    def next_due_s(self) -> float | None:
        """When to call `advance` next; None if nothing is under way.

        One that cannot know gives the moment at which it wants to be asked again.
        """
        ...

    def running(self) -> tuple[str, ...]:
        """The jobs whose workers outlived the agent's restart."""
        ...


_SIMULATED = NoLogs("its workers are simulated, and write nothing")


@dataclass(frozen=True, slots=True)
class Machine:
    """What an agent looks after: workers, GPUs, and an owner where the nodes have one."""

    executor: Executor
    meter: GpuMeter
    owner: Owner | None = None
    logs: LogSource = _SIMULATED
    #: The owner's load is said within this after the agent began, in seconds, however seldom it is
    #: said: a scheduler that has not heard of it lends nothing of it, and calls back a few minutes
    #: later what it lent. Not at once: servers are to be measured first.
    first_load_s: float = 60.0

    def act(self, action: Action, now_s: float) -> None:
        """Do what the core has decided.

        Raises:
            RuntimeError: It is an order for an owner, and there is none.
        """
        match action:
            case StartWorkers():
                self.executor.start(action, now_s)
            case ScaleWorkers():
                self.executor.scale(action, now_s)
            case CheckpointWorkers():
                self.executor.checkpoint(action, now_s)
            case StopWorkers():
                self.executor.stop(action, now_s)
            case KeepLease():
                self.executor.keep_lease(action, now_s)
            case DrainNode() if self.owner is not None:
                self.owner.drain(action.node, now_s)
            case HandBackNode() if self.owner is not None:
                self.owner.hand_back(action.node, now_s)
            case _:
                raise RuntimeError(f"node: {action.node} is lendable but the agent has no owner")

    def advance(self, now_s: float) -> list[Report]:
        """Give what has happened since the last call: to workers, then to nodes."""
        reports = [*self.executor.advance(now_s)]
        return reports if self.owner is None else [*reports, *self.owner.advance(now_s)]

    def next_due_s(self) -> float:
        """When to call `advance` next; inf if nothing is under way."""
        sources = (self.executor,) if self.owner is None else (self.executor, self.owner)
        return min((due for one in sources if (due := one.next_due_s()) is not None), default=inf)
