"""The direct driver: a policy, a physics and virtual time, without engine or agents between.

The world holds jobs and GPUs, shows the policy snapshots, applies its targets at once, and lets
jobs pause for as long as their physics says. It is deterministic: the same jobs and options give
the same outcome, but for the decision times, which a real clock measures.

When a policy is asked: at every multiple of `round_s` while jobs are there; with `on_events` also
when a job arrives or ends. Without, what happened since the last round is seen at the next one, as
in the Pollux artifact: step all jobs, drop those that ended, then decide about those submitted.

A policy refuses a job for good by writing the note `(REFUSED,)` on it while it waits: a note of
just this number. The job leaves, and is counted as rejected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bus.clock import SystemClock
from scheduler.policies.interface import (
    Floats,
    Holdings,
    Ints,
    Kind,
    LoanPhase,
    Nodes,
    Plan,
    Policy,
    Pools,
    Snapshot,
    Target,
)
from simulator.jobtable import JobTable
from simulator.physics.base import Entry, Placement, Room

#: The one number of a note that refuses a job.
REFUSED = -1.0
_POOL = "train"


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is driven."""

    room: Room = field(default_factory=Room)
    round_s: float = 60.0
    on_events: bool = False
    #: Least time between decisions: what happens sooner waits for then (ElasticFlow's slots).
    merge_s: float = 0.0
    #: Sizes that any job may take; None: `ladder` of the room and what jobs asked for.
    sizes: tuple[int, ...] | None = None
    tick_s: float = 0.0  #: Legs last whole multiples of this (`Physics.tick_s`).
    horizon_s: float = math.inf  #: When to stop, finished or not.
    stall_s: float = 86_400.0  #: Stop when for so long nothing runs and nothing arrives.


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of a run. N jobs by submission, then id; moments in s, inf for never."""

    policy: str
    room: Room
    ids: tuple[str, ...]
    tenants: tuple[str, ...]
    requested: Ints  #: (N,)
    submit_s: Floats  #: (N,)
    deadline_s: Floats  #: (N,)
    start_s: Floats  #: (N,) first start.
    ready_s: Floats  #: (N,) end of the first start's pause.
    end_s: Floats  #: (N,)
    refused: Ints  #: (N,) 1 where the policy refused it.
    waited_s: Floats  #: (N,) without GPUs between submission and end, or the run's end.
    attained_gpu_s: Floats  #: (N,)
    paused_gpu_s: Floats  #: (N,) the part of it without progress.
    restarts: Ints  #: (N,)
    preemptions: Ints  #: (N,)
    grown: Ints  #: (N,)
    shrunk: Ints  #: (N,)
    moved: Ints  #: (N,)
    until_s: float  #: When the run stopped.
    #: (t,), (t,) moments and GPUs allocated from then on.
    line_s: Floats
    line_gpus: Ints
    decision_s: Floats  #: (d,) how long each decision took.
    decision_jobs: Ints  #: (d,) active jobs at each.
    #: While a job waited: GPU seconds that were free, and those of them that no whole gang of the
    #: size the first of them asked for could use.
    idle_gpu_s: float
    stranded_gpu_s: float


def ladder(room: Room, requested: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the sizes worth offering: fine steps within a node, then halves and whole nodes.

    For 16 nodes of 4: 1 2 3 4 6 8 12 16 20 24 … 64. At most 16 nodes, in steps that grow; sizes
    that jobs ask for are always among them.
    """
    node = room.gpus_per_node
    sizes = {1 << power for power in range(12) if 1 << power <= node}
    sizes |= {3 << power for power in range(11) if 3 << power < node}
    sizes |= {node, node * 3 // 2} | {node * count for count in range(2, 17)}
    fits = {size for size in (*sizes, *requested) if 1 <= size <= room.gpus}
    return tuple(sorted(fits))


def simulate(entries: Sequence[Entry], policy: Policy, options: Options | None = None) -> Outcome:
    """Run jobs under a policy until all have ended, or nothing more can happen.

    Raises:
        RuntimeError: The policy gave out more GPUs than there are, or placed a job wrongly.
    """
    return World(entries, policy, options or Options()).run()


class World:
    """One run."""

    def __init__(self, entries: Sequence[Entry], policy: Policy, options: Options) -> None:
        room = options.room
        sizes = options.sizes or ladder(room, [one.requested for one in entries])
        self.jobs = JobTable(entries, sizes, options.tick_s)
        self.jobs.eager = options.on_events
        self._policy = policy
        self._options = options
        self._room = room
        self._clock = SystemClock()
        digits = max(3, len(str(room.nodes - 1)))
        names = tuple(f"node-{number:0{digits}}" for number in range(room.nodes))
        self._node_at = {name: i for i, name in enumerate(names)}
        self._free = np.full(room.nodes, room.gpus_per_node, dtype=np.int64)
        count = room.nodes
        self._pools = Pools(
            ids=(_POOL,),
            kind=np.array([int(Kind.TRAINING)]),
            speed=np.ones(1),
            gpu_memory_mib=np.full(1, np.inf),
            transfer_mib_per_s=np.full(1, np.inf),
        )
        self._nodes = Nodes(
            ids=names,
            pool=np.zeros(count, dtype=np.int64),
            gpus=self._free.copy(),
            free=self._free,
            usable=np.ones(count, dtype=np.bool_),
            loan=np.full(count, int(LoanPhase.OWNED)),
            lent_since_s=np.full(count, -np.inf),
            returned_s=np.full(count, -np.inf),
        )
        self._arrived = 0
        self._asked_s = -math.inf  # when the policy was, last
        # (h, 3) rows (job, node, GPUs), by job then node; the job's number among all.
        self._rows = np.zeros((0, 3), dtype=np.int64)
        self._touched: list[int] = []
        self._lines: list[tuple[float, int]] = [(0.0, 0)]
        self._decisions: list[tuple[float, int]] = []
        self._idle = self._stranded = 0  # GPUs since the last decision
        self._idle_gpu_s = self._stranded_gpu_s = self._decided_s = 0.0

    # --- time ---------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run to the end."""
        jobs, options = self.jobs, self._options
        now_s = quiet_s = 0.0
        while (moment_s := self._next(now_s)) is not None:
            if moment_s > options.horizon_s:
                now_s = options.horizon_s
                self._end_legs(now_s)
                break
            now_s = moment_s
            ended = self._end_legs(now_s)
            came = int(np.searchsorted(jobs.submit_s, now_s, side="right"))
            arrived = came > self._arrived
            if arrived:
                jobs.admit(self._arrived, came)
                self._arrived = came
            is_round = now_s % options.round_s == 0.0
            if len(jobs.active) and (is_round or (options.on_events and (ended or arrived))):
                self._decide(now_s)
            if jobs.size.any() or came < len(jobs.ids):
                quiet_s = now_s
            elif now_s - quiet_s > options.stall_s:
                break
        return self._outcome(now_s)

    def _next(self, now_s: float) -> float | None:
        """Give the next moment at which anything may happen; None if nothing can."""
        jobs, round_s = self.jobs, self._options.round_s
        arrival_s = (
            float(jobs.submit_s[self._arrived]) if self._arrived < len(jobs.ids) else math.inf
        )
        if not len(jobs.active):
            if arrival_s == math.inf:
                return None
            if not self._options.on_events:
                return _round_from(arrival_s, round_s)
            return max(arrival_s, self._asked_s + self._options.merge_s)
        next_s = (math.floor(now_s / round_s) + 1) * round_s
        if not self._options.on_events:
            return next_s
        due_s = float(jobs.due_s[jobs.active].min())
        open_s = self._asked_s + self._options.merge_s
        return max(now_s, open_s, min(next_s, arrival_s, due_s))

    def _end_legs(self, now_s: float) -> bool:
        """Begin the legs that follow those due; say whether a job ended."""
        jobs = self.jobs
        ended: list[int] = []
        while True:
            due = jobs.active[jobs.due_s[jobs.active] <= now_s].tolist()
            if not due:
                break
            ended.extend(job for job in due if jobs.turn(job))
        for job in ended:
            self._release(job)
            jobs.placement[job] = ()
        if ended:
            jobs.drop(ended)
            self._line(now_s)
        return bool(ended)

    # --- decisions ----------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> Snapshot:
        """Show the policy what is there."""
        nodes = self._nodes
        seen = Nodes(
            ids=nodes.ids,
            pool=nodes.pool,
            gpus=nodes.gpus,
            free=self._free.copy(),
            usable=nodes.usable,
            loan=nodes.loan,
            lent_since_s=nodes.lent_since_s,
            returned_s=nodes.returned_s,
        )
        return Snapshot(now_s, self.jobs.view(now_s), self._pools, seen, self._holdings(), ())

    def _decide(self, now_s: float) -> None:
        self._asked_s = now_s
        self._book_idle(now_s)
        seen = self.snapshot(now_s)
        began_s = self._clock.now_s()
        plan = self._policy.plan(seen)
        self._decisions.append((self._clock.now_s() - began_s, len(seen.jobs.ids)))
        if plan.targets:
            self._apply(plan.targets, now_s)
        if plan.notes:
            self._note(plan)
        self._look()

    def _book_idle(self, now_s: float) -> None:
        since_s, self._decided_s = now_s - self._decided_s, now_s
        self._idle_gpu_s += self._idle * since_s
        self._stranded_gpu_s += self._stranded * since_s

    def _look(self) -> None:
        """Count idle GPUs while somebody waits for some."""
        jobs = self.jobs
        waits = jobs.active[jobs.size[jobs.active] == 0]
        self._idle = int(self._free.sum()) if len(waits) else 0
        self._stranded = 0
        if self._idle:
            gang = min(int(jobs.requested[waits[0]]), self._room.gpus_per_node)
            self._stranded = int((self._free % gang).sum())

    def _apply(self, targets: Mapping[str, Target | None], now_s: float) -> None:
        jobs = self.jobs
        changes: list[tuple[int, Placement]] = []
        for name, target in targets.items():
            job = jobs.at[name]
            placement: Placement = ()
            if target is not None:
                placement = tuple(
                    sorted((self._node_at[node], gpus) for node, gpus in target.placement)
                )
            if placement != jobs.placement[job]:
                self._release(job)
                changes.append((job, placement))
        for _, placement in changes:
            for node, gpus in placement:
                self._free[node] -= gpus
        if changes and int(self._free.min()) < 0:
            over = self._nodes.ids[int(self._free.argmin())]
            raise RuntimeError(
                f"{self._policy.name}: at {now_s:.0f} s it gave out more GPUs than {over} has"
            )
        for job, placement in changes:
            if jobs.end_s[job] < math.inf or job >= self._arrived or jobs.refused[job]:
                raise RuntimeError(
                    f"{self._policy.name}: {jobs.ids[job]} is not there to be placed"
                )
            jobs.give(job, placement, now_s)
        if changes:
            self._touched.extend(job for job, _ in changes)
            self._line(now_s)

    def _note(self, plan: Plan) -> None:
        plan.check_notes()
        refused = []
        for name, note in plan.notes.items():
            job = self.jobs.at[name]
            self.jobs.notes[job] = np.nan
            self.jobs.notes[job, : len(note)] = note
            if note == (REFUSED,) and not self.jobs.size[job]:
                refused.append(job)
        if refused:
            self.jobs.refused[refused] = True
            self.jobs.drop(refused)

    def _release(self, job: int) -> None:
        for node, gpus in self.jobs.placement[job]:
            self._free[node] += gpus
        self._touched.append(job)

    def _holdings(self) -> Holdings:
        if self._touched:
            kept = self._rows[~np.isin(self._rows[:, 0], self._touched)]
            new = [
                (job, node, gpus)
                for job in sorted(set(self._touched))
                for node, gpus in self.jobs.placement[job]
            ]
            rows = np.concatenate((kept, np.array(new, dtype=np.int64).reshape(-1, 3)))
            self._rows = rows[np.argsort(rows[:, 0], kind="stable")]
            self._touched = []
        job, node, gpus = self._rows.T
        return Holdings(np.searchsorted(self.jobs.active, job), node.copy(), gpus.copy())

    # --- the end ------------------------------------------------------------------------------

    def _line(self, now_s: float) -> None:
        self._lines.append((now_s, self._room.gpus - int(self._free.sum())))

    def _outcome(self, now_s: float) -> Outcome:
        self._book_idle(now_s)
        jobs, count = self.jobs, self.jobs.count
        for job in jobs.active.tolist():
            jobs.close(job, now_s)
        every = np.arange(len(jobs.ids))
        return Outcome(
            policy=self._policy.name,
            room=self._room,
            ids=jobs.ids,
            tenants=jobs.tenants,
            requested=jobs.requested,
            submit_s=jobs.submit_s,
            deadline_s=jobs.deadline_s,
            start_s=jobs.first_start_s,
            ready_s=jobs.first_ready_s,
            end_s=jobs.end_s,
            refused=jobs.refused.astype(np.int64),
            waited_s=jobs.waited_s,
            attained_gpu_s=jobs.attained_gpu_s(every, now_s),
            paused_gpu_s=jobs.paused_gpu_s,
            restarts=count.restarts,
            preemptions=count.preemptions,
            grown=count.grown,
            shrunk=count.shrunk,
            moved=count.moved,
            until_s=now_s,
            line_s=np.array([moment for moment, _ in self._lines]),
            line_gpus=np.array([gpus for _, gpus in self._lines], dtype=np.int64),
            decision_s=np.array([took_s for took_s, _ in self._decisions]),
            decision_jobs=np.array([count for _, count in self._decisions], dtype=np.int64),
            idle_gpu_s=self._idle_gpu_s,
            stranded_gpu_s=self._stranded_gpu_s,
        )


def _round_from(moment_s: float, round_s: float) -> float:
    return math.ceil(moment_s / round_s) * round_s
