"""The live jobs as columns: one row for each, written anew when something happened to it.

Nothing in a row depends on the time: `columns` adds to all rows at once what time alone brings.
"""

from collections.abc import Callable, Iterable

import numpy as np

from scheduler.core.speeds import Speeds
from scheduler.core.state import ClusterState, Job, policy_name
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.policies.interface import (
    MOVING,
    NOTE,
    SIZES_MOST,
    WAITING,
    Floats,
    Ints,
    Jobs,
    Phase,
)

#: A reported rate this far off the declared one is taken for a glitch.
_FACTOR_MIN, _FACTOR_MAX = 0.05, 20.0
#: A job that has not ended has this much left, however far its last report is extrapolated.
_LEFT_LEAST = 1e-9
_NEVER, _INF = float("-inf"), float("inf")
_NO_NOTE = (float("nan"),) * NOTE
#: Columns of the table: whole numbers first, then those that are shown as they are.
_INTS, _PLAIN, _COLUMNS = 8, 18, 32 + NOTE


class JobRows:
    """Rows in the order of submission; those of jobs that ended stay behind, and are not shown."""

    def __init__(self, state: ClusterState, slot_of: Callable[[str], int]) -> None:
        """Begin without a row.

        Args:
            state: Whose jobs these are.
            slot_of: Gives the slot of a node.
        """
        self._state, self._slot_of = state, slot_of
        self._reader = policy_name(state)
        self._speeds = Speeds()
        #: Waiting jobs of which the last `columns` showed no size, since there were too many.
        self.left_out: tuple[str, ...] = ()
        self._jobs: list[Job | None] = []  #: By row.
        self._row: dict[str, int] = {}
        self._table: Floats = np.zeros((_COLUMNS, 64))
        #: (3, h) row, node's slot and GPUs of all holdings, by row then node.
        self._holdings: Ints = np.zeros((3, 0), dtype=np.int64)
        self._affinity: dict[int, dict[str, float]] = {}
        self._places: dict[str, tuple[str, ...]] = {}  #: By job: nodes that it has a part in.
        # What is made of these when it is asked for, and kept until they change.
        self._live: tuple[Ints, tuple[str, ...], tuple[str, ...]] | None = None
        self._affine: tuple[object, Floats] | None = None

    @property
    def wasteful(self) -> bool:
        """Whether most rows are of jobs that ended, so that all had better be written anew."""
        return len(self._jobs) > 64 + 2 * len(self._row)

    def write(self, names: Iterable[str]) -> list[str]:
        """Write the rows of these jobs.

        Returns:
            Nodes that they had a part in before, or have one in now.
        """
        rows: list[int] = []
        jobs: list[Job] = []
        nodes: list[str] = []
        fresh, changed = [], []
        for name in names:
            job, row = self._state.jobs.get(name), self._row.get(name)
            if job is not None and job.state in TERMINAL:
                job = None
            nodes.extend(self._places.pop(name, ()))
            if row is not None and self._jobs[row] is not job:
                self._jobs[row] = self._live = self._affine = None
                self._speeds.take(row, None)
                self._affinity.pop(row, None)
                changed.append(self._row.pop(name))
                row = None
            if job is None:
                continue
            if row is None:
                fresh.append(job)
            else:
                rows.append(row)
                jobs.append(job)
        for job in sorted(fresh, key=lambda job: job.number):
            rows.append(len(self._jobs))
            jobs.append(job)
            self._row[job.id] = len(self._jobs)
            self._jobs.append(job)
            self._live = self._affine = None
        if rows:
            if (over := len(self._jobs) - self._table.shape[1]) > 0:
                more = np.zeros((_COLUMNS, max(over, self._table.shape[1])))
                self._table = np.hstack((self._table, more))
            self._table[:, rows] = np.array([self._values(job) for job in jobs]).T
        for row, job in zip(rows, jobs, strict=True):
            if here := (*job.cells, *job.leaving, *(job.target or ())):
                self._places[job.id] = here
                nodes.extend(here)
            self._speeds.take(row, job)
            if job.curve is not None and self._affinity.get(row) != job.curve["affinity"]:
                self._affinity[row], self._affine = job.curve["affinity"], None
        self._hold([*changed, *rows], zip(rows, jobs, strict=True))
        return nodes

    def _hold(self, changed: list[int], written: Iterable[tuple[int, Job]]) -> None:
        """Replace the holdings of changed rows."""
        found = [
            (row, self._slot_of(name), len(gpus))
            for row, job in written
            for name, gpus in sorted(job.cells.items())
        ]
        stays = np.ones(len(self._jobs), dtype=np.bool_)
        stays[changed] = False
        kept = self._holdings[:, stays[self._holdings[0]]]
        new = np.array(found, dtype=np.int64).reshape(len(found), 3).T
        both = np.concatenate((kept, new), axis=1)
        self._holdings = both.take(both[0].argsort(kind="stable"), axis=1)

    def _values(self, job: Job) -> tuple[float, ...]:
        goes = job.cells if job.target is None else job.target
        size, slot = 0, -1
        if goes:
            size, slot = sum(map(len, goes.values())), self._slot_of(min(goes))
        phase = Phase.MOVING
        if job.target is None and not job.leaving:
            if job.state is JobState.QUEUED:
                phase = Phase.WAITING
            elif job.state is JobState.RUNNING:
                phase = Phase.RUNNING
        observed_s = _NEVER if job.rate_at_s is None else job.rate_at_s
        factor = min(max(job.rate_factor, _FACTOR_MIN), _FACTOR_MAX)
        per_step, left, told_at = 1.0, 0.0, job.total_steps
        if (curve := job.curve) is not None:
            observed_s, factor, per_step = job.curve_at_s, 1.0, curve["per_step"]
            if curve["left"] is not None:
                left, told_at = curve["left"], job.curve_step
        note = job.note if job.note_by in ("", self._reader) else ()
        return (
            phase,
            job.priority,
            job.gpus_min if job.gpus is None else job.gpus,
            size,
            job.restarts,
            slot,
            job.edge_allowed,
            job.refused,
            # As they are from here...
            job.submit_s,
            _INF if job.deadline_s is None else job.deadline_s,
            _INF if job.first_start_s is None else job.first_start_s,
            job.waiting_since_s,
            _NEVER if job.changed_s is None else job.changed_s,
            _NEVER if job.backoff_until_s is None else job.backoff_until_s,
            job.checkpoint_cost_s,
            job.start_cost_s,
            job.checkpoint_mib,
            job.memory_mib,
            # ...and what others follow from.
            size if job.target is None else job.size,
            job.attained_gpu_s,
            job.held_s,
            job.attained_at_s,
            job.total_steps,
            job.step,
            job.samples_per_s / job.samples_per_step,
            job.step_at_s,
            job.checkpoint_step,
            left,
            told_at,
            per_step,
            observed_s,
            factor,
            *note,
            *_NO_NOTE[len(note) :],
        )

    def live(self) -> tuple[Ints, tuple[str, ...], tuple[str, ...]]:
        """Give the rows of live jobs, ascending, with their ids and tenants."""
        if self._live is None:
            there = [(row, job) for row, job in enumerate(self._jobs) if job is not None]
            self._live = (
                np.array([row for row, _ in there], dtype=np.int64),
                tuple([job.id for _, job in there]),
                tuple([job.tenant for _, job in there]),
            )
        return self._live

    def slots(self) -> Ints:
        """Give (n,) a node that each live job is on, or going to; -1 for none."""
        found: Ints = self._table[5].take(self.live()[0]).astype(np.int64)
        return found

    def holdings(self) -> Ints:
        """Give (3, h) index among live jobs, node's slot and GPUs, by job then node."""
        job, slot, gpus = self._holdings
        return np.stack((self.live()[0].searchsorted(job), slot, gpus))

    def columns(self, now_s: float, pool: Ints, away: Ints, affinity: Floats) -> Jobs:
        """Make the columns of the live jobs.

        Args:
            now_s: The moment.
            pool: (n,) where each is, or is going to; -1: nowhere.
            away: Indices of jobs that hold GPUs of nodes out of contact.
            affinity: (n, m), as `affinity` gives it.
        """
        rows, ids, tenants = self.live()
        found = self._table.take(rows, axis=1)
        whole = found[:_INTS].astype(np.int64)
        phase, priority, requested, size, restarts, _, edge_allowed, refused = whole
        (
            submit_s, deadline_s, first_start_s, waiting_since_s, changed_s, backoff_until_s,
            checkpoint_cost_s, start_cost_s, checkpoint_mib, memory_mib,
        ) = found[_INTS:_PLAIN]  # fmt: skip
        (
            held, attained_gpu_s, held_s, attained_at_s, total, step, per_s, step_at_s, saved,
            left, told_at, per_step, observed_s, factor,
        ) = found[_PLAIN:-NOTE]  # fmt: skip
        phase[away] = MOVING
        holds = held > 0
        step_now = np.minimum(total, step + per_s * np.maximum(now_s - step_at_s, 0.0))
        since_s = np.where(holds, now_s - attained_at_s, 0.0)
        rate = self._speeds.rows(rows)
        rate *= factor[:, None]
        self.left_out = ()
        if self._speeds.declared > SIZES_MOST:
            none = ((phase == WAITING) & ~(rate > 0).any(axis=1)).nonzero()[0]
            self.left_out = tuple([ids[job] for job in none.tolist()])
        return Jobs(
            ids=ids,
            tenants=tenants,
            phase=phase,
            submit_s=submit_s,
            deadline_s=deadline_s,
            priority=priority,
            remaining_steps=np.maximum(left - (step_now - told_at) * per_step, _LEFT_LEAST),
            attained_gpu_s=attained_gpu_s + held * since_s,
            held_s=held_s + since_s,
            first_start_s=first_start_s,
            restarts=restarts,
            waiting_since_s=waiting_since_s,
            requested=requested,
            size=size,
            pool=pool,
            changed_s=changed_s,
            sizes=self._speeds.sizes,
            rate=rate,
            rate_age_s=now_s - observed_s,
            checkpoint_age_steps=np.where(holds, np.maximum(step_now - saved, 0.0) * per_step, 0.0),
            checkpoint_cost_s=checkpoint_cost_s,
            start_cost_s=start_cost_s,
            checkpoint_mib=checkpoint_mib,
            memory_mib=memory_mib,
            edge_allowed=edge_allowed.astype(np.bool_),
            backoff_until_s=backoff_until_s,
            refused=refused.astype(np.bool_),
            notes=found[-NOTE:].T,
            affinity=affinity,
        )

    def affinity(self, speed: Floats, pools: tuple[str, ...]) -> Floats:
        """Give (n, m) the speed of each live job on each site.

        Args:
            speed: (m,) of the sites.
            pools: The pool of each site.
        """
        rows, ids, _ = self.live()
        key = (pools, speed.tobytes())
        if self._affine is None or self._affine[0] != key:
            found = np.broadcast_to(speed, (len(ids), len(pools)))
            some = [row for row in sorted(self._affinity) if self._affinity[row]]
            if some:
                found = found.copy()
                for row in some:
                    own = self._affinity[row]
                    found[rows.searchsorted(row)] = [
                        own.get(pool, usual)
                        for pool, usual in zip(pools, speed.tolist(), strict=True)
                    ]
            self._affine = key, found
        return self._affine[1]
