"""One run: jobs and owners as a physics has them, agents, and the real engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bus.clock import SystemClock
from scheduler.core.settings import Settings
from scheduler.policies.interface import Plan, Policy, Snapshot
from simulator.account import Account
from simulator.driver import START_S, Driver
from simulator.ideal import Ideal
from simulator.layout import Layout
from simulator.options import Options, ladder
from simulator.outcome import Outcome
from simulator.physics.base import Entry

if TYPE_CHECKING:
    from simulator.hosted import Hosted

__all__ = ["Options", "Outcome", "PolicyError", "Run", "ladder", "settings_of", "simulate"]


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
        ordered = sorted(entries, key=lambda one: one.submit_s)
        self._options, self._policy = options, _Timed(policy)
        self._out = Outcome(
            cluster=options.cluster,
            ids=tuple(entry.id for entry in ordered),
            tenants=tuple(entry.tenant for entry in ordered),
            requested=np.array([entry.requested for entry in ordered], dtype=np.int64),
            submit_s=np.array([entry.submit_s for entry in ordered]),
            deadline_s=np.array([entry.deadline_s for entry in ordered]),
        )
        layout = Layout(options.cluster, options.pools)
        self._account = Account(layout, self._out)
        ideal = options.agents == "ideal"
        self._field = (Ideal if ideal else _hosted())(ordered, layout, self._account, options)
        self.driver = Driver(
            self._policy, self._field, settings_of(options), line, cell, skips=ideal
        )
        self.driver.watches.append(self._account.saw)
        self._quiet_s = START_S

    def run(self) -> Outcome:
        """Run to the end."""
        driver, options, out = self.driver, self._options, self._out
        driver.begin()
        driver.advance(START_S + options.horizon_s, self._is_over)
        driver.check()
        failures = self._field.failures if options.pools or options.failures else None
        self._account.close(driver.now_s - START_S, self._field.owners, failures)
        out.decision_s = np.array([took_s for took_s, _ in self._policy.decisions])
        out.decision_jobs = np.array([n for _, n in self._policy.decisions], dtype=np.int64)
        out.invariant_violations = driver.violations
        return out

    def _is_over(self, now_s: float) -> bool:
        """Whether all jobs are gone, or for long nothing ran and none came."""
        account = self._account
        if account.failed:
            at_s = now_s - START_S
            what = f"{self._policy.name}: at {at_s:.0f} s: {account.failed}"
            raise PolicyError(what) from self._policy.error
        if account.over == len(self._out.ids):
            return True
        if self._field.goes_on:
            self._quiet_s = now_s
        return now_s - self._quiet_s > self._options.stall_s


def _hosted() -> "type[Hosted]":
    from simulator.hosted import Hosted  # only who runs real cores needs their runtime

    return Hosted


def settings_of(options: Options) -> Settings:
    """Give the engine's settings of a run.

    Ideal agents never fall silent, so that nobody need be asked whether it is there, nor whether
    GPUs are still held: their answer, which takes no time, would be news to decide on.
    """
    ideal, usual = options.agents == "ideal", Settings()
    return Settings(
        cycle_s=min(options.round_s, _LONG_S),
        cycle_gap_s=options.merge_s,
        rounds_only=not options.on_events,
        unheard_s=_LONG_S if ideal else usual.unheard_s,
        start_timeout_s=_LONG_S if ideal else usual.start_timeout_s,
        owner_silence_s=None if ideal else usual.owner_silence_s,
        tenant_jobs_mib=None,  # a trace may be of one tenant
    )


class _Timed:
    """A policy whose decisions are timed, and whose failure is kept."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self._clock = SystemClock()
        self.decisions: list[tuple[float, int]] = []
        self.error: Exception | None = None

    def plan(self, snapshot: Snapshot) -> Plan:
        began_s = self._clock.now_s()
        try:
            plan = self._policy.plan(snapshot)
        except Exception as error:
            self.error = error
            raise
        if snapshot.jobs.ids:  # without a job there is nothing to decide
            self.decisions.append((self._clock.now_s() - began_s, len(snapshot.jobs.ids)))
        return plan
