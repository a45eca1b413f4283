"""One run: jobs and owners as a physics has them, agents, and the real engine."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bus.clock import SystemClock
from scheduler.core.settings import Settings
from scheduler.policies.interface import Kind, Plan, Policy, Snapshot
from simulator.account import Account
from simulator.driver import START_S, Driver
from simulator.hosted import Hosted
from simulator.ideal import Ideal
from simulator.layout import Layout
from simulator.options import Options, ladder
from simulator.outcome import FleetRecord, Outcome
from simulator.physics.base import Entry

__all__ = [
    "FleetRecord",
    "Options",
    "Outcome",
    "PolicyError",
    "Run",
    "ladder",
    "settings_of",
    "simulate",
]


def simulate(
    entries: Sequence[Entry],
    policy: Policy,
    options: Options | None = None,
    *,
    line: str | None = None,
    cell: str = "default",
    journal: Path | None = None,
) -> Outcome:
    """Run jobs under a policy until all have ended, or nothing more can happen.

    Args:
        entries: The jobs.
        policy: Who decides.
        options: How it is run.
        line: The policy with its options, as a journal names it; None: its name.
        cell: Of the journal.
        journal: Where to write it (`simulator.log`); None: nowhere.

    Raises:
        PolicyError: The policy could not decide, or its plan was malformed.
        OSError: The journal cannot be written.
    """
    run = Run(entries, policy, options or Options(), line, cell)
    if journal is None:
        return run.run()
    # Only who writes a journal needs a bus.
    from simulator.log import Recorder

    with Recorder(journal, run.driver.engine) as recorder:
        run.driver.watches.append(recorder.saw)
        return run.run()


#: Longer than any run.
_LONG_S = 1e8


class PolicyError(RuntimeError):
    """The policy could not decide, or its plan was malformed."""


class Run:
    """A field, the engine that decides for it, and the account of both."""

    def __init__(
        self,
        entries: Sequence[Entry],
        policy: Policy,
        options: Options,
        line: str | None = None,
        cell: str = "default",
    ) -> None:
        """Begin with all jobs to come.

        Raises:
            ValueError: Two jobs have one id, a failure is of no node, or real agent cores cannot
                run these jobs.
        """
        room = options.room
        ordered = sorted(entries, key=lambda one: one.submit_s)
        sizes = options.sizes or ladder(room, [one.requested for one in ordered])
        self._entries, self._options = ordered, options
        self._layout = layout = Layout(room, options.pools)
        names = tuple(one.id for one in ordered)
        requested = np.array([one.requested for one in ordered], dtype=np.int64)
        self._account = account = Account(layout, names, requested)
        self._field: Ideal | Hosted
        if options.agents == "core":
            self._field = Hosted(ordered, layout, account, options)
        else:
            self._field = Ideal(ordered, layout, sizes, account, options)
        self._policy = _Watched(policy, options.tell, lambda: account.over)
        self.driver = Driver(
            self._policy,
            self._field,
            settings_of(options),
            line,
            cell,
            skips=options.agents == "ideal",
        )
        self.driver.watches.append(account.saw)
        self._quiet_s = START_S

    def run(self) -> Outcome:
        """Run to the end."""
        driver, options = self.driver, self._options
        driver.begin()
        driver.advance(START_S + options.horizon_s, self._is_over)
        driver.check()
        until_s = driver.now_s - START_S
        if options.tell is not None:
            options.tell(until_s, self._account.over)
        return self._outcome(until_s)

    def _is_over(self, now_s: float) -> bool:
        """Whether all jobs are gone, or for long nothing ran and none came."""
        if self._account.failed:
            at_s = now_s - START_S
            raise PolicyError(f"{self._policy.name}: at {at_s:.0f} s: {self._account.failed}")
        if self._account.over == len(self._entries):
            return True
        if self._field.goes_on:
            self._quiet_s = now_s
        return now_s - self._quiet_s > self._options.stall_s

    # --- the end ------------------------------------------------------------------------------

    def _outcome(self, now_s: float) -> Outcome:
        account, entries, policy = self._account, self._entries, self._policy
        account.close(now_s)
        return Outcome(
            policy=policy.name,
            room=self._options.room,
            ids=tuple(entry.id for entry in entries),
            tenants=tuple(entry.tenant for entry in entries),
            requested=np.array([entry.requested for entry in entries], dtype=np.int64),
            submit_s=np.array([entry.submit_s for entry in entries]),
            deadline_s=np.array([entry.deadline_s for entry in entries]),
            start_s=account.start_s,
            ready_s=account.ready_s,
            end_s=account.end_s,
            refused=account.declined,
            waited_s=account.waited_s,
            attained_gpu_s=account.attained_gpu_s,
            paused_gpu_s=account.paused_gpu_s,
            restarts=account.count["restarts"],
            preemptions=account.count["preemptions"],
            grown=account.count["grown"],
            shrunk=account.count["shrunk"],
            moved=account.count["moved"],
            until_s=now_s,
            line_s=np.array([moment for moment, _ in account.line]),
            line_gpus=np.array([gpus for _, gpus in account.line], dtype=np.int64),
            decision_s=np.array([took_s for took_s, _ in policy.decisions]),
            decision_jobs=np.array([count for _, count in policy.decisions], dtype=np.int64),
            idle_gpu_s=account.idle_gpu_s,
            stranded_gpu_s=account.stranded_gpu_s,
            claims=account.claims,
            claims_timed_out=account.claims_timed_out,
            invariant_violations=self.driver.violations,
            fleet=self._record(now_s) if self._options.pools or self._options.failures else None,
        )

    def _record(self, now_s: float) -> FleetRecord:
        account, usage = self._account, self._account.usage
        for owner in self._field.owners:
            owner.book(now_s)
        pools = [owner for owner in self._field.owners if owner.kind == Kind.INFERENCE]
        edges = [owner for owner in self._field.owners if owner.kind == Kind.EDGE]
        line = np.array(usage.line).reshape(-1, 3)
        return FleetRecord(
            gpus=self._layout.total,
            ready_gpu_s=sum(usage.open_gpu_s),
            loans=usage.loans,
            lent_gpu_s=usage.open_gpu_s[Kind.INFERENCE],
            lent_used_gpu_s=usage.held_gpu_s[Kind.INFERENCE],
            edge_gpu_s=usage.open_gpu_s[Kind.EDGE],
            edge_used_gpu_s=usage.held_gpu_s[Kind.EDGE],
            reclaim_batch=np.array(usage.batch, dtype=np.int64),
            reclaim_asked_s=np.array(usage.asked_s),
            reclaim_due_s=np.array(usage.due_s),
            reclaim_back_s=np.array(usage.back_s),
            reclaim_preemptions=account.reclaim_preemptions,
            needed_gpu_s=sum(owner.needed_gpu_s for owner in pools),
            short_gpu_s=sum(owner.short_gpu_s for owner in pools),
            owned_gpu_s=sum(owner.gpus for owner in pools) * now_s,
            edge_needed_gpu_s=sum(owner.needed_gpu_s for owner in edges),
            edge_short_gpu_s=sum(owner.short_gpu_s for owner in edges),
            failures=self._field.failures,
            migrated=account.count["migrated"],
            crossed=account.count["crossed"],
            killed=account.count["killed"],
            lost_gpu_s=account.lost_gpu_s,
            line_s=line[:, 0],
            line_lent=line[:, 1].astype(np.int64),
            line_used=line[:, 2].astype(np.int64),
        )


def settings_of(options: Options) -> Settings:
    """Give the engine's settings of a run.

    Ideal agents never fall silent, so that nobody need be asked whether it is there.
    """
    unheard_s = _LONG_S if options.agents == "ideal" else Settings().unheard_s
    return Settings(
        cycle_s=min(options.round_s, _LONG_S),
        cycle_gap_s=options.merge_s,
        rounds_only=not options.on_events,
        unheard_s=unheard_s,
    )


class _Watched:
    """A policy whose decisions are timed, and told of about once a second."""

    def __init__(
        self, policy: Policy, tell: Callable[[float, int], None] | None, gone: Callable[[], int]
    ) -> None:
        self.name, self._policy = policy.name, policy
        self._tell, self._gone = tell, gone
        self._clock = SystemClock()
        self._told_s = -math.inf
        self.decisions: list[tuple[float, int]] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        began_s = self._clock.now_s()
        plan = self._policy.plan(snapshot)
        now_s = self._clock.now_s()
        if snapshot.jobs.ids:  # without a job there is nothing to decide
            self.decisions.append((now_s - began_s, len(snapshot.jobs.ids)))
        if self._tell is not None and now_s >= self._told_s + 1.0:
            self._told_s = now_s
            self._tell(snapshot.now_s - START_S, self._gone())
        return plan
