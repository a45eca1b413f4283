"""The live jobs as columns: one row for each, written anew when something happened to it.

Nothing in a row depends on the time: `columns` adds to all rows at once what time alone brings.
"""

from collections.abc import Callable, Collection, Mapping, Set
from itertools import chain

import numpy as np

from scheduler.core.job_speeds import JobSpeeds
from scheduler.core.job_work import expected_steps
from scheduler.core.noderows import Sites
from scheduler.core.restraints import Restraints
from scheduler.core.state import ClusterState, Job, policy_name
from scheduler.core.transitions import LEAVING, TERMINAL, JobState
from scheduler.policies.interface import (
    MOVING,
    NOTE,
    RUNNING,
    SIZES_MOST,
    WAITING,
    Bools,
    Floats,
    Ints,
    Jobs,
)

#: A reported rate this far off the declared one is taken for a glitch.
_FACTOR_MIN, _FACTOR_MAX = 0.05, 20.0
#: A job that has not ended has this much left, however far its last report is extrapolated.
_LEFT_LEAST = 1e-9
_NEVER, _INF = float("-inf"), float("inf")
_NO_NOTE = (float("nan"),) * NOTE
#: Columns that are shown as they are: whole numbers, truths, and from `_PLAIN` on any numbers. The
#: slot, and what others follow from, come after them.
_SHOWN = (
    *("phase", "priority", "requested", "size", "restarts", "held"),
    *("edge_allowed", "refused", "leaves"),
    *("submit_s", "deadline_s", "first_start_s", "waiting_since_s", "changed_s", "backoff_until_s"),
    *("checkpoint_cost_s", "start_cost_s", "checkpoint_mib", "memory_mib"),
)
_TRUTHS, _PLAIN, _SLOT, _COLUMNS = 6, 9, len(_SHOWN), 34 + NOTE
_SIZE = _SHOWN.index("size")


class JobRows:
    """Rows in the order of submission; those of jobs that ended are not shown, and later reused."""

    def __init__(self, state: ClusterState, slot_of: Callable[[str], int]) -> None:
        """Begin without a row.

        Args:
            state: Whose jobs these are.
            slot_of: Gives the slot of a node.
        """
        self._state, self._slot_of = state, slot_of
        self._reader = policy_name(state)
        self._speeds = JobSpeeds()
        #: Waiting jobs of which the last `columns` showed no size, since there were too many.
        self.left_out: tuple[str, ...] = ()
        self._jobs: list[Job | None] = []  #: By row.
        self._row: dict[str, int] = {}
        self._tenant: dict[str, str] = {}  #: In the same order.
        self._table: Floats = np.zeros((_COLUMNS, 64))
        self._shown: Bools = np.zeros(64, dtype=np.bool_)  #: (rows,)
        #: (3, h) row, node's slot and GPUs of all holdings, by row then node.
        self._holdings: Ints = np.zeros((3, 0), dtype=np.int64)
        self._affinity: dict[int, dict[str, float]] = {}
        self._places: dict[str, tuple[str, ...]] = {}  #: By job: nodes that it has a part in.
        # What is made of these when it is asked for, and kept until they change.
        self._live: tuple[Ints, tuple[str, ...], tuple[str, ...]] | None = None
        self._affine: tuple[Sites, Floats] | None = None
        self._restraints = Restraints(state.standing)
        self._left_behind: Set[str] = frozenset()
        #: Those that wait until an old order to start them cannot be obeyed, or that is known; no
        #: fact that this became known names its job.
        self.unsure: set[str] = set()

    def keep_out(self, *, paused: bool, left_behind: Set[str]) -> bool:
        """Show no waiting job if the cell is paused, nor these ever; tell if that is new."""
        new = self._restraints.pause(paused=paused) or left_behind != self._left_behind
        self._left_behind = left_behind
        if new:
            self._live = self._affine = None
        return new

    def write(self, names: Mapping[str, bool]) -> list[str]:
        """Write the rows of jobs.

        Args:
            names: The jobs; with each, whether it may have GPUs that it did not have, or claim
                others than it did. One that has no row yet may.

        Returns:
            Nodes that those had a part in before, or have one in now.
        """
        rows: list[int] = []
        jobs: list[Job] = []
        nodes: list[str] = []
        fresh, changed = [], []
        for name, moved in names.items():
            job, row = self._state.jobs.get(name), self._row.get(name)
            if job is not None and job.state in TERMINAL:
                job = None
            if moved and name in self._places:
                nodes += self._places.pop(name)
            if row is not None and self._jobs[row] is not job:
                self._jobs[row] = self._live = self._affine = None
                self._shown[row] = False
                nodes += self._places.pop(name, ())
                self._speeds.take(row, None)
                self._affinity.pop(row, None)
                self._restraints.drop(row)
                changed.append(self._row.pop(name))
                del self._tenant[name]
                row = None
            if job is None:
                continue
            if row is None:
                fresh.append(job)
            else:
                rows.append(row)
                jobs.append(job)
                if moved:
                    changed.append(row)
        if fresh:
            fresh.sort(key=lambda job: job.number)
            added = self._add(fresh)
            rows += added
            jobs += fresh
            changed += added
        if rows:
            flat = chain.from_iterable(map(self._values, jobs))
            values = np.fromiter(flat, np.float64, _COLUMNS * len(jobs))
            self._table[:, rows] = values.reshape(-1, _COLUMNS).T
        self.unsure.difference_update(names)
        self.unsure.update(job.id for job in jobs if _is_unsure(job))
        if self._restraints.note(rows, jobs) or (rows and self._left_behind):
            self._live = self._affine = None
        crowded = self._speeds.declared > SIZES_MOST
        for row, job in zip(rows, jobs, strict=True):
            if job.curve is not None or crowded:
                self._speeds.take(row, job)
            if job.curve is not None and self._affinity.get(row) != job.curve["affinity"]:
                self._affinity[row], self._affine = job.curve["affinity"], None
        if changed:
            nodes += self._hold(changed)
        if len(self._jobs) > 64 + 2 * len(self._row):
            self._close_up()
        return nodes

    def _add(self, jobs: list[Job]) -> range:
        """Give jobs rows."""
        rows = range(len(self._jobs), len(self._jobs) + len(jobs))
        if (more := rows.stop - len(self._shown)) > 0:
            more = max(more, len(self._shown))
            self._table = np.hstack((self._table, np.zeros((_COLUMNS, more))))
            self._shown = np.append(self._shown, np.zeros(more, dtype=np.bool_))
        self._shown[rows.start : rows.stop] = True
        self._jobs += jobs
        self._row.update(zip([job.id for job in jobs], rows, strict=True))
        self._tenant.update([(job.id, job.tenant) for job in jobs])
        self._speeds.add(jobs)
        self._live = self._affine = None
        return rows

    def _close_up(self) -> None:
        """Give up the rows of jobs that ended."""
        rows: Ints = self._shown.nonzero()[0]
        count = len(rows)
        self._table[:, :count] = self._table[:, rows]
        self._shown[:] = False
        self._shown[:count] = True
        self._jobs = [self._jobs[row] for row in rows.tolist()]
        self._row = {name: row for row, name in enumerate(self._row)}
        self._holdings[0] = rows.searchsorted(self._holdings[0])
        self._affinity = {int(rows.searchsorted(r)): own for r, own in self._affinity.items()}
        self._restraints.close_up(rows)
        self._speeds.close_up(rows)
        self._live = self._affine = None

    def _hold(self, changed: list[int]) -> list[str]:
        """Replace the holdings of changed rows; give the nodes that their jobs have a part in."""
        found: list[tuple[int, int, int]] = []
        nodes: list[str] = []
        for row in changed:
            job = self._jobs[row]
            if job is not None and (job.allocation or job.leaving or job.target is not None):
                here = (*job.allocation, *job.leaving, *(job.target or ()))
                self._places[job.id] = here
                nodes += here
                for name, gpus in sorted(job.allocation.items()):
                    found.append((row, self._slot_of(name), len(gpus)))
        stays = np.ones(len(self._jobs), dtype=np.bool_)
        stays[changed] = False
        kept = self._holdings[:, stays[self._holdings[0]]]
        new = np.array(found, dtype=np.int64).reshape(len(found), 3).T
        both = np.concatenate((kept, new), axis=1)
        self._holdings = both.take(both[0].argsort(kind="stable"), axis=1)
        return nodes

    def _values(self, job: Job) -> tuple[float, ...]:
        goes = job.allocation if job.target is None else job.target
        size, slot = 0, -1
        if goes:
            size, slot = sum(map(len, goes.values())), self._slot_of(min(goes))
        phase = MOVING
        if job.target is None and not job.leaving:
            if job.state is JobState.QUEUED:
                phase = WAITING
            elif job.state is JobState.RUNNING:
                phase = RUNNING
        observed_s = _NEVER if job.rate_at_s is None else job.rate_at_s
        factor = min(max(job.rate_factor, _FACTOR_MIN), _FACTOR_MAX)
        per_step, left, told_at = 1.0, 0.0, expected_steps(job)
        if (curve := job.curve) is not None:
            observed_s, factor, per_step = job.curve_at_s, 1.0, curve["per_step"]
            if curve["left"] is not None:
                left, told_at = curve["left"], job.curve_step
        note = job.note if job.note_by in ("", self._reader) else []
        return (
            phase,
            job.priority,
            self._requested(job),
            size,
            job.restarts,
            max(job.size, sum(map(len, job.leaving.values()))),
            job.edge_allowed,
            job.refused,
            job.target is None and job.state in LEAVING,
            job.submit_s,
            # Nobody can promise when a job ends that declared no total.
            _INF if job.deadline_s is None or job.total_steps is None else job.deadline_s,
            _INF if job.first_start_s is None else job.first_start_s,
            job.waiting_since_s,
            _NEVER if job.changed_s is None else job.changed_s,
            _not_before_s(job),
            job.checkpoint_cost_s,
            job.start_cost_s,
            job.checkpoint_mib,
            job.memory_mib,
            slot,
            # What others follow from.
            job.size,
            job.attained_gpu_s,
            job.held_s,
            job.attained_at_s,
            _INF if job.total_steps is None else job.total_steps,
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

    def _requested(self, job: Job) -> int:
        only = self._state.standing.sizes.get(job.id)
        if only is not None:
            return only.gpus
        return job.gpus_min if job.gpus is None else job.gpus

    def catch_up(self) -> None:
        """Work out what `columns` would have to before it can read."""
        self._speeds.catch_up()

    def live(self) -> tuple[Ints, tuple[str, ...], tuple[str, ...]]:
        """Give the rows of the jobs that are shown, ascending, with their ids and tenants."""
        if self._live is None:
            rows = self._restraints.shown(self._shown.nonzero()[0], self._table[0])
            known = [self._row[name] for name in self._left_behind if name in self._row]
            if waits := [row for row in known if self._table[0, row] == WAITING]:
                rows = rows[~np.isin(rows, waits)]
            if len(rows) == len(self._row):
                ids, tenants = tuple(self._row), tuple(self._tenant.values())
            else:
                shown = [job for row in rows.tolist() if (job := self._jobs[row]) is not None]
                ids = tuple([job.id for job in shown])
                tenants = tuple([job.tenant for job in shown])
            self._live = rows, ids, tenants
        return self._live

    def named(self) -> Collection[str] | None:
        """Give the ids of the jobs that are shown, to be looked up, if none is hidden."""
        return self._row.keys() if len(self.live()[0]) == len(self._row) else None

    def hidden(self) -> dict[str, str]:
        """Give the jobs that wait and are not shown, by submission, each with the rule."""
        rows, ids, _ = self.live()
        if len(rows) == len(self._row):
            return {}
        shown, holds = set(ids), self._state.standing.holds
        rules = dict.fromkeys(self._left_behind, "gang.left_behind")
        rules.update(dict.fromkeys(holds, "operator.hold"))
        return {n: rules.get(n, "operator.pause") for n in self._row if n not in shown}

    def slots(self) -> Ints:
        """Give (n,) a node that each live job is on, or going to; -1 for none."""
        found: Ints = self._table[_SLOT].take(self.live()[0]).astype(np.int64)
        return found

    def holdings(self) -> tuple[Ints, Ints, Ints]:
        """Give (h,) index among live jobs, node's slot and GPUs, by job then node."""
        job, slot, gpus = self._holdings
        return self.live()[0].searchsorted(job), slot, gpus

    def columns(self, now_s: float, pool: Ints, away: Ints, affinity: Floats) -> Jobs:
        """Make the columns of the live jobs.

        Args:
            now_s: The moment.
            pool: (n,) where each is, or is going to; -1: nowhere.
            away: Indices of jobs that hold GPUs where nothing may be changed now.
            affinity: (n, m), as `affinity` gives it.
        """
        rows, ids, tenants = self.live()
        found = self._table.take(rows, axis=1)
        whole, truths = found[:_TRUTHS].astype(np.int64), found[_TRUTHS:_PLAIN] > 0
        if len(away):
            whole[0, away] = MOVING
        for part in (found, whole, truths):
            part.flags.writeable = False
        (
            has, attained_gpu_s, held_s, attained_at_s, total, step, per_s, step_at_s, saved,
            left, told_at, per_step, observed_s, factor,
        ) = found[_SLOT + 1 : -NOTE]  # fmt: skip
        holds = has > 0
        step_now = np.minimum(total, step + per_s * np.maximum(now_s - step_at_s, 0.0))
        since_s = np.where(holds, now_s - attained_at_s, 0.0)
        rate = self._speeds.rows(rows)
        rate *= factor[:, None]
        self._restraints.narrow(rate, self._speeds.sizes, rows, whole[_SIZE])
        self.left_out = ()
        if self._speeds.declared > SIZES_MOST:
            none = ((whole[0] == WAITING) & ~(rate > 0).any(axis=1)).nonzero()[0]
            self.left_out = tuple([ids[job] for job in none.tolist()])
        remaining = left - (step_now - told_at) * per_step
        # One that goes on beyond what was expected is expected to take twice that, and so on.
        beyond = (np.isinf(total) & (remaining <= 0.0)).nonzero()[0]
        if len(beyond):
            now, per = step_now[beyond], per_step[beyond]
            ends = np.maximum(told_at[beyond] + left[beyond] / per, 1.0)
            ends = np.ldexp(ends, np.frexp(np.maximum(now / ends, 1.0))[1])
            remaining[beyond] = (ends - now) * per
        made = {
            "remaining_steps": np.maximum(remaining, _LEFT_LEAST),
            "attained_gpu_s": attained_gpu_s + has * since_s,
            "held_s": held_s + since_s,
            "checkpoint_age_steps": np.where(
                holds, np.maximum(step_now - saved, 0.0) * per_step, 0.0
            ),
            "rate": rate,
            "rate_age_s": now_s - observed_s,
            "sizes": self._speeds.sizes,
        }
        for column in made.values():
            column.flags.writeable = False
        plain = dict(zip(_SHOWN, (*whole, *truths, *found[_PLAIN:_SLOT]), strict=True))
        notes = found[-NOTE:].T
        return Jobs(ids, tenants, pool=pool, notes=notes, affinity=affinity, **plain, **made)

    def affinity(self, sites: Sites) -> Floats:
        """Give (n, m) the speed of each live job on each site."""
        if self._affine is None or self._affine[0] is not sites:
            rows, ids, _ = self.live()
            speed = sites.pools.speed
            found = np.broadcast_to(speed, (len(ids), len(speed)))
            some = sorted(row for row, own in self._affinity.items() if own)
            if some:
                some = np.array(some)[np.isin(some, rows)].tolist()
            if some:
                found = found.copy()
                for row in some:
                    own = self._affinity[row]
                    found[rows.searchsorted(row)] = [
                        own.get(pool, usual)
                        for pool, usual in zip(sites.pool_of, speed.tolist(), strict=True)
                    ]
                found.flags.writeable = False
            self._affine = sites, found
        return self._affine[1]


def _is_unsure(job: Job) -> bool:
    """Whether an old order to start it may be obeyed yet, so that no new one can be given."""
    return job.unsure_until_s > 0.0 and job.state is JobState.QUEUED


def _not_before_s(job: Job) -> float:
    """Give until when it is of no use to start it, after a failure."""
    until_s = _NEVER if job.backoff_until_s is None else job.backoff_until_s
    return max(until_s, job.unsure_until_s) if _is_unsure(job) else until_s
