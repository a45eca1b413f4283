"""What people left standing of loans and quotas holds under any policy, whatever it plans."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from hypothesis import given, settings, strategies as st

from scheduler.core import facts
from scheduler.core.quotas import uses
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.policies.interface import Plan, Policy, Snapshot
from scheduler.policies.registry import POLICIES, make_policy
from schemas.requests import FreezeLoans, SetQuota, VerbData
from tests.builders import request_of
from tests.effort import examples
from tests.simulation.world import Faults, RandomPolicy, World

#: What is frozen -> the nodes of which nothing may be borrowed.
FROZEN = {
    "infer": ("i0", "i1"),
    "i0": ("i0",),
    "edge": ("e0", "e1"),
    "e1": ("e1",),
    None: ("i0", "i1", "e0", "e1"),
}


@dataclass
class Grasping:
    """A policy that asks for every node besides."""

    inner: Policy

    @property
    def name(self) -> str:
        return self.inner.name

    def plan(self, snapshot: Snapshot) -> Plan:
        plan = self.inner.plan(snapshot)
        return replace(plan, lend=tuple(n for n in snapshot.nodes.ids if n not in plan.reclaim))


class Watched(World):
    """A world in which each decision is looked at."""

    look: Callable[[Decision], None] | None = None
    heard: ClassVar[list[Decision]] = []

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        super().saw(stimulus, decision)
        self.heard[:] = [decision]
        if self.look is not None:
            self.look(decision)

    def ask(self, args: VerbData) -> None:
        """Let an administrator ask for this now."""
        name = f"r{self.engine.state.number}"
        self.feed(request_of(self.now_s, args, name, role="admin"))
        last = self.heard[-1].facts[-1]
        assert isinstance(last, facts.RequestDone), last


def made(name: str, seed: int) -> Policy:
    return RandomPolicy(np.random.default_rng(seed)) if name == "random" else make_policy(name)


policies = st.sampled_from([*sorted(POLICIES), "random"])
seeds = st.integers(0, 2**16)


@settings(max_examples=examples(20))
@given(name=policies, seed=seeds, lender=st.sampled_from([*FROZEN]), late=st.booleans())
def test_nothing_is_newly_borrowed_from_what_is_frozen(
    name: str, seed: int, lender: str | None, late: bool
) -> None:
    world = Watched(seed, Faults(twice=0.1, late=0.2), policy=Grasping(made(name, seed)))
    for _ in range(4):
        world.submit(total_steps=5000)
    for _ in range(10 if late else 1):
        world.step(60.0)
    asked: list[str] = []

    def look(decision: Decision) -> None:
        said = [f for f in decision.facts if isinstance(f, facts.CommandIssued)]
        asked.extend(fact.subject for fact in said if fact.kind == "LendNode")

    world.ask(FreezeLoans(lender=lender))
    world.look = look
    for _ in range(25):
        world.step(60.0)
        if world.rng.random() < 0.05:
            world.restart_engine()
    assert not set(asked) & set(FROZEN[lender])
    if lender is not None:
        assert asked, "it asks for the others"


@settings(max_examples=examples(20))
@given(
    name=policies,
    seed=seeds,
    gpus=st.integers(0, 9),
    jobs=st.none() | st.integers(0, 3),
)
def test_no_tenant_has_more_than_its_quota(
    name: str, seed: int, gpus: int, jobs: int | None
) -> None:
    world = Watched(seed, Faults(twice=0.1, late=0.2), policy=Grasping(made(name, seed)))
    world.ask(SetQuota(tenant="t", gpus=gpus, jobs=jobs))
    most = [0, 0]

    def look(_: Decision) -> None:
        use = uses(world.engine.state)["t"]
        most[:] = max(most[0], use.gpus), max(most[1], use.jobs)
        assert use.gpus <= gpus
        assert jobs is None or use.jobs <= jobs

    world.look = look
    for number in range(25):
        if number % 8 == 0:
            world.submit(gpus_min=1 + number % 3, total_steps=3000)
        world.step(60.0)
    if gpus >= 4 and jobs != 0 and name != "random":
        assert most[0] > 0, "what the quota leaves is had"
