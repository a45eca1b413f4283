"""What of jobs people keep from policies, by the rows that jobs have in the columns.

A policy that is not shown a job cannot start it, and needs not know why. `pauses` refuses what a
plan says in spite of it.
"""

from collections.abc import Sequence

import numpy as np

from scheduler.core.standing import Standing
from scheduler.core.state import Job
from scheduler.policies.interface import WAITING, Floats, Ints


class Restraints:
    """Held jobs, set sizes, and whether the cell starts no job."""

    def __init__(self, standing: Standing) -> None:
        """Begin without a row; what people asked for is in `standing`."""
        self._standing = standing
        self._paused = False
        self._held: dict[int, None] = {}  #: Rows of held jobs.
        self._sized: dict[int, int] = {}  #: By row of a job whose size was set: that.

    def pause(self, *, paused: bool) -> bool:
        """Note whether the cell starts no job; tell if that is new."""
        new, self._paused = paused != self._paused, paused
        return new

    def note(self, rows: Sequence[int], jobs: Sequence[Job]) -> bool:
        """Note what stands about jobs; tell whether others may be shown than before."""
        holds, sizes = self._standing.holds, self._standing.sizes
        held = bool(holds or self._held)
        if held:
            for row, job in zip(rows, jobs, strict=True):
                self._held.pop(row, None)
                if job.id in holds:
                    self._held[row] = None
        if sizes or self._sized:
            for row, job in zip(rows, jobs, strict=True):
                self._sized.pop(row, None)
                if job.id in sizes:
                    self._sized[row] = sizes[job.id].gpus
        return bool(rows) and (held or self._paused)

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._held.pop(row, None)
        self._sized.pop(row, None)

    def close_up(self, rows: Ints) -> None:
        """Go on with these rows alone, one after the other."""
        self._held = {int(rows.searchsorted(row)): None for row in self._held}
        self._sized = {int(rows.searchsorted(row)): gpus for row, gpus in self._sized.items()}

    def shown(self, rows: Ints, phase: Floats) -> Ints:
        """Leave out waiting jobs that are held; in a paused cell all that wait.

        Args:
            rows: Of the jobs, ascending.
            phase: By row.
        """
        if self._paused:
            hidden = phase[rows] == WAITING
        else:
            waits = [row for row in self._held if phase[row] == WAITING]
            if not waits:
                return rows
            hidden = np.isin(rows, waits)
        found: Ints = rows[~hidden]
        return found

    def narrow(self, rate: Floats, sizes: Ints, rows: Ints, size: Ints) -> None:
        """Leave of jobs' speeds those at sizes that people let them have.

        A size that was set leaves no other but the one that a job has until it is brought to it.

        Args:
            rate: (n, k) of the jobs shown; changed.
            sizes: (k,)
            rows: (n,) ascending.
            size: (n,) what each has.
        """
        if self._paused:
            rate[(sizes > size[:, None]) & (size > 0)[:, None]] = 0.0
        for row, gpus in self._sized.items():
            at = int(rows.searchsorted(row))
            if at < len(rows) and rows[at] == row:
                rate[at, (sizes != gpus) & (sizes != size[at])] = 0.0
