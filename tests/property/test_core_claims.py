"""Any plan over any state: with agents that answer, each claim is carried out or refused in time.

However many claims wait for each other's GPUs, none takes longer than one gang to leave, and its
own to shrink for others and come up again. Words take a random time of at most `LATE_S`. Every GPU
that agents are told to use is free by their own record, or they would refuse.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import given, strategies as st

from scheduler.core import facts
from scheduler.core.facts import Allocation
from scheduler.core.state import Job
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.core.transitions import JobState
from scheduler.policies.interface import LoanPhase, Phase, Plan, Snapshot, Target
from tests.builders import Scripted
from tests.simulation.world import Faults, World, agent_of

LATE_S = 60.0
#: The longest until a gang has left: it may have to come up first, in 10 s, and then saves in 5 s.
LEAVES_S = 4 * LATE_S + 2 * 10.0 + 2 * 5.0


class Slow(Faults):
    """A wire that takes its time, and loses nothing."""

    def orders(self) -> Sequence[float]:
        return (float(self.rng.choice([0.0, self.rng.uniform(0.0, LATE_S), LATE_S])),)

    events = orders


class Field(World):
    """An engine and prompt agents, who see to it that claims end."""

    def __init__(self, seed: int) -> None:
        self.script = Scripted()
        #: By job with a claim: until when it must have ended.
        self.due_s: dict[str, float] = {}
        agents = [
            agent_of("train", "train", "training", dict.fromkeys(("n0", "n1", "n2"), 4)),
            agent_of("infer", "infer", "inference", dict.fromkeys(("i0", "i1"), 4)),
        ]
        super().__init__(seed, Slow(), policy=self.script, agents=agents)

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        super().saw(stimulus, decision)
        state = self.engine.state
        said = [(reason.subject, reason.rule) for reason in decision.reasons]
        for fact in decision.facts:
            assert not isinstance(fact, facts.PolicyFailed | facts.CommandRefused), fact
            if isinstance(fact, facts.TargetSet):
                self.due_s[fact.job] = self.now_s + 2 * LEAVES_S
            elif isinstance(fact, facts.TargetDropped) and fact.refused:
                assert not fact.timed_out
                assert (fact.job, "plan.refused") in said
                assert state.jobs[fact.job].refused
        self.due_s = {name: due_s for name, due_s in self.due_s.items() if name in state.claimants}
        late = [name for name, due_s in self.due_s.items() if self.now_s > due_s]
        assert not late, f"{late} still wait"

    def plan(self, make: Any) -> None:
        self.script.planner = make
        while self.script.planner is not None:
            self.step(5.0)

    def runs(self, job: str) -> Allocation:
        """Give what the agents say that a job runs on."""
        found = [agent.core.gangs[job] for agent in self.agents.values() if job in agent.core.gangs]
        return {node: list(gpus) for gang in found for node, gpus in gang.placement.items()}


def permuted(rng: Random, seen: Snapshot, *, all_of: bool) -> Plan:
    """Draw new places for jobs that may be touched, on what they hold and what is free."""
    jobs, nodes = seen.jobs, seen.nodes
    free = dict(zip(nodes.ids, nodes.free.tolist(), strict=True))
    lent = [n for n, loan in zip(nodes.ids, nodes.loan, strict=True) if loan == LoanPhase.LENT]
    reclaim = {n: seen.now_s + rng.uniform(0.0, 400.0) for n in lent if rng.random() < 0.1}
    chosen = [j for j, phase in enumerate(jobs.phase) if phase != Phase.MOVING]
    chosen = [j for j in chosen if all_of or rng.random() < 0.7]
    for job, node, gpus in zip(*(part.tolist() for part in _held(seen)), strict=True):
        if job in chosen:
            free[nodes.ids[node]] += gpus
    targets: dict[str, Target | None] = {}
    rng.shuffle(chosen)
    for job in chosen:
        pool = rng.randrange(len(seen.pools.ids))
        there = [n for n, p in zip(nodes.ids, nodes.pool, strict=True) if p == pool and free[n]]
        left, placement = rng.choice([1, 2, 4, 8]), []
        for node in rng.sample(there, len(there)):
            if take := min(left, free[node], rng.choice([1, 2, 4])):
                placement.append((node, take))
                left, free[node] = left - take, free[node] - take
        runs = jobs.phase[job] == Phase.RUNNING
        if placement or (runs and rng.random() < 0.3):
            name = seen.pools.ids[pool]
            targets[jobs.ids[job]] = Target(name, tuple(placement)) if placement else None
    if all_of:
        return Plan(targets)
    return Plan(targets, lend=tuple(n for n in nodes.ids if rng.random() < 0.3), reclaim=reclaim)


def _held(seen: Snapshot) -> tuple[Any, Any, Any]:
    return seen.holdings.job, seen.holdings.node, seen.holdings.gpus


@given(rng=st.randoms(), seed=st.integers(0, 2**32))
def test_every_claim_ends_in_time(rng: Random, seed: int) -> None:
    field = Field(seed)
    in_place = {"argv": ["x"], "resize": "in_place"}
    for _ in range(8):
        field.submit(total_steps=10**9, program=in_place if rng.random() < 0.5 else None)
    field.step(LATE_S)
    field.plan(lambda seen: Plan(lend=("i0", "i1")))
    for _ in range(rng.randint(2, 6)):
        field.step(rng.choice([5.0, 60.0, 400.0]))
        field.plan(lambda seen: permuted(rng, seen, all_of=False))
    field.step(8 * LEAVES_S)
    states = {job.state for job in field.engine.state.jobs.values()}
    assert states <= {JobState.QUEUED, JobState.RUNNING}, "a job is lost"
    assert not field.engine.state.claimants
    wanted: dict[str, Target | None] = {}
    before = {name: dict(job.allocation) for name, job in field.engine.state.jobs.items()}

    def last(seen: Snapshot) -> Plan:
        plan = permuted(rng, seen, all_of=True)
        wanted.update(plan.targets)
        return plan

    field.plan(last)
    field.step(8 * LEAVES_S)
    for name, job in field.engine.state.jobs.items():
        held = {node: len(gpus) for node, gpus in job.allocation.items()}
        target = wanted.get(name)
        if job.refused:
            assert job.allocation in (before[name], {})
        elif name in wanted:
            assert held == (dict(target.placement) if target else {})
        assert field.runs(name) == _sorted(job)


def _sorted(job: Job) -> Allocation:
    return {node: sorted(gpus) for node, gpus in sorted(job.allocation.items())}
