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
from collections.abc import Sequence

import numpy as np

from bus.clock import SystemClock
from scheduler.policies.interface import Plan, Policy, Snapshot
from simulator.allocations import Allocations
from simulator.fleet import Fleet
from simulator.jobtable import JobTable
from simulator.layout import Layout
from simulator.options import Options, ladder
from simulator.outcome import FleetRecord, Outcome
from simulator.physics.base import Entry
from simulator.record import record

__all__ = ["REFUSED", "FleetRecord", "Options", "Outcome", "World", "ladder", "simulate"]

#: The one number of a note that refuses a job.
REFUSED = -1.0


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
        self._fleet = fleet = Fleet(Layout(room, options.pools), options)
        every_s = None if fleet.plain else options.checkpoint_every_s
        self.jobs = JobTable(entries, sizes, options.tick_s, fleet.layout.pools, every_s)
        self.jobs.eager = options.on_events
        self._policy = policy
        self._options = options
        self._room = room
        self._clock = SystemClock()
        self._allocations = Allocations(self.jobs, fleet, policy.name)
        self._arrived = 0
        self._asked_s = -math.inf  # when the policy was, last
        self._decisions: list[tuple[float, int]] = []
        self._idle = self._stranded = 0  # GPUs since the last decision
        self._idle_gpu_s = self._stranded_gpu_s = self._decided_s = 0.0
        self._news = False  # something happened that the policy was not asked about

    # --- time ---------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run to the end."""
        jobs, options = self.jobs, self._options
        now_s = quiet_s = 0.0
        told_s = self._clock.now_s()
        while (moment_s := self._next(now_s)) is not None:
            if moment_s > options.horizon_s:
                now_s = options.horizon_s
                self._end_legs(now_s)
                break
            now_s = moment_s
            ended = self._end_legs(now_s)
            moved = self._turn_fleet(now_s)
            came = int(np.searchsorted(jobs.submit_s, now_s, side="right"))
            arrived = came > self._arrived
            if arrived:
                jobs.admit(self._arrived, came)
                self._arrived = came
            self._news |= ended or arrived or moved
            if not len(jobs.active) and not self._fleet.on_loan:
                self._news = False
            elif _is_round(now_s, options.round_s) or (options.on_events and self._news):
                if not options.on_events or now_s >= self._asked_s + options.merge_s:
                    self._decide(now_s)
            if options.tell is not None and self._clock.now_s() >= told_s + 1.0:
                told_s = self._clock.now_s()
                options.tell(now_s, came - len(jobs.active))
            if jobs.size.take(jobs.active).any() or came < len(jobs.ids):
                quiet_s = now_s
            elif now_s - quiet_s > options.stall_s:
                break
        if options.tell is not None:
            options.tell(now_s, self._arrived - len(jobs.active))
        return self._outcome(now_s)

    def _next(self, now_s: float) -> float | None:
        """Give the next moment at which anything may happen; None if nothing can."""
        jobs, round_s = self.jobs, self._options.round_s
        arrival_s = (
            float(jobs.submit_s[self._arrived]) if self._arrived < len(jobs.ids) else math.inf
        )
        fleet_s = max(now_s, self._fleet.next_s)
        open_s = self._asked_s + self._options.merge_s
        next_s = _round_s(_last_round(now_s, round_s) + 1, round_s)
        if not len(jobs.active):
            if arrival_s == math.inf:
                return None
            if not self._options.on_events:
                wake_s = _round_from(arrival_s, round_s)
            else:
                wake_s = max(arrival_s, open_s)
            if self._fleet.on_loan:  # owners may want nodes back although no job is there
                wake_s = min(wake_s, max(next_s, open_s) if self._options.on_events else next_s)
            return min(wake_s, fleet_s)
        if not self._options.on_events:
            return min(next_s, fleet_s)
        if self._news:
            return min(max(now_s, open_s), fleet_s)
        least_s = min(next_s, arrival_s, fleet_s, self._options.horizon_s)
        due_s = jobs.run_on(least_s)
        return min(max(now_s, open_s, min(next_s, arrival_s, due_s)), fleet_s)

    def _end_legs(self, now_s: float) -> bool:
        """Begin the legs that follow those due; say whether a job ended."""
        jobs = self.jobs
        ended: list[int] = []
        while True:
            due = jobs.active[jobs.due_s.take(jobs.active) <= now_s].tolist()
            if not due:
                break
            ended.extend(job for job in due if jobs.turn(job))
        if ended:
            self._allocations.end(ended, now_s)
            jobs.drop(ended)
            self._fleet.settle(now_s)
        return bool(ended)

    def _turn_fleet(self, now_s: float) -> bool:
        """Let happen to nodes what is due; say whether a policy should hear of it."""
        fleet, news = self._fleet, False
        while (found := fleet.turn(now_s)) is not None:
            news |= found.news
            if found.kills_on >= 0:
                self._allocations.kill(found.kills_on, now_s, late=found.late)
                fleet.settle(now_s)
        return news

    # --- decisions ----------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> Snapshot:
        """Show the policy what is there."""
        jobs, fleet = self.jobs.view(now_s), self._fleet
        held, lenders = self._allocations.holdings(), fleet.lenders(now_s)
        return Snapshot(now_s, jobs, fleet.layout.pools, fleet.nodes(), held, lenders)

    def _decide(self, now_s: float) -> None:
        self._asked_s = now_s
        self._news = False
        self._book_idle(now_s)
        seen = self.snapshot(now_s)
        began_s = self._clock.now_s()
        plan = self._policy.plan(seen)
        self._decisions.append((self._clock.now_s() - began_s, len(seen.jobs.ids)))
        if plan.targets:
            self._allocations.apply(plan, now_s)
        if plan.notes or plan.decline:
            self._note(plan)
        if not self._fleet.plain:
            self._fleet.lend(plan.lend, now_s)
            self._fleet.reclaim(plan.reclaim, now_s)
            self._fleet.settle(now_s)
            self._news |= self._turn_fleet(now_s)
        self._look()

    def _book_idle(self, now_s: float) -> None:
        since_s, self._decided_s = now_s - self._decided_s, now_s
        self._idle_gpu_s += self._idle * since_s
        self._stranded_gpu_s += self._stranded * since_s

    def _look(self) -> None:
        """Count idle GPUs while somebody waits for some."""
        jobs = self.jobs
        waits = jobs.active[jobs.size[jobs.active] == 0]
        self._idle = self._stranded = 0
        if len(waits):
            free = self._fleet.open_free()
            gang = min(int(jobs.requested[waits[0]]), self._room.gpus_per_node)
            self._idle, self._stranded = int(free.sum()), int((free % gang).sum())

    def _note(self, plan: Plan) -> None:
        plan.check_notes()
        refused = [self.jobs.at[name] for name in plan.decline]
        for name, note in plan.notes.items():
            job = self.jobs.at[name]
            self.jobs.notes[job] = np.nan
            self.jobs.notes[job, : len(note)] = note
            if note == (REFUSED,) and not self.jobs.size[job]:
                refused.append(job)
        if refused:
            self.jobs.refused[refused] = True
            self.jobs.drop(refused)

    # --- the end ------------------------------------------------------------------------------

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
            restarts=jobs.restarts,
            preemptions=count.preemptions,
            grown=count.grown,
            shrunk=count.shrunk,
            moved=count.moved,
            until_s=now_s,
            line_s=np.array([moment for moment, _ in self._allocations.line]),
            line_gpus=np.array([gpus for _, gpus in self._allocations.line], dtype=np.int64),
            decision_s=np.array([took_s for took_s, _ in self._decisions]),
            decision_jobs=np.array([count for _, count in self._decisions], dtype=np.int64),
            idle_gpu_s=self._idle_gpu_s,
            stranded_gpu_s=self._stranded_gpu_s,
            fleet=None
            if self._fleet.plain
            else record(self._fleet, jobs, self._allocations.reclaim_preemptions, now_s),
        )


# Rounds are counted, and their moments are whole multiples of `round_s` as floats have them: a
# quotient or a remainder of floats may be off by a bit, so that a round is passed over, or comes
# again and again.


def _round_s(count: int, round_s: float) -> float:
    return count * round_s if count else 0.0  # the first is at 0 even if there is no other


def _last_round(moment_s: float, round_s: float) -> int:
    """Count the rounds after the first that have come by a moment."""
    count = math.floor(moment_s / round_s)
    if _round_s(count, round_s) > moment_s:
        return count - 1
    return count + 1 if _round_s(count + 1, round_s) <= moment_s else count


def _is_round(moment_s: float, round_s: float) -> bool:
    return _round_s(_last_round(moment_s, round_s), round_s) == moment_s


def _round_from(moment_s: float, round_s: float) -> float:
    last = _last_round(moment_s, round_s)
    return moment_s if _is_round(moment_s, round_s) else _round_s(last + 1, round_s)
