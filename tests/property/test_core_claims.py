"""Any plan over any state: with agents that answer, each claim is carried out or refused in time.

Agents here obey at once and say so after a random time of at most `SLOW_S`. Every GPU that they
are told to use is free by their own record.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

from hypothesis import given, strategies as st

from scheduler.core import facts
from scheduler.core.claims import holders
from scheduler.core.engine import Engine
from scheduler.core.facts import Cells
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Command, LeaderStarted, Stimulus, TimePassed
from scheduler.core.transitions import JobState
from scheduler.core.validate import violations
from scheduler.policies.interface import LoanPhase, Phase, Plan, Snapshot, Target
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import CommandAcknowledged, WorkerStarted, WorkerStopped
from tests.builders import START_S, Scripted, node_born, submitted

#: The longest that an agent takes to let a gang leave, and again until it is up.
SLOW_S = 150.0


class Field:
    """An engine and its agents."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now_s = Random(seed), START_S
        self.policy = Scripted()
        self.engine = Engine(ClusterState(), lambda _: self.policy)
        self.events: list[tuple[float, int, Any]] = []
        self.number = count()
        self.known: set[str] = set()
        self.gangs: dict[str, tuple[int, Cells]] = {}
        self.user: dict[tuple[str, int], str] = {}
        #: By job with a claim: until when it must have ended.
        self.due_s: dict[str, float] = {}
        self.feed(LeaderStarted("test", 1, "scripted", Settings().to_dict()))

    def feed(self, data: Any) -> None:
        decision = self.engine.handle(Stimulus(self.now_s, data))
        state = self.engine.state
        assert violations(state) == []
        said = [(reason.subject, reason.rule) for reason in decision.reasons]
        for fact in decision.facts:
            assert not isinstance(fact, facts.PolicyFailed), fact
            if isinstance(fact, facts.TargetSet):
                self.due_s[fact.job] = self.now_s + 2 * SLOW_S * self.gangs_before(fact.job)
            elif isinstance(fact, facts.TargetDropped) and fact.refused:
                assert not fact.timed_out
                assert (fact.job, "plan.refused") in said
                assert state.jobs[fact.job].refused
        self.due_s = {name: due_s for name, due_s in self.due_s.items() if name in state.claimants}
        late = [name for name, due_s in self.due_s.items() if self.now_s > due_s]
        assert not late, f"{late} still wait"
        for command in decision.commands:
            self.obey(command)

    def gangs_before(self, name: str) -> int:
        """Count the gangs that have to leave before a claim is carried out, and itself."""
        jobs = self.engine.state.jobs
        found, ahead = {name}, [name]
        while ahead:
            job = jobs[ahead.pop()]
            fresh = {who for _, _, who in holders(self.engine.state, job)} - found
            found |= fresh
            ahead += sorted(fresh)
        return len(found)

    # --- agents ---

    def later(self, data: Any, at_s: float) -> None:
        heapq.heappush(self.events, (at_s, next(self.number), data))

    def delay_s(self) -> float:
        return self.rng.choice([0.0, self.rng.uniform(0.0, SLOW_S), SLOW_S])

    def obey(self, command: Command) -> None:
        if command.id in self.known:
            return
        self.known.add(command.id)
        ack = CommandAcknowledged(command=command.id, outcome="done")
        self.later(ack, self.now_s + self.delay_s())
        data = command.data
        if isinstance(data, StartGang | ScaleGang):
            new = {part.node: list(part.gpus) for part in data.placement}
            self.run(data.job, data.epoch, new)
        elif isinstance(data, StopGang):
            epoch, cells = self.gangs.pop(data.job, (0, {}))
            reason = "migrated" if data.reason == "migrated" else "preempted"
            self.leave(data.job, epoch, cells, reason)

    def run(self, job: str, epoch: int, new: Cells) -> None:
        before, old = self.gangs.get(job, (epoch, {}))
        self.gangs[job] = (epoch, new)
        left = {n: [g for g in gpus if g not in new.get(n, ())] for n, gpus in old.items()}
        gone_s = self.leave(job, before, left, "scaled_in")
        for node, gpus in new.items():
            for gpu in gpus:
                assert self.user.setdefault((node, gpu), job) == job, f"{node}/{gpu} is used twice"
            up = WorkerStarted(job=job, epoch=epoch, node=node, gpus=gpus, step=0)
            self.later(up, gone_s + self.delay_s())

    def leave(self, job: str, epoch: int, cells: Cells, reason: Any) -> float:
        at_s = self.now_s + self.delay_s()
        for node, gpus in cells.items():
            if gpus:
                gone = WorkerStopped(
                    job=job, epoch=epoch, node=node, gpus=gpus, reason=reason, step=0
                )
                self.later(gone, at_s)
        return at_s

    # --- time ---

    def moments(self) -> Iterator[tuple[float, Any]]:
        while True:
            wake_s = self.engine.wake_s
            if self.events and (wake_s is None or self.events[0][0] <= wake_s):
                at_s, _, data = heapq.heappop(self.events)
                yield at_s, data
            else:
                yield wake_s or 0.0, TimePassed()

    def until(self, end_s: float) -> None:
        for at_s, data in self.moments():
            if at_s > end_s:
                if not isinstance(data, TimePassed):
                    self.later(data, at_s)
                self.now_s = end_s
                return
            self.now_s = max(self.now_s, at_s)
            if isinstance(data, WorkerStopped):
                for gpu in data.gpus:
                    assert self.user.pop((data.node, gpu)) == data.job
            if not isinstance(data, WorkerStarted) or self.is_of(data):
                self.feed(data)

    def is_of(self, data: WorkerStarted) -> bool:
        return self.gangs.get(data.job, (-1, {}))[0] == data.epoch

    def plan(self, make: Any) -> None:
        self.policy.planner = make
        while self.policy.planner is not None:
            self.until(self.now_s + 5.0)


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


@given(seed=st.integers(0, 2**32))
def test_every_claim_ends_in_time(seed: int) -> None:
    rng, field = Random(seed), Field(seed)
    for name in ("n0", "n1", "n2"):
        field.feed(node_born(name))
    for name in ("i0", "i1"):
        field.feed(node_born(name, pool="infer", kind="inference"))
    in_place = {"argv": ["x"], "resize": "in_place"}
    for number in range(8):
        sent = submitted(f"j{number}", total_steps=10**9)
        program = in_place if rng.random() < 0.5 else None
        field.feed(type(sent).model_validate({**sent.model_dump(), "program": program}))
    field.plan(lambda seen: Plan(lend=("i0", "i1")))
    for _ in range(rng.randint(2, 6)):
        field.until(field.now_s + rng.choice([5.0, 60.0, 400.0]))
        field.plan(lambda seen: permuted(rng, seen, all_of=False))
    field.until(field.now_s + 5000.0)
    states = {job.state for job in field.engine.state.jobs.values()}
    assert states <= {JobState.QUEUED, JobState.RUNNING}, "a job is lost"
    assert not field.engine.state.claimants
    wanted: dict[str, Target | None] = {}
    before = {name: dict(job.cells) for name, job in field.engine.state.jobs.items()}

    def last(seen: Snapshot) -> Plan:
        plan = permuted(rng, seen, all_of=True)
        wanted.update(plan.targets)
        return plan

    field.plan(last)
    field.until(field.now_s + 5000.0)
    for name, job in field.engine.state.jobs.items():
        held = {node: len(gpus) for node, gpus in job.cells.items()}
        target = wanted.get(name)
        if job.refused:
            assert job.cells in (before[name], {})
        elif name in wanted:
            assert held == (dict(target.placement) if target else {})
        assert field.gangs.get(name, (0, {}))[1] == _sorted(job)


def _sorted(job: Job) -> Cells:
    return {node: sorted(gpus) for node, gpus in sorted(job.cells.items())}
