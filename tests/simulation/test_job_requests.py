"""Under every policy: no held job starts, and in a pause none starts or grows and none is lent."""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from scheduler.core import facts
from scheduler.core.canonical import state_hash
from scheduler.core.engine import Engine
from scheduler.core.record import (
    decision_bytes,
    decision_to_dict,
    stimulus_from_dict,
    stimulus_to_dict,
)
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.policies.registry import POLICIES, make_policy
from schemas.requests import (
    HoldJob,
    PauseCell,
    PrioritiseJob,
    ReleaseJob,
    RequeueJob,
    ResumeCell,
    ScaleJob,
    VerbData,
)
from tests.builders import request_of
from tests.simulation.world import Faults, World


class Watched(World):
    """A world that holds every fact against what people asked for, as the facts before it say."""

    def __init__(self, seed: int, faults: Faults, policy: str) -> None:
        self.record: list[tuple[bytes, bytes]] = []
        self.held: set[str] = set()
        self.only: dict[str, int] = {}
        self.paused: set[str] = set()
        self.moving: set[str] = set()  #: Between two allocations.
        self.sizes: dict[str, int] = {}
        self.kinds: set[str] = set()
        super().__init__(seed, faults, policy=None if policy == "random" else make_policy(policy))

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        super().saw(stimulus, decision)
        said = orjson.dumps(stimulus_to_dict(stimulus))
        self.record.append((said, decision_bytes(decision_to_dict(decision))))
        called_back = {one.node for one in decision.facts if isinstance(one, facts.LoanGranted)}
        for fact in decision.facts:
            kind = type(fact).__name__
            self.kinds.add(kind)
            if (take := _TAKES.get(type(fact))) is not None:
                take(self, fact)
            if isinstance(fact, facts.LoanRequested) and fact.node not in called_back:
                assert "loans" not in self.paused, f"{fact.node} is lent in a pause"

    def starts(self, fact: facts.GangStarting) -> None:
        size = sum(map(len, fact.allocation.values()))
        assert fact.job not in self.held, f"{fact.job} is held and starts"
        assert "starts" not in self.paused or fact.job in self.moving, f"{fact.job} starts"
        if fact.job not in self.moving:
            assert self.only.get(fact.job, size) == size, f"{fact.job} starts at {size}"
        self.moving.discard(fact.job)
        self.sizes[fact.job] = size

    def scales(self, fact: facts.GangScaling) -> None:
        size = sum(map(len, fact.allocation.values()))
        grows = size > self.sizes[fact.job]
        assert not (grows and "starts" in self.paused), f"{fact.job} grows in a pause"
        self.sizes[fact.job] = size


_TAKES: dict[type[Any], Callable[[Watched, Any], object]] = {
    facts.JobHeld: lambda world, fact: world.held.add(fact.job),
    facts.JobReleased: lambda world, fact: world.held.discard(fact.job),
    facts.JobSizeSet: lambda world, fact: world.only.update({fact.job: fact.gpus}),
    facts.JobSizeFreed: lambda world, fact: world.only.pop(fact.job),
    facts.CellPaused: lambda world, fact: world.paused.add(fact.what),
    facts.CellResumed: lambda world, fact: world.paused.discard(fact.what),
    facts.JobMigrating: lambda world, fact: world.moving.add(fact.job),
    facts.JobQueued: lambda world, fact: world.moving.discard(fact.job),
    facts.GangStarting: Watched.starts,
    facts.GangScaling: Watched.scales,
}


def drawn(rng: np.random.Generator, world: World) -> VerbData:
    """Any request about jobs or the cell, also ones that make no sense."""
    live = [job.id for job in world.engine.state.jobs.values() if job.state not in TERMINAL]
    job = str(rng.choice([*live, *live, *live, *world.submitted, "nobody"]))
    until_s = None if rng.random() < 0.3 else world.now_s + float(rng.choice([60.0, 600.0]))
    makes: list[Callable[[], VerbData]] = [
        lambda: HoldJob(job=job),
        lambda: ReleaseJob(job=job),
        lambda: ReleaseJob(job=job),
        lambda: RequeueJob(job=job),
        lambda: PrioritiseJob(job=job, priority=int(rng.integers(-2, 3))),
        lambda: ScaleJob(job=job, gpus=int(rng.choice([1, 2, 4, 8, 3]))),
        lambda: ScaleJob(job=job, gpus=None),
        lambda: PauseCell(what=rng.choice(["starts", "loans", "all"]).item(), until_s=until_s),
        lambda: ResumeCell(what=rng.choice(["starts", "loans", "all"]).item()),
        lambda: ResumeCell(),
    ]
    return makes[int(rng.integers(len(makes)))]()


def storm(policy: str, seed: int) -> Watched:
    """Random requests among random faults."""
    world = Watched(seed, Faults(loss=0.03, twice=0.1, late=0.3), policy)
    rng = np.random.default_rng(seed)
    for number in range(250):
        if rng.random() < 0.4:
            asked = request_of(world.now_s, drawn(rng, world), f"r{number}")
            world.feed(asked)
        if rng.random() < 0.1 and len(world.submitted) < 16:
            steps = int(10 ** rng.uniform(3.0, 4.5))
            world.submit(gpus_min=int(rng.integers(1, 3)), total_steps=steps)
        if rng.random() < 0.02:
            world.restart_engine()
        world.step(float(rng.uniform(1.0, 40.0)))
    assert {"JobHeld", "JobReleased", "CellPaused", "CellResumed", "JobSizeSet"} <= world.kinds
    assert {"JobPrioritised", "JobRequeued", "RequestRefused"} <= world.kinds
    assert world.engine.state.totals.jobs_started > 1
    return world


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_planned_nothing_is_done_against_what_people_ask_for(seed: int) -> None:
    storm("random", seed)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_obeys_what_people_ask_for_and_replays_identically(policy: str) -> None:
    world = storm(policy, sorted(POLICIES).index(policy))
    again = Engine(ClusterState(), make_policy)
    for said, recorded in world.record:
        decision = again.handle(stimulus_from_dict(orjson.loads(said)))
        assert decision_bytes(decision_to_dict(decision)) == recorded
    assert state_hash(again.state) == state_hash(world.engine.state)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_was_held_paused_or_scaled_is_done_once_it_may_be(policy: str) -> None:
    world = Watched(1, Faults(), policy)
    for _ in range(4):
        world.submit(gpus_min=1, total_steps=400, gpus=2)
    world.feed(request_of(world.now_s, HoldJob(job="j0"), "a"))
    world.feed(request_of(world.now_s, ScaleJob(job="j1", gpus=4), "b"))
    for _ in range(20):
        world.step(60.0)
    jobs = world.engine.state.jobs
    assert jobs["j0"].state is JobState.QUEUED
    assert (jobs["j0"].why or {})["rule"] == "operator.hold"
    assert world.sizes["j1"] == 4, "it started at the size that was set"
    world.feed(request_of(world.now_s, PauseCell(), "c"))
    world.feed(request_of(world.now_s, ReleaseJob(job="j0"), "d"))
    for _ in range(10):
        world.step(60.0)
    assert jobs["j0"].state is JobState.QUEUED
    assert (jobs["j0"].why or {})["rule"] == "operator.pause"
    world.restart_engine()
    world.feed(request_of(world.now_s, ResumeCell(), "e"))
    world.settle()
    assert {job.state for job in world.engine.state.jobs.values()} <= set(TERMINAL)
