"""Any sequence of faults, plans and time: the engine keeps the laws, and every job ends."""

from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.core.transitions import TERMINAL
from scheduler.core.validate import violations
from schemas.events import JobCancelled
from schemas.requests import (
    CancelJob,
    CordonNode,
    DrainNode,
    HoldJob,
    PauseCell,
    Paused,
    PrioritiseJob,
    ReleaseJob,
    RequeueJob,
    ResumeCell,
    Role,
    ScaleJob,
    UncordonNode,
    Verb,
    VerbData,
)
from tests.builders import request_of
from tests.simulation.world import Faults, World

VERBS: list[type[Verb]] = [CordonNode, UncordonNode, DrainNode, CancelJob]
parts: st.SearchStrategy[Paused] = st.sampled_from(["starts", "loans", "all"])
agents = st.sampled_from(["a-train", "a-infer", "a-e0", "a-e1"])


class EngineModel(RuleBasedStateMachine):
    """Rules are what the outside may do; `World.step` checks agents against engine."""

    world: World
    asked = 0

    @initialize(seed=st.integers(0, 2**20), faults=st.sampled_from([0.0, 0.1, 0.3]))
    def begin(self, seed: int, faults: float) -> None:
        self.world = World(seed, Faults(loss=faults / 2, twice=faults, late=faults))
        self.world.step(1.0)
        self.world.submit()

    @rule(steps=st.integers(1, 12), seconds=st.sampled_from([1.0, 7.0, 30.0, 60.0]))
    def time(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self.world.step(seconds)

    @rule(gpus_min=st.integers(1, 3), total_steps=st.sampled_from([20, 500, 5000, None]))
    def submit(self, gpus_min: int, total_steps: int | None) -> None:
        self.world.submit(gpus_min, total_steps)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        job = data.draw(st.sampled_from(self.world.submitted))
        self.world.feed(JobCancelled(job=job))

    @rule(data=st.data(), verb=st.sampled_from(VERBS), force=st.booleans(), again=st.booleans())
    def ask(self, data: Any, verb: type[Verb], force: bool, again: bool) -> None:
        role: Role = data.draw(st.sampled_from(["operator", "operator", "tenant", "viewer"]))
        args: VerbData
        if verb is CancelJob:
            args = CancelJob(job=data.draw(st.sampled_from(self.world.submitted)))
        else:
            node = data.draw(st.sampled_from([*self.world.engine.state.nodes, "nowhere"]))
            ends_s = self.world.now_s + data.draw(st.sampled_from([30.0, 400.0, 4000.0]))
            made: dict[type[Verb], VerbData] = {
                CordonNode: CordonNode(node=node),
                UncordonNode: UncordonNode(node=node),
            }
            args = made.get(verb) or DrainNode(node=node, by_s=ends_s, force=force)
        asked = request_of(self.world.now_s, args, f"r{self.asked}", role=role)
        self.asked += 1
        self.world.feed(asked)
        if again:
            number = len(self.world.engine.state.standing.taken)
            self.world.feed(asked)
            assert len(self.world.engine.state.standing.taken) == number

    @rule(
        data=st.data(),
        gpus=st.sampled_from([None, 1, 2, 3, 4, 8]),
        what=parts,
        ends=st.sampled_from([None, 30.0, 400.0]),
        role=st.sampled_from(["operator", "operator", "tenant"]),
    )
    def steer(
        self, data: Any, gpus: int | None, what: Paused, ends: float | None, role: Role
    ) -> None:
        job = data.draw(st.sampled_from([*self.world.submitted, "nobody"]))
        until_s = None if ends is None else self.world.now_s + ends
        makes: list[VerbData] = [
            HoldJob(job=job),
            ReleaseJob(job=job),
            RequeueJob(job=job),
            PrioritiseJob(job=job, priority=3),
            ScaleJob(job=job, gpus=gpus),
            PauseCell(what=what, until_s=until_s),
            ResumeCell(what=what),
        ]
        args = data.draw(st.sampled_from(makes))
        self.asked += 1
        self.world.feed(request_of(self.world.now_s, args, f"s{self.asked}", role=role))

    @rule(name=agents)
    def cut_or_link(self, name: str) -> None:
        agent = self.world.agents[name]
        agent.linked = not agent.linked

    @rule(name=agents, seconds=st.sampled_from([200.0, 1200.0]))
    def long_silence(self, name: str, seconds: float) -> None:
        agent = self.world.agents[name]
        agent.linked = False
        for _ in range(int(seconds / 40.0)):
            self.world.step(40.0)
        agent.linked = True

    @rule(name=agents)
    def restart_agent(self, name: str) -> None:
        self.world.agents[name].restart(self.world.now_s)

    @rule(name=agents, farewell=st.booleans())
    def stop_agent(self, name: str, farewell: bool) -> None:
        agent = self.world.agents[name]
        if agent.up:
            agent.die(self.world.now_s, farewell=farewell)

    @rule(name=agents)
    def fail_worker(self, name: str) -> None:
        agent = self.world.agents[name]
        for job in agent.core.gangs:
            agent.executor.fail(job, "model", self.world.now_s)

    @rule()
    def restart_engine(self) -> None:
        self.world.restart_engine()

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def laws_hold(self) -> None:
        assert violations(self.world.engine.state) == []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.heal()
            for node in list(self.world.engine.state.standing.cordons):
                self.asked += 1
                open_ = UncordonNode(node=node)
                self.world.feed(request_of(self.world.now_s, open_, f"r{self.asked}"))
            standing = self.world.engine.state.standing
            ends: list[VerbData] = [
                ReleaseJob(job=name) for name in standing.holds | standing.sizes
            ]
            for args in [*ends, ResumeCell()]:
                self.asked += 1
                self.world.feed(request_of(self.world.now_s, args, f"r{self.asked}"))
            self.world.settle(hours=48.0, step_s=60.0)
            jobs = self.world.engine.state.jobs
            assert list(jobs) == self.world.submitted
            assert all(job.state in TERMINAL for job in jobs.values())


TestEngineModel = EngineModel.TestCase
TestEngineModel.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
