"""Tiresias: least attained GPU service first, in a few queues (discretised 2D-LAS)."""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import WAITING, Figure, Floats, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.fixed import NAMES_MOST, Gangs, Verdict, gangs, sweep, write
from scheduler.policies.parts.free_gpus import Style
from scheduler.policies.ranges import Amount

# What a note says, by position.
_QUEUE, _ENTERED, _SERVED = range(3)


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Serve jobs that had little GPU time first (Gu et al., NSDI '19).

    A job asks for a fixed gang. Its service is the time it ran times its GPUs; where this reaches
    a threshold, it goes to the tail of the next queue. Each time, queues are swept in order, and
    inside by order of entry: who fits runs, who does not waits or is preempted, and the sweep goes
    on. Nobody is promoted to an earlier queue, the published default.

    Attributes:
        thresholds_gpu_s: Service at which the queues 0, 1, ... end. The default is that of the
            simulator published with Pollux: two queues, 3600 s on 16 GPUs. The authors' own
            simulator has 3250, 7200 and 18000.
        style: How gangs are placed. The default is that of the same simulator.

    It knows no job's length and costs O(n log n). What differs from the paper: service counts
    pauses, as GPUs are held; placement does not look at tensor sizes (as recalled, the paper packs
    models with skewed ones). Notes: queue, moment of entry, service that does
    not count: 0, as nobody is promoted.
    """

    thresholds_gpu_s: tuple[Amount, ...] = (57_600.0,)
    style: Style = "most_free"
    name: str = "tiresias"

    def __post_init__(self) -> None:
        """Refuse thresholds that do not ascend from above 0."""
        if (np.diff((0.0, *self.thresholds_gpu_s)) <= 0.0).any():
            raise ValueError(
                f"thresholds_gpu_s: {self.thresholds_gpu_s} do not ascend from above 0"
            )

    def plan(self, snapshot: Snapshot) -> Plan:
        """Sweep the queues."""
        jobs, found = snapshot.jobs, gangs(snapshot)
        queue, entered_s, served, service = self._queues(snapshot)
        order = _order(found, queue, entered_s)
        given = sweep(found, order)
        ahead: list[str] = []
        why: dict[int, Because] = {}
        for job in order:
            if given[job] >= 0:
                ahead.append(jobs.ids[job])
                continue
            figures = (
                Figure("queue", float(queue[job])),
                Figure("service_gpu_s", float(service[job])),
            )
            why[job] = Because("tiresias.sweep", tuple(ahead[-NAMES_MOST:]), figures)
        before = jobs.notes[:, : _SERVED + 1]
        after = np.stack([queue, entered_s, served], axis=1)
        changed = np.flatnonzero((before != after).any(axis=1))
        notes = {jobs.ids[job]: tuple(after[job].tolist()) for job in changed.tolist()}
        return write(
            found,
            Verdict(
                given,
                "tiresias.sweep",
                why=why,
                notes=notes,
                style=self.style,
                order=order,
            ),
        )

    def queue(self, snapshot: Snapshot) -> list[str]:
        """Name the waiting jobs in the order of their turns."""
        found, jobs = gangs(snapshot), snapshot.jobs
        queue, entered_s, _, _ = self._queues(snapshot)
        order = _order(found, queue, entered_s)
        return [jobs.ids[job] for job in order if jobs.phase[job] == WAITING]

    def _queues(self, seen: Snapshot) -> tuple[Floats, Floats, Floats, Floats]:
        """Return (n,) queue, moment of entry, service that does not count, and that does."""
        jobs, now_s = seen.jobs, seen.now_s
        fresh = np.isnan(jobs.notes[:, _QUEUE])
        queue = np.where(fresh, 0.0, jobs.notes[:, _QUEUE])
        entered_s = np.where(fresh, jobs.submit_s, jobs.notes[:, _ENTERED])
        served = np.where(fresh, 0.0, jobs.notes[:, _SERVED])
        service = jobs.attained_gpu_s - served
        level = np.searchsorted(np.array(self.thresholds_gpu_s), service, side="right")
        sinks = level > queue
        queue = np.where(sinks, level, queue)
        entered_s = np.where(sinks, now_s, entered_s)
        return queue, entered_s, served, service


def _order(found: Gangs, queue: Floats, entered_s: Floats) -> list[int]:
    """Order the gangs that run or may: by queue, then entry, then submission."""
    swept = np.lexsort((np.arange(len(queue)), entered_s, queue))
    order: list[int] = swept[(found.runs | found.starts)[swept]].tolist()
    return order
