"""Under any policy a cordoned node gets no work, and its gangs go on, grow elsewhere, and leave."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st

from scheduler.core import facts
from scheduler.core.claims import stays
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.core.view import View
from scheduler.policies.interface import Kind, Phase, Snapshot
from schemas.events import JobCancelled
from schemas.requests import CordonNode, UncordonNode
from tests.builders import request_of
from tests.effort import examples
from tests.property.test_standing import made, policies, seeds
from tests.simulation.world import Faults, World

Parts = dict[str, dict[str, set[int]]]  #: By job and node, its GPUs.


@dataclass
class Seen:
    """What became of gangs with a part on a closed node."""

    grew: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)


class Watched(World):
    """A world in which closed nodes are looked at after each decision."""

    look: Callable[[Decision], None] | None = None

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        super().saw(stimulus, decision)
        if self.look is not None:
            self.look(decision)

    def parts(self) -> Parts:
        jobs = self.engine.state.jobs.values()
        return {job.id: {n: {*gpus} for n, gpus in job.allocation.items()} for job in jobs}

    def closed(self) -> set[str]:
        """Closed nodes whose gangs stay."""
        state = self.engine.state
        return {node.id for node in state.nodes.values() if stays(state, node)}

    def as_shown(self) -> None:
        """A closed node of training's own has the GPUs of its gangs; planned for if none waits."""
        state, seen = self.engine.state, View().snapshot(self.engine.state)
        for name, gpus, free in zip(seen.nodes.ids, seen.nodes.gpus, seen.nodes.free, strict=True):
            if name in self.closed():
                held = sum(len(job.allocation.get(name, ())) for job in state.jobs.values())
                node = state.nodes[name]  # one on loan gives its owner all of it
                assert gpus == ((held if node.loan is None else 0) or node.gpu_count)
                assert free == 0
        for name, phase in zip(seen.jobs.ids, seen.jobs.phase, strict=True):
            job = state.jobs[name]
            steady = job.state is JobState.RUNNING and job.target is None and not job.leaving
            if steady and job.allocation.keys() <= self.closed():
                # From a node on loan it has to move when the owner comes back.
                kept = all(state.nodes[node].loan is None for node in job.allocation)
                waits = kept and self.some_could_start(seen)
                assert phase == (Phase.MOVING if waits else Phase.RUNNING)

    def some_could_start(self, seen: Snapshot) -> bool:
        """Whether a job waits whose least size is shown anywhere that it may run."""
        room, edge, jobs = Counter[str](), Counter[str](), self.engine.state.jobs
        for name, pool, gpus in zip(seen.nodes.ids, seen.nodes.pool, seen.nodes.gpus, strict=True):
            at_edge = seen.pools.kind[pool] == Kind.EDGE
            (edge if at_edge else room)[name if at_edge else seen.pools.ids[pool]] += int(gpus)
        waiting = [n for n, p in zip(seen.jobs.ids, seen.jobs.phase, strict=True) if p == 0]
        return any(
            max([*room.values(), *(edge.values() if jobs[name].edge_allowed else ())])
            >= jobs[name].gpus_min
            for name in waiting
        )


def watch(world: Watched) -> Seen:
    """Hold each decision against what was there before it."""
    found, before, shut = Seen(), world.parts(), world.closed()

    def look(decision: Decision) -> None:
        nonlocal before, shut
        for fact in decision.facts:
            if isinstance(fact, facts.GangStarting | facts.GangScaling):
                had = before.get(fact.job, {})
                for name in fact.allocation.keys() & world.engine.state.standing.cordons.keys():
                    assert {*fact.allocation[name]} <= had.get(name, set()), f"work on {name}"
                if had.keys() & shut:
                    more = sum(map(len, fact.allocation.values())) > sum(map(len, had.values()))
                    (found.grew if more else found.left).add(fact.job)
            if isinstance(fact, facts.GangCheckpointing) and fact.reason == "preempted":
                had = before.get(fact.job, {})
                assert not had or not had.keys() <= shut & world.closed(), f"{fact.job} is stopped"
            if isinstance(fact, facts.GangCheckpointing) and fact.reason == "migrated":
                found.left.add(fact.job)
        before, shut = world.parts(), world.closed()

    world.look = look
    return found


@settings(max_examples=examples(30))
@given(name=policies, seed=seeds, least=st.sampled_from([1, 8]))
def test_closed_nodes_get_no_work_and_keep_their_gangs(name: str, seed: int, least: int) -> None:
    world = Watched(seed, Faults(twice=0.1, late=0.2), policy=made(name, seed))
    for _ in range(3):
        world.submit(total_steps=4000)
    world.submit(gpus_min=least)
    watch(world)
    world.step(60.0)
    for number in range(24):
        shut = sorted(world.engine.state.standing.cordons)
        if number % 3 == 0 and len(shut) < 3:
            node = str(world.rng.choice([*world.engine.state.nodes]))
            world.feed(request_of(world.now_s, CordonNode(node=node), f"c{number}"))
        elif number % 3 == 0:
            world.feed(request_of(world.now_s, UncordonNode(node=shut[0]), f"u{number}"))
        world.step(60.0)
        world.as_shown()
        if world.rng.random() < 0.05:
            world.restart_engine()
    for node in sorted(world.engine.state.standing.cordons):
        world.feed(request_of(world.now_s, UncordonNode(node=node), f"open-{node}"))
    world.feed(JobCancelled(job="j3"))  # a policy may never have so many GPUs for it
    world.heal()
    world.settle()
    assert {job.state for job in world.engine.state.jobs.values()} <= set(TERMINAL)


def test_gangs_with_a_part_on_a_closed_node_grow_elsewhere_and_leave_it() -> None:
    grew, left = 0, 0
    for seed in range(12):
        world = Watched(seed, Faults())
        world.submit(gpus_min=2, total_steps=100_000)
        world.submit(gpus_min=2, total_steps=100_000)
        for _ in range(5):
            world.step(60.0)
        world.feed(request_of(world.now_s, CordonNode(node="t0"), "c"))
        found = watch(world)
        for _ in range(20):
            world.step(60.0)
        grew, left = grew + len(found.grew), left + len(found.left)
    assert grew > 0
    assert left > 0
