"""All jobs of a run as numpy columns: where each stands, and the part of a snapshot about them.

Nothing here loops over jobs that just go on: progress follows from a leg's beginning and speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from scheduler.policies.interface import NOTE, Floats, Ints, Jobs, Phase, Pools
from simulator.physics.base import Entry, Placement

NEVER = float("-inf")
INF = float("inf")


@dataclass(slots=True)
class Counts:
    """What happened to jobs' allocations. N jobs."""

    preemptions: Ints  #: (N,) changes to none, the end not counted.
    grown: Ints
    shrunk: Ints
    moved: Ints  #: Same size, other nodes.
    migrated: Ints  #: Starts at another site than before.
    crossed: Ints  #: Those of them between the edge and elsewhere.
    killed: Ints  #: Stops without a checkpoint; they are preemptions too.


class JobColumns:
    """Jobs by submission, then as given. N in all; those submitted and unfinished are `active`.

    What a policy sees of a job lies together in `_floats` and `_ints`, so that the rows of the
    active jobs are gathered at once; the columns below are views of those.
    """

    submit_s: Floats
    deadline_s: Floats
    first_start_s: Floats
    waiting_since_s: Floats
    changed_s: Floats
    checkpoint_cost_s: Floats
    checkpoint_mib: Floats
    memory_mib: Floats
    _start_cost_s: Floats
    _held: Floats
    _attained: Floats
    _ready_s: Floats  #: When the present allocation's pause ends.
    _saved: Floats  #: The progress of the last checkpoint.
    # The present leg: begins at `_from_s` with progress `_done`, ends at `_until`.
    _from_s: Floats
    _done: Floats
    _speed: Floats
    _until: Floats
    # What was last told, when at progress `_told_at`.
    _left: Floats
    _told_at: Floats
    _per_progress: Floats
    size: Ints
    requested: Ints
    priority: Ints
    restarts: Ints  #: Changes to another allocation, the first start not counted.
    _pool: Ints
    edge_allowed: Ints

    def __init__(
        self,
        entries: Sequence[Entry],
        sizes: tuple[int, ...],
        tick_s: float,
        pools: Pools,
        checkpoint_every_s: float | None = None,
    ) -> None:
        """Begin with all jobs to come.

        Args:
            entries: The jobs.
            sizes: GPUs that any may have.
            tick_s: Legs last whole multiples of this; 0: any time.
            pools: Where they may run.
            checkpoint_every_s: How often a running job saves its progress, beside every change of
                its allocation; None: nothing kills jobs here, and nobody asks.
        """
        ordered = sorted(entries, key=lambda one: one.submit_s)
        total = len(ordered)
        self.sizes = sizes
        self._grid = np.array(sizes, dtype=np.int64)
        self.ids = tuple(one.id for one in ordered)
        self.at = {name: i for i, name in enumerate(self.ids)}
        if len(self.at) != total:
            raise ValueError("two jobs have the same id")
        self.tenants = tuple(one.tenant for one in ordered)
        self._ids = np.array(self.ids, dtype=object)
        self._tenants = np.array(self.tenants, dtype=object)
        self._names: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self.models = [one.model for one in ordered]
        self.total = np.array([one.model.total for one in ordered])
        self.placement: list[Placement] = [()] * total
        self.site = [-1] * total  #: Where its checkpoint is; -1: it never ran.
        self.active: Ints = np.zeros(0, dtype=np.int64)  #: Ascending.
        self._floats = np.zeros((total, 20))
        self._ints = np.zeros((total, 6), dtype=np.int64)
        self._unpack()
        self._fill(ordered)
        #: (N, m) speed in each pool.
        self.affinity = np.array(
            [
                [
                    one.affinity.get(name, speed)
                    for name, speed in zip(pools.ids, pools.speed.tolist(), strict=True)
                ]
                for one in ordered
            ]
        ).reshape(total, len(pools.ids))
        self.first_ready_s = np.full(total, INF)
        self.end_s = np.full(total, INF)
        self.refused = np.zeros(total, dtype=np.bool_)
        self.notes = np.full((total, NOTE), np.nan)
        self.count = Counts(*(np.zeros(total, dtype=np.int64) for _ in fields(Counts)))
        self.lost_gpu_s = np.zeros(total)  #: GPU seconds whose work is done again.
        self._every_s = checkpoint_every_s
        self._saved_s = np.zeros(total)  # when the last checkpoint was made
        self.waited_s = np.zeros(total)
        self.paused_gpu_s = np.zeros(total)  #: GPU seconds held in pauses.
        self.due_s = np.full(total, INF)
        self._mark_s = np.full(total, INF)
        self._tick_s = tick_s
        self.eager = False  #: Whether a leg's rounded end counts, and not its exact end.
        self._rate = np.zeros((total, len(sizes)))
        self._stale = np.ones(total, dtype=np.bool_)
        stamps = [model.stamp for model in self.models]
        self._stamps = {i: stamp for i, stamp in enumerate(stamps) if stamp is not None}

    def _unpack(self) -> None:
        (
            self.submit_s, self.deadline_s, self.first_start_s, self.waiting_since_s,
            self.changed_s, self.checkpoint_cost_s, self.checkpoint_mib, self.memory_mib,
            self._start_cost_s, self._held, self._attained, self._ready_s, self._saved,
            self._from_s, self._done, self._speed, self._until,
            self._left, self._told_at, self._per_progress,
        ) = self._floats.T  # fmt: skip
        (
            self.size, self.requested, self.priority, self.restarts, self._pool, self.edge_allowed,
        ) = self._ints.T  # fmt: skip

    def _fill(self, ordered: Sequence[Entry]) -> None:
        self.submit_s[:] = self.waiting_since_s[:] = [one.submit_s for one in ordered]
        self.deadline_s[:] = [one.deadline_s for one in ordered]
        self.checkpoint_cost_s[:] = [one.checkpoint_cost_s for one in ordered]
        self.checkpoint_mib[:] = [one.checkpoint_mib for one in ordered]
        self.memory_mib[:] = [one.memory_mib for one in ordered]
        self._start_cost_s[:] = [one.start_cost_s for one in ordered]
        self.requested[:] = [one.requested for one in ordered]
        self.priority[:] = [one.priority for one in ordered]
        self.edge_allowed[:] = [one.edge_allowed for one in ordered]
        self.first_start_s[:] = INF
        self.changed_s[:] = self._ready_s[:] = NEVER
        self._per_progress[:] = 1.0

    def progress(self, job: int, now_s: float) -> float:
        """Say how far a job is."""
        ran_s = now_s - self._from_s[job]
        if ran_s <= 0.0:
            return float(self._done[job])
        return float(min(self._done[job] + self._speed[job] * ran_s, self._until[job]))

    def attained_gpu_s(self, jobs: Ints, now_s: float) -> Floats:
        """Return GPU seconds that jobs have held, pauses included."""
        size = self.size[jobs]
        since_s = np.where(size > 0, self.changed_s[jobs], now_s)
        found: Floats = self._attained[jobs] + size * (now_s - since_s)
        return found

    def _named(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self._names is None:
            act = self.active
            self._names = tuple(self._ids.take(act)), tuple(self._tenants.take(act))
        return self._names

    def view(self, now_s: float) -> Jobs:
        """Return the active jobs as a policy sees them."""
        self._refresh(now_s)
        act = self.active
        n, (ids, tenants) = len(act), self._named()
        (
            submit_s, deadline_s, first_start_s, waiting_since_s,
            changed_s, checkpoint_cost_s, checkpoint_mib, memory_mib,
            start_cost_s, held_s, attained_gpu_s, ready_s, saved,
            from_s, began, speed, until,
            left, told_at, per_progress,
        ) = np.ascontiguousarray(self._floats.take(act, axis=0).T)  # fmt: skip
        (
            size, requested, priority, restarts, pool, edge_allowed,
        ) = np.ascontiguousarray(self._ints.take(act, axis=0).T)  # fmt: skip
        runs = size > 0
        done = np.minimum(began + speed * np.maximum(now_s - from_s, 0.0), until)
        held_for_s = np.where(runs, now_s - changed_s, 0.0)
        nothing = np.zeros(n)
        if self._every_s is None:
            age = nothing
        else:
            mark_s = self._mark(np.where(runs, ready_s, INF), now_s)
            in_leg = mark_s > from_s
            since_s = np.where(in_leg, mark_s - from_s, 0.0)
            saved = np.where(in_leg, np.minimum(began + speed * since_s, until), saved)
            age = np.maximum(done - saved, 0.0) * per_progress
        return Jobs(
            ids=ids,
            tenants=tenants,
            phase=np.where(runs, int(Phase.RUNNING), int(Phase.WAITING)),
            submit_s=submit_s,
            deadline_s=deadline_s,
            priority=priority,
            remaining_steps=np.maximum(left - (done - told_at) * per_progress, 1e-9),
            attained_gpu_s=attained_gpu_s + size * held_for_s,
            held_s=held_s + held_for_s,
            first_start_s=first_start_s,
            restarts=restarts,
            waiting_since_s=waiting_since_s,
            requested=requested,
            size=size,
            pool=np.where(runs, pool, -1),
            changed_s=changed_s,
            sizes=self._grid,
            rate=self._rate.take(act, axis=0),
            rate_age_s=nothing,
            checkpoint_age_steps=age,
            checkpoint_cost_s=checkpoint_cost_s,
            start_cost_s=start_cost_s,
            checkpoint_mib=checkpoint_mib,
            memory_mib=memory_mib,
            edge_allowed=edge_allowed.astype(np.bool_),
            backoff_until_s=np.full(n, NEVER),
            notes=self.notes.take(act, axis=0),
            affinity=self.affinity.take(act, axis=0),
        )

    def _mark(self, ready_s: Floats, now_s: float) -> Floats:
        """Return when jobs that were ready then last saved by the clock; never: -inf."""
        every_s = self._every_s or INF
        if every_s == INF:
            return np.full(len(ready_s), NEVER)
        ran_s = now_s - ready_s
        with np.errstate(invalid="ignore"):
            found: Floats = np.where(ran_s > 0, ready_s + ran_s // every_s * every_s, NEVER)
        return found

    def _refresh(self, now_s: float) -> None:
        act = self.active
        if self._stamps:
            for job in act.tolist():
                stamp = self.models[job].stamp
                if stamp is not None and stamp != self._stamps[job]:
                    self._stamps[job] = stamp
                    self._stale[job] = True
        for job in act[self._stale.take(act)].tolist():
            done = self.progress(job, now_s)
            told = self.models[job].told(done, self.sizes)
            self._rate[job] = told.rates
            self._left[job] = told.remaining
            self._per_progress[job] = told.per_progress
            self._told_at[job] = done
            self._stale[job] = False
