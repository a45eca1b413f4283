"""From messages to stimuli: fold telemetry into columns, pass on what a decision depends on.

Most messages say what was expected: a job is where its rate said it would be, an owner needs what
it needed. Those are folded and end here. The engine sees only changes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.core.state import ClusterState, slot_s
from scheduler.core.stimuli import Input
from scheduler.core.transitions import TERMINAL, NodeState
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CommandAcknowledged,
    EventData,
    InferenceLoad,
    JobCancelled,
    JobProgressed,
    LinkLost,
    LinkOpened,
    NodeDied,
    NodeMeasured,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)

#: A rate that differs less than this share from the last one passed on is the same rate.
RATE_CHANGE = 0.05
#: Progress is passed on at least this often, so that extrapolation stays honest.
PROGRESS_S = 900.0


class Telemetry:
    """The newest figures of every node, as columns that grow."""

    _COLUMNS = 6

    def __init__(self) -> None:
        """Begin with no node."""
        self._row: dict[str, int] = {}
        self._table: NDArray[np.float64] = np.full((64, self._COLUMNS), np.nan)
        self.folded = 0

    def fold(self, reports: Sequence[tuple[float, NodeMeasured]]) -> None:
        """Fold reports (moment, payload), oldest first: one write into the columns for all."""
        by_width: dict[int, list[int]] = {}
        for index, (_, report) in enumerate(reports):
            by_width.setdefault(len(report.gpu_utilisation), []).append(index)
        values = np.empty((len(reports), self._COLUMNS))
        for width, indices in by_width.items():
            alike = [reports[index] for index in indices]
            values[indices] = _summaries(alike, width)
        rows = [self._row_of(report.node) for _, report in reports]
        while len(self._row) > len(self._table):
            self._table = np.concatenate([self._table, np.full_like(self._table, np.nan)])
        # Of a node that is in it twice, the later row is the one that stays.
        self._table[rows] = values
        self.folded += len(rows)

    def _row_of(self, node: str) -> int:
        row = self._row.get(node)
        if row is None:
            row = self._row[node] = len(self._row)
        return row

    def newest(self, node: str) -> dict[str, float] | None:
        """Give a node's newest figures; NaN where not measured; None if it never reported."""
        row = self._row.get(node)
        if row is None:
            return None
        names = ("at_s", "utilisation", "memory_used_mib", "temperature_c", "power_w", "gpus")
        return dict(zip(names, self._table[row].tolist(), strict=True))


def _summaries(reports: Sequence[tuple[float, NodeMeasured]], gpus: int) -> NDArray[np.float64]:
    """(r, columns) of reports with as many GPUs each; null becomes NaN on the way into numpy."""
    used = np.array([report.gpu_utilisation for _, report in reports], dtype=np.float64)
    memory = np.array([report.gpu_memory_used_mib for _, report in reports], dtype=np.float64)
    heat = np.array([report.gpu_temperature_c for _, report in reports], dtype=np.float64)
    power = np.array([report.gpu_power_w for _, report in reports], dtype=np.float64)
    moments = np.array([moment for moment, _ in reports], dtype=np.float64)
    watts = _mean(power) * np.sum(~np.isnan(power), axis=1)
    columns = (moments, _mean(used), _mean(memory), np.fmax.reduce(heat, axis=1), watts)
    return np.stack([*columns, np.full(len(reports), float(gpus))], axis=1)


def _mean(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """(r,) mean of what is known in each row; NaN where nothing is."""
    known = np.sum(~np.isnan(table), axis=1)
    total = np.nansum(table, axis=1)
    return np.where(known > 0, total / np.maximum(known, 1), np.nan)


def stimulus_of(state: ClusterState, data: EventData, at_s: float) -> Input | None:
    """Give what the engine must know of an event; None if nothing that it does not know yet.

    A pure function of the state and the event, so that it needs no memory that a crash could lose.
    """
    if isinstance(data, NodeMeasured | LinkOpened | LinkLost):
        return None  # the first is folded, the others are the contact's
    if isinstance(data, JobProgressed):
        return data if _progress_matters(state, data, at_s) else None
    if isinstance(data, CommandAcknowledged):
        # Renewals of leases are acknowledged too; only the engine's own commands are open.
        return data if data.command in state.commands else None
    if isinstance(data, CheckpointCommitted | CheckpointFailed):
        job = state.jobs.get(data.job)
        return data if job is not None and data.epoch == job.epoch else None
    if isinstance(data, InferenceLoad):
        return data if _load_matters(state, data, at_s) else None
    return data if _is_of_something(state, data) else None


def _is_of_something(state: ClusterState, data: EventData) -> bool:
    """Whether the engine knows what an event is about: of what is unknown nothing is journalled."""
    if isinstance(data, JobCancelled):
        job = state.jobs.get(data.job)
        return job is not None and job.state not in TERMINAL and not job.cancel_requested
    if isinstance(data, NodeDied):
        node = state.nodes.get(data.node)
        return node is not None and node.state is not NodeState.DEAD
    if isinstance(data, WorkerStarted):
        return data.job in state.jobs
    if isinstance(data, WorkerStopped | WorkerFailed):
        node = state.nodes.get(data.node)
        return node is not None and (data.job in state.jobs or data.job in node.holder)
    return True


def _progress_matters(state: ClusterState, data: JobProgressed, at_s: float) -> bool:
    job = state.jobs.get(data.job)
    if job is None or data.epoch != job.epoch:
        return job is not None and data.epoch > job.epoch  # the journal has lost its start
    if job.samples_per_s == 0.0 or data.checkpoint_step > job.checkpoint_step:
        return True
    if abs(data.samples_per_s - job.samples_per_s) > RATE_CHANGE * job.samples_per_s:
        return True
    # What waited in a spool comes all at once: of hours, a word for each stretch of work is taken.
    quiet_s, steps_per_s = at_s - job.step_at_s, job.samples_per_s / job.samples_per_step
    held_s = job.held_s + at_s - job.attained_at_s
    if held_s > 0.0:  # one that says less than it does is ahead of its word all the time
        steps_per_s = max(steps_per_s, data.step / held_s)
    if data.step > job.step + steps_per_s * (quiet_s + PROGRESS_S):
        return True
    return quiet_s >= PROGRESS_S


def _load_matters(state: ClusterState, data: InferenceLoad, at_s: float) -> bool:
    lender = state.lenders.get(data.node or data.pool)
    if lender is None or lender.at_s is None:
        return True
    if data.gpus_needed != lender.gpus_needed or int(at_s // slot_s(state)) != lender.slot:
        return True
    return data.shortfall_gpu_s > lender.shortfall_gpu_s
