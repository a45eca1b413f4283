"""The newest figures of every node's GPUs, as its agent measures them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.events import NodeMeasured


@dataclass(frozen=True, slots=True)
class Use:
    """What some GPUs do."""

    utilisation: float  #: Mean over those that were measured, from 0 to 1.
    memory_used_mib: float  #: Of all together.
    power_w: float  #: Of all together.


class Telemetry:
    """The newest figures of every node, as columns that grow."""

    _COLUMNS = 5

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

    def over(self, nodes: Iterable[str], since_s: float) -> Use | None:
        """Sum up the GPUs of some nodes, as measured since a moment; None if none was."""
        rows = [row for name in nodes if (row := self._row.get(name)) is not None]
        table = self._table[rows]
        _, used, memory, watts, gpus = table[table[:, 0] >= since_s].T
        known = ~np.isnan(used)
        if not known.any():
            return None
        return Use(
            utilisation=float(used[known] @ gpus[known] / gpus[known].sum()),
            memory_used_mib=float(np.nansum(memory * gpus)),
            power_w=float(np.nansum(watts)),
        )


def _summaries(reports: Sequence[tuple[float, NodeMeasured]], gpus: int) -> NDArray[np.float64]:
    """(r, columns) of reports with as many GPUs each; null becomes NaN on the way into numpy."""
    used = np.array([report.gpu_utilisation for _, report in reports], dtype=np.float64)
    memory = np.array([report.gpu_memory_used_mib for _, report in reports], dtype=np.float64)
    power = np.array([report.gpu_power_w for _, report in reports], dtype=np.float64)
    moments = np.array([moment for moment, _ in reports], dtype=np.float64)
    drawn, known = _mean(power)
    count = np.full(len(reports), float(gpus))
    columns = moments, _mean(used)[0], _mean(memory)[0], drawn * known, count
    return np.stack(columns, axis=1)


def _mean(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Give (r,) the mean of what is known in each row, NaN where nothing is; and how many are."""
    missing = np.isnan(table)
    known = table.shape[1] - missing.sum(axis=1)
    total = np.where(missing, 0.0, table).sum(axis=1)
    return np.where(known > 0, total / np.maximum(known, 1), np.nan), known
