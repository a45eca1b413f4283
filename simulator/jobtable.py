"""All jobs of a run as numpy columns: where each stands, and the part of a snapshot about them.

Nothing here loops over jobs that just go on: progress follows from a leg's beginning and speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import NOTE, Floats, Ints, Jobs, Phase
from simulator.physics.base import Entry, Placement

_NEVER = float("-inf")
_INF = float("inf")


@dataclass(slots=True)
class Counts:
    """What happened to jobs' allocations. N jobs."""

    restarts: Ints  #: (N,) changes to another allocation, the first start not counted.
    preemptions: Ints  #: (N,) changes to none, the end not counted.
    grown: Ints
    shrunk: Ints
    moved: Ints  #: Same size, other nodes.


class JobTable:
    """Jobs by submission, then as given. N in all; those submitted and unfinished are `active`."""

    def __init__(self, entries: Sequence[Entry], sizes: tuple[int, ...], tick_s: float) -> None:
        ordered = sorted(entries, key=lambda one: one.submit_s)
        total = len(ordered)
        self.sizes = sizes
        self.ids = tuple(one.id for one in ordered)
        self.at = {name: i for i, name in enumerate(self.ids)}
        if len(self.at) != total:
            raise ValueError("two jobs have the same id")
        self.models = [one.model for one in ordered]
        self.placement: list[Placement] = [()] * total
        self.active: Ints = np.zeros(0, dtype=np.int64)
        self.submit_s = np.array([one.submit_s for one in ordered])
        self.deadline_s = np.array([one.deadline_s for one in ordered])
        self.requested = np.array([one.requested for one in ordered], dtype=np.int64)
        self.priority = np.array([one.priority for one in ordered], dtype=np.int64)
        self.tenants = tuple(one.tenant for one in ordered)
        self._start_cost_s = np.array([one.start_cost_s for one in ordered])
        self._checkpoint_cost_s = np.array([one.checkpoint_cost_s for one in ordered])
        self.total = np.array([one.model.total for one in ordered])
        self.size = np.zeros(total, dtype=np.int64)
        self.changed_s = np.full(total, _NEVER)
        self.waiting_since_s = self.submit_s.copy()
        self.first_start_s = np.full(total, _INF)
        self.first_ready_s = np.full(total, _INF)
        self.end_s = np.full(total, _INF)
        self.refused = np.zeros(total, dtype=np.bool_)
        self.notes = np.full((total, NOTE), np.nan)
        self.count = Counts(*(np.zeros(total, dtype=np.int64) for _ in range(5)))
        self.waited_s = np.zeros(total)
        self.paused_gpu_s = np.zeros(total)  #: GPU seconds held in pauses.
        self._ready_s = np.full(total, _NEVER)  # when the present allocation's pause ends
        self._attained = np.zeros(total)
        self._held = np.zeros(total)
        # The present leg: begins at `_from_s` with progress `_done`, ends when due.
        self._from_s = np.zeros(total)
        self._done = np.zeros(total)
        self._speed = np.zeros(total)
        self._until = np.zeros(total)
        self.due_s = np.full(total, _INF)
        self._mark_s = np.full(total, _INF)
        self._tick_s = tick_s
        self.eager = False  #: Whether a leg's rounded end counts, and not its exact end.
        self._rate = np.zeros((total, len(sizes)))
        self._left = np.zeros(total)
        self._told_at = np.zeros(total)
        self._per_progress = np.ones(total)
        self._stale = np.ones(total, dtype=np.bool_)
        stamps = [model.stamp for model in self.models]
        self._stamps = {i: stamp for i, stamp in enumerate(stamps) if stamp is not None}
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    # --- comings and goings -------------------------------------------------------------------

    def admit(self, first: int, last: int) -> None:
        """Make jobs [first, last) active."""
        self.active = np.concatenate((self.active, np.arange(first, last)))
        self._name()

    def drop(self, jobs: Sequence[int]) -> None:
        """Make jobs inactive: they ended, or were refused."""
        self.active = self.active[~np.isin(self.active, jobs)]
        self._name()

    def _name(self) -> None:
        act = self.active.tolist()
        self._names = tuple(self.ids[i] for i in act), tuple(self.tenants[i] for i in act)

    # --- running ------------------------------------------------------------------------------

    def progress(self, job: int, now_s: float) -> float:
        """Say how far a job is."""
        ran_s = now_s - self._from_s[job]
        if ran_s <= 0.0:
            return float(self._done[job])
        return float(min(self._done[job] + self._speed[job] * ran_s, self._until[job]))

    def give(self, job: int, placement: Placement, now_s: float) -> None:
        """Change a job's allocation, () for none; the same one as before must not be given."""
        before, count = self.placement[job], self.count
        done = self.progress(job, now_s)
        self.settle(job, now_s)
        self.placement[job] = placement
        held, size = int(self.size[job]), sum(gpus for _, gpus in placement)
        self.size[job] = size
        self.changed_s[job] = now_s
        if not size:
            count.preemptions[job] += 1
            self.waiting_since_s[job] = now_s
            self._halt(job, done)
            return
        if not held:
            self.waited_s[job] += now_s - self.waiting_since_s[job]
        starts = self.first_start_s[job] == _INF
        if starts:
            self.first_start_s[job] = now_s
        else:
            count.restarts[job] += 1
        if held:
            kind = count.grown if size > held else count.shrunk if size < held else count.moved
            kind[job] += 1
        self._ready_s[job] = now_s + self.models[job].pause_s(before, placement)
        if starts:
            self.first_ready_s[job] = self._ready_s[job]
        self._turn(job, done, float(self._ready_s[job]))

    def turn(self, job: int) -> bool:
        """End a leg that is due; begin the next, or end the job (True)."""
        mark_s, until = float(self._mark_s[job]), float(self._until[job])
        if until < self.total[job]:
            self._turn(job, until, mark_s)
            return False
        self.settle(job, mark_s)
        self.end_s[job] = mark_s
        self.size[job] = 0
        self._halt(job, until)
        return True

    def _turn(self, job: int, done: float, from_s: float) -> None:
        gpus = tuple(sorted((count for _, count in self.placement[job]), reverse=True))
        leg = self.models[job].leg(done, gpus)
        self._done[job], self._from_s[job] = done, from_s
        self._speed[job], self._until[job] = leg.speed, leg.until
        self._stale[job] = True
        if leg.speed <= 0.0:
            self.due_s[job] = self._mark_s[job] = _INF
            return
        takes_s = (leg.until - done) / leg.speed
        mark_s = from_s + (
            round(takes_s / self._tick_s) * self._tick_s if self._tick_s else takes_s
        )
        self._mark_s[job] = mark_s
        self.due_s[job] = mark_s if self.eager else from_s + takes_s

    def _halt(self, job: int, done: float) -> None:
        self._done[job] = self._until[job] = done
        self._speed[job] = 0.0
        self.due_s[job] = self._mark_s[job] = _INF
        self._stale[job] = True

    def settle(self, job: int, now_s: float) -> None:
        """Book what a job held since its allocation changed; before that changes again."""
        size = float(self.size[job])
        if size:
            since_s = float(self.changed_s[job])
            self._held[job] += now_s - since_s
            self._attained[job] += size * (now_s - since_s)
            paused_s = min(now_s, float(self._ready_s[job])) - since_s
            self.paused_gpu_s[job] += size * max(paused_s, 0.0)

    def close(self, job: int, now_s: float) -> None:
        """Book what a job that does not end in time has had."""
        self.settle(job, now_s)
        if self.size[job]:
            self.changed_s[job] = now_s
        else:
            self.waited_s[job] += now_s - self.waiting_since_s[job]

    # --- what a policy sees -------------------------------------------------------------------

    def attained_gpu_s(self, jobs: Ints, now_s: float) -> Floats:
        """Return GPU seconds that jobs have held, pauses included."""
        size = self.size[jobs]
        since_s = np.where(size > 0, self.changed_s[jobs], now_s)
        found: Floats = self._attained[jobs] + size * (now_s - since_s)
        return found

    def view(self, now_s: float) -> Jobs:
        """Return the active jobs as a policy sees them."""
        self._refresh(now_s)
        act = self.active
        n = len(act)
        size, changed_s = self.size[act], self.changed_s[act]
        runs = size > 0
        ran_s = np.maximum(now_s - self._from_s[act], 0.0)
        done = np.minimum(self._done[act] + self._speed[act] * ran_s, self._until[act])
        left = self._left[act] - (done - self._told_at[act]) * self._per_progress[act]
        held_for_s = np.where(runs, now_s - changed_s, 0.0)
        nothing, never = np.zeros(n), np.full(n, _NEVER)
        return Jobs(
            ids=self._names[0],
            tenants=self._names[1],
            phase=np.where(runs, int(Phase.RUNNING), int(Phase.WAITING)),
            submit_s=self.submit_s[act],
            deadline_s=self.deadline_s[act],
            priority=self.priority[act],
            remaining_steps=np.maximum(left, 1e-9),
            attained_gpu_s=self._attained[act] + size * held_for_s,
            held_s=self._held[act] + held_for_s,
            first_start_s=self.first_start_s[act],
            restarts=self.count.restarts[act],
            waiting_since_s=self.waiting_since_s[act],
            requested=self.requested[act],
            size=size,
            pool=np.where(runs, 0, -1),
            changed_s=changed_s,
            sizes=np.array(self.sizes, dtype=np.int64),
            rate=self._rate[act],
            rate_age_s=nothing,
            checkpoint_age_steps=nothing,
            checkpoint_cost_s=self._checkpoint_cost_s[act],
            start_cost_s=self._start_cost_s[act],
            checkpoint_mib=nothing,
            memory_mib=nothing,
            edge_allowed=np.zeros(n, dtype=np.bool_),
            backoff_until_s=never,
            notes=self.notes[act],
            affinity=np.ones((n, 1)),
        )

    def _refresh(self, now_s: float) -> None:
        act = self.active
        if self._stamps:
            for job in act.tolist():
                stamp = self.models[job].stamp
                if stamp is not None and stamp != self._stamps[job]:
                    self._stamps[job] = stamp
                    self._stale[job] = True
        for job in act[self._stale[act]].tolist():
            done = self.progress(job, now_s)
            told = self.models[job].told(done, self.sizes)
            self._rate[job] = told.rates
            self._left[job] = told.remaining
            self._per_progress[job] = told.per_progress
            self._told_at[job] = done
            self._stale[job] = False
