"""Jobs that run as they are declared, on real agent cores: what ideal agents are held against.

The pauses are those of `runtime.simulated`: a start takes its cost, a change of size a tenth of it
or more, and a save its own, every 10 to 15 minutes and before a gang leaves.
"""

import math
from collections.abc import Sequence
from functools import partial

from runtime.core import (
    Action,
    CheckpointWorkers,
    GangCompleted,
    NodeSpec,
    Report as Reported,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.simulated_owner import Service, SimulatedOwner
from scheduler.policies.interface import Kind
from simulator.account import Account
from simulator.cores import Agent, Cores
from simulator.driver import START_S, Driver
from simulator.fleet import owners_of
from simulator.gang import submission
from simulator.gangs import TENANT
from simulator.layout import Layout
from simulator.options import Options
from simulator.physics.base import Entry, Placement
from simulator.physics.simple import SimpleJob
from simulator.pools import Owner


class Hosted(Cores):
    """All agents of a layout, and the tenants whose jobs they run."""

    failures = 0

    def __init__(
        self, entries: Sequence[Entry], layout: Layout, account: Account, options: Options
    ) -> None:
        """Begin with all jobs to come, by submission.

        Raises:
            ValueError: Two jobs have one id; a job is not what it declares; agents should fail, or
                take no time.
        """
        self._jobs = [
            (entry, entry.model)
            for entry in entries
            if isinstance(entry.model, SimpleJob) and not entry.affinity
        ]
        if len(self._jobs) < len(entries) or options.failures or options.instant:
            raise ValueError(
                "agents: real cores run jobs as declared, in their own time, and without failures"
            )
        self._number = {entry.id: number for number, entry in enumerate(entries)}
        if len(self._number) < len(entries):
            raise ValueError("two jobs have the same id")
        self._layout, self._account = layout, account
        self._came = 0
        self._runs: dict[str, Placement] = {}  # by job, what it runs on, or ran on last
        self._before: dict[str, Placement] = {}  # by job that migrates, what it comes from
        self.owners = owners_of(layout)
        self._served: list[tuple[SimulatedOwner, Owner]] = []
        named: dict[str, list[int]] = {}
        for node in range(len(layout.ids)):
            named.setdefault(layout.agent_of(node), []).append(node)
        super().__init__([self._agent(name, nodes) for name, nodes in sorted(named.items())])

    def _agent(self, name: str, nodes: list[int]) -> Agent:
        layout, owner = self._layout, None
        specs = [NodeSpec(**layout.spec(node)) for node in nodes]
        for lender in self.owners:
            if nodes[0] not in lender.nodes:
                continue
            pool = layout.node_pool(nodes[0])
            owner = SimulatedOwner(
                pool.id,
                {spec.node: spec.gpu_count for spec in specs},
                partial(_needed, lender),
                0.0,
                per_node=pool.kind == Kind.EDGE,
                service=Service(drain_s=pool.drain_s, warm_up_s=pool.warm_up_s),
            )
            self._served.append((owner, lender))
        agent = Agent(name, specs, owner)
        agent.watch = partial(self._saw, agent)
        return agent

    @property
    def goes_on(self) -> bool:
        """Whether a job is to come, or some agent has one."""
        to_come = self._came < len(self._jobs)
        return to_come or any(agent.core.gangs for agent in self.agents.values())

    @property
    def next_s(self) -> float:
        """When something happens next."""
        return min(super().next_s, self._comes_s)

    @property
    def _comes_s(self) -> float:
        if self._came == len(self._jobs):
            return math.inf
        return START_S + self._jobs[self._came][0].submit_s

    def begin(self, driver: Driver) -> None:
        """Let nodes be born, and owners serve; jobs come later."""
        super().begin(driver)
        self._count(driver.now_s)

    def happen(self, now_s: float) -> None:
        """Let agents go on, then tenants come."""
        super().happen(now_s)
        self._count(now_s)
        while self._comes_s <= now_s:
            entry, model = self._jobs[self._came]
            self._came += 1
            self._driver.say(submission(entry, model.sizes), TENANT)

    def _count(self, now_s: float) -> None:
        """Note what owners serve with."""
        for owner, lender in self._served:
            if more := owner.gpus_serving - lender.held:
                lender.serve(more, now_s - START_S)

    def _saw(self, agent: Agent, what: Action | Reported, now_s: float) -> None:
        """Count what an agent does, and what comes of it."""
        account = self._account
        match what:
            case StartWorkers() | ScaleWorkers():
                starts = isinstance(what, StartWorkers)
                before = (self._before if starts else self._runs).pop(what.job, ())
                after = self._runs[what.job] = self._layout.placement(what.placement)
                ready_s = agent.executor.trains_from_s(what.job)
                number, site = self._number[what.job], self._layout.site(after)
                account.changed(number, site, before, after, now_s, ready_s)
            case CheckpointWorkers():
                ready_s = agent.executor.trains_from_s(what.job)
                account.stands(self._number[what.job], now_s, ready_s)
            case StopWorkers():
                gang = agent.core.gangs[what.job]
                if gang.stop_reason == "migrated":
                    self._before[what.job] = self._runs[what.job]
                if not what.checkpoint:
                    saved_s = now_s if gang.checkpointed_s is None else gang.checkpointed_s
                    account.killed(self._number[what.job], now_s - saved_s)
            case GangCompleted():
                account.ended(self._number[what.job], now_s)
            case _:
                pass


def _needed(owner: Owner, now_s: float) -> float:
    return owner.load.at(now_s - START_S)
