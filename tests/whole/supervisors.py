"""Simulated supervisors: gangs outlive their agent, and end by themselves with the lease.

The product's do so too (`runtime.executors.lease`): they know its end, not who leads, and what they
find while nobody listens the next agent learns. Only a machine that loses its power takes them.
"""

from collections.abc import Sequence
from dataclasses import replace

from bus.clock import PacedClock
from runtime.core import (
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStopped,
    KeepLease,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.effects import EffectsFile, RecordedExecutor
from runtime.simulated import SimulatedExecutor

_ENDS = (GangStopped, GangCompleted, GangFailed)
#: Whoever dies of this is not to be started again.
FOR_GOOD = "its data are not there"
#: An agent that lives ends its gangs itself when the lease ends.
AGENT_FIRST_S = 2.0


class Supervisors:
    """An executor that is handed from one life of an agent to the next."""

    def __init__(self, workers: SimulatedExecutor, witness: EffectsFile, world: PacedClock) -> None:
        self.workers = workers
        self._recorded = RecordedExecutor(workers, witness, world.now_s())
        self._world = world
        self._found: list[Report] = []
        self._held: dict[str, int] = {}  # by job, the newest epoch
        self.hopeless: set[str] = set()  #: Jobs of which a worker died for good.
        self._lease: tuple[float, float] | None = None  # until when, by the world, and the grace

    def look(self, now_s: float, *, alone: bool) -> None:
        """Do what supervisors do by themselves; `now_s` is their machine's time."""
        if self._lease is not None and self._world.now_s() >= self._lease[0] + AGENT_FIRST_S:
            for job, epoch in list(self._held.items()):
                if self.workers.trains_from_s(job) != float("inf"):  # it is not leaving
                    self.workers.stop(StopWorkers(job, epoch, True, self._lease[1]), now_s)
        if alone:
            self._found += self._learn(now_s)

    def lose_power(self, now_s: float) -> None:
        """End them all at once, and what they found with them."""
        for job in list(self._held):
            self.workers.fail(job, "no power", now_s)
        self._learn(now_s)
        self._found.clear()

    def _learn(self, now_s: float) -> Sequence[Report]:
        reports = list(self._recorded.advance(now_s))
        for at, report in enumerate(reports):
            if isinstance(report, GangFailed) and report.error == FOR_GOOD:
                reports[at] = replace(report, retriable=False)
                self.hopeless.add(report.job)
            if isinstance(report, _ENDS):
                self._held.pop(report.job, None)
        return reports

    def _end_under(self, order: ScaleWorkers | StopWorkers) -> None:
        """Report an end that nobody has heard of under the newest epoch that was ordered."""
        for at, report in enumerate(self._found):
            if isinstance(report, _ENDS) and report.job == order.job:
                self._found[at] = replace(report, epoch=max(report.epoch, order.epoch))

    # --- what an executor does ---

    def start(self, order: StartWorkers, now_s: float) -> None:
        self._held.setdefault(order.job, order.epoch)
        self._recorded.start(order, now_s)

    def scale(self, order: ScaleWorkers, now_s: float) -> None:
        if order.job in self._held:
            self._held[order.job] = order.epoch
        self._end_under(order)
        self._recorded.scale(order, now_s)

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        self._recorded.checkpoint(order, now_s)

    def stop(self, order: StopWorkers, now_s: float) -> None:
        self._end_under(order)
        self._recorded.stop(order, now_s)

    def keep_lease(self, lease: KeepLease, now_s: float) -> None:
        self._lease = None
        if lease.until_s is not None:
            left_s = max(0.0, lease.until_s - now_s)
            self._lease = self._world.now_s() + left_s, lease.grace_s

    def progress(self, now_s: float) -> Sequence[GangProgress]:
        return self._recorded.progress(now_s)

    def advance(self, now_s: float) -> Sequence[Report]:
        found, self._found = self._found, []
        return [*found, *self._learn(now_s)]

    def next_due_s(self) -> float | None:
        return 0.0 if self._found else self._recorded.next_due_s()

    def running(self) -> tuple[str, ...]:
        ended = (report.job for report in self._found if isinstance(report, _ENDS))
        return tuple(sorted({*self._held, *ended}))
