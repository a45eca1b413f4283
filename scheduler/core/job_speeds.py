"""How fast each job is at each size: a table by the rows of jobs, kept up as jobs come and go."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from scheduler.core.state import Job
from scheduler.policies.interface import SIZES_MOST, Floats, Ints

#: Above every size that a job may declare; a power of two, so that sums of sizes and multiples of
#: it are exact.
_STRIDE = 2.0**17
#: One job's points, [[GPUs, work per second], ...], and whether they were learned, not declared.
_Speed = tuple[Job, list[list[float]], bool]


class JobSpeeds:
    """Work per second by row of a job and by size. k sizes."""

    def __init__(self) -> None:
        """Begin without a job."""
        self.sizes: Ints = np.array([1], dtype=np.int64)
        self._speed: list[_Speed | None] = []
        self._table: Floats = np.zeros((0, 1))
        self._count: Counter[float] = Counter()
        self._stale: list[int] = []
        self._other = False  #: Whether a size came or went.
        self._crowded = False  #: Whether sizes are to be chosen anew.

    def add(self, jobs: Sequence[Job]) -> None:
        """Give jobs the next rows."""
        self._stale += range(len(self._speed), len(self._speed) + len(jobs))
        speeds, known = [_read(job) for job in jobs], len(self._count)
        self._speed += speeds
        self._count.update(chain.from_iterable(map(_sizes, speeds)))
        self._other |= len(self._count) > known

    def take(self, row: int, job: Job | None) -> None:
        """Remember what a row's job declared, or what was learned of it; None: it is gone."""
        before = self._speed[row]
        after = None if job is None else _read(job)
        self._crowded = len(self._count) > SIZES_MOST
        if after == before:
            return
        self._speed[row] = after
        if after is not None:
            self._stale.append(row)
        came = [] if after is None else _sizes(after)
        went = [] if before is None else _sizes(before)
        if came != went:
            for size in came:
                self._other |= not self._count[size]
                self._count[size] += 1
            for size in went:
                self._count[size] -= 1
                self._other |= not self._count[size]

    @property
    def declared(self) -> int:
        """How many sizes there would be to show."""
        return len(self._count)

    def catch_up(self) -> None:
        """Work out the speeds of rows that are new or changed."""
        known = len(self._table)
        if (more := len(self._speed) - known) > 0:
            self._table = np.vstack((self._table, np.zeros((known + more, len(self.sizes)))))
        if self._other or self._crowded:
            self._regrid()
        if self._stale:
            self._fill(self._live(self._stale), np.arange(len(self.sizes)))
            self._stale = []

    def rows(self, rows: Ints) -> Floats:
        """Give (r, k) the speeds of some rows, in an array of their own."""
        self.catch_up()
        found: Floats = self._table.take(rows, axis=0)
        return found

    def close_up(self, rows: Ints) -> None:
        """Keep these rows alone, one after the other."""
        self._table = self.rows(rows)
        self._speed = [self._speed[row] for row in rows.tolist()]

    def _live(self, rows: Iterable[int]) -> list[int]:
        return [row for row in dict.fromkeys(rows) if self._speed[row] is not None]

    def _regrid(self) -> None:
        """Show the sizes that present jobs have; what is known at old ones is kept."""
        self._other = self._crowded = False
        self._count = +self._count
        shown: Iterable[float] = self._count or (1,)
        if len(self._count) > SIZES_MOST:
            shown = _chosen([speed for speed in self._speed if speed is not None])
        sizes = np.array(sorted(shown), dtype=np.int64)
        if np.array_equal(sizes, self.sizes):
            return
        old = self.sizes.searchsorted(sizes).clip(max=len(self.sizes) - 1)
        same = self.sizes[old] == sizes
        self._table = self._table.take(old, axis=1)
        self.sizes = sizes
        stale = set(self._stale)
        known = self._live(row for row in range(len(self._speed)) if row not in stale)
        self._fill(known, (~same).nonzero()[0])

    def _fill(self, rows: Sequence[int], columns: Ints) -> None:
        """Compute the speeds of some rows at some sizes.

        All rows are interpolated at once, on one long axis on which each has its own stretch.
        """
        if not len(rows) or not len(columns):
            return
        speeds = [speed for row in rows if (speed := self._speed[row]) is not None]
        sizes = self.sizes[columns].astype(np.float64)
        stretch = np.arange(len(speeds)) * _STRIDE
        flat = chain.from_iterable(chain.from_iterable(points for _, points, _ in speeds))
        gpus, work = np.fromiter(flat, np.float64).reshape(-1, 2).T
        gpus = gpus + np.repeat(stretch, [len(points) for _, points, _ in speeds])
        at = sizes + stretch[:, None]
        found = np.interp(at, gpus, work)
        if not (work > 0).all():  # between a size that cannot be and its neighbour none can
            found[np.interp(at, gpus, work > 0) < 1.0] = 0.0
        flat = chain.from_iterable(map(_bounds, speeds))
        bounds = np.fromiter(flat, np.float64, 3 * len(speeds)).reshape(-1, 3)
        found /= bounds[:, 2:]
        found[(sizes < bounds[:, :1]) | (sizes > bounds[:, 1:2])] = 0.0
        self._table[np.array(rows)[:, None], columns] = found


def _read(job: Job) -> _Speed:
    return (job, job.rates, False) if job.curve is None else (job, job.curve["points"], True)


def _sizes(speed: _Speed) -> list[float]:
    """List the sizes that the snapshot shows because of a job, ascending."""
    _, points, learned = speed
    return [gpus for gpus, work in points if work > 0 or not learned]


def _bounds(speed: _Speed) -> tuple[float, float, float]:
    """Give the least and most GPUs that a job can have, and what its points are divided by."""
    job, points, learned = speed
    per = 1.0 if learned else job.samples_per_step
    if not points:
        return 1.0, 0.0, per
    return max(job.gpus_min, points[0][0]), min(job.gpus_max, points[-1][0]), per


def _chosen(speeds: Sequence[_Speed]) -> set[int]:
    """Choose sizes where there are too many to show them all, as `Jobs.sizes` says."""
    found: set[int] = set()
    tenants: dict[str, list[_Speed]] = {}
    for speed in speeds:
        job = speed[0]
        held = job.target or job.allocation
        if held and len(found) < SIZES_MOST:
            found.add(sum(map(len, held.values())))
        tenants.setdefault(job.tenant, []).append(speed)
    turns = [_wishes(own) for own in tenants.values()]
    while turns:
        for wishes in list(turns):
            size = next((size for size in wishes if size not in found), None)
            if size is None:
                turns.remove(wishes)
            elif len(found) < SIZES_MOST:
                found.add(size)
            else:
                return found
    return found


def _wishes(speeds: Sequence[_Speed]) -> Iterator[int]:
    """Give the sizes that a tenant's jobs may have, those that matter most first."""
    allowed = []
    for speed in speeds:
        least, most, _ = _bounds(speed)
        sizes = [int(size) for size in _sizes(speed) if least <= size <= most]
        if sizes:
            allowed.append(sizes)
            job = speed[0]
            requested = job.gpus_min if job.gpus is None else job.gpus
            if requested in sizes:
                yield requested
    yield from (sizes[0] for sizes in allowed)
    yield from (sizes[-1] for sizes in allowed)
    for sizes in allowed:
        yield from sizes
