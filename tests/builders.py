"""Engines, events and scripted policies from a few numbers, and what must hold of each decision."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from unittest.mock import patch

import orjson

from scheduler.core import loans
from scheduler.core.agenda import command_due_s, job_due_s, node_due_s
from scheduler.core.canonical import state_hash, state_to_json
from scheduler.core.engine import Engine
from scheduler.core.evolve import apply
from scheduler.core.record import (
    decision_bytes,
    decision_to_dict,
    facts_from_dict,
    stimulus_from_dict,
    stimulus_to_dict,
)
from scheduler.core.restore import state_from_dict
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import (
    Cause,
    Decision,
    Input,
    LeaderStarted,
    Requested,
    Stimulus,
    TimePassed,
)
from scheduler.core.validate import violations
from scheduler.core.view import View
from scheduler.policies.interface import Plan, Policy, Snapshot, Target
from schemas import events
from schemas.commands import CommandData
from schemas.events import (
    CheckpointCommitted,
    GangHeld,
    InferenceLoad,
    JobProgressed,
    JobSubmitted,
    NodeBorn,
    RatePoint,
    StopReason,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.requests import Request, VerbData
from tests.snapshots import alike

START_S = 1_000_000.0
Planner = Callable[[Snapshot], Plan]


@dataclass
class Scripted:
    """A policy that answers with what the test put there, once."""

    planner: Planner | None = None
    name: str = "scripted"

    def plan(self, snapshot: Snapshot) -> Plan:
        planner, self.planner = self.planner, None
        return Plan() if planner is None else planner(snapshot)


def node_born(
    node: str = "n0",
    *,
    agent: str | None = None,
    pool: str = "train",
    kind: events.PoolKind = "training",
    gpus: int = 4,
    held: Sequence[GangHeld] = (),
    loan: str | None = None,
) -> NodeBorn:
    """A birth; the agent is named after the pool unless told otherwise."""
    return NodeBorn(
        node=node,
        agent=agent or f"agent-{pool}",
        pool=pool,
        pool_kind=kind,
        gpu_count=gpus,
        gpu_type="A100",
        gpu_memory_mib=80_000,
        held=list(held),
        loan=loan,
    )


def submitted(
    job: str = "j0",
    *,
    gpus_min: int = 1,
    gpus_max: int = 8,
    total_steps: int = 1000,
    deadline_s: float | None = None,
) -> JobSubmitted:
    """A job of ten samples per step that runs at 10 samples per second and GPU."""
    return JobSubmitted(
        job=job,
        tenant="t",
        model="m",
        gpus_min=gpus_min,
        gpus_max=gpus_max,
        total_steps=total_steps,
        samples_per_step=10.0,
        rates=[RatePoint(gpus=size, samples_per_s=10.0 * size) for size in (1, 2, 4, 8)],
        deadline_s=deadline_s,
        checkpoint_mib=100,
        checkpoint_cost_s=5.0,
        start_cost_s=10.0,
    )


def load(needed: int = 0, pool: str = "serve", node: str | None = None) -> InferenceLoad:
    """What an owner says that it needs; all else of it is of no concern here."""
    return InferenceLoad(
        pool=pool,
        node=node,
        requests_running=0,
        requests_waiting=0,
        request_rate_per_s=0.0,
        gpus_needed=needed,
        gpus_serving=4,
    )


def progressed(
    step: int, job: str = "j", epoch: int = 1, samples_per_s: float = 1.0, saved: int = 0
) -> JobProgressed:
    """How far a job is, and what it saved."""
    return JobProgressed(
        job=job,
        epoch=epoch,
        step=step,
        samples_per_s=samples_per_s,
        checkpoint_step=saved,
        checkpoint_cost_s=1.0,
    )


def request_of(now_s: float, args: VerbData, name: str, **over: Any) -> Requested:
    """What an operator asks for now, as the engine is given it; a tenant is of tenant `t`."""
    fields = {
        "id": name,
        "subject": "ann",
        "role": "operator",
        "tenant": "t",
        "asked_s": now_s,
        "expires_s": now_s + 60.0,
        **over,
    }
    return Requested(raw="{}", request=Request(args=args, **fields))


def target(pool: str = "train", **placement: int) -> Target:
    """A target: `target("train", n0=2)`."""
    return Target(pool, tuple(sorted(placement.items())))


def two_jobs(*more: NodeBorn) -> "Cell":
    """A cell of two nodes and these, and two jobs that wait."""
    return Cell().told(node_born("n0"), node_born("n1"), *more, submitted("j0"), submitted("j1"))


def decided(state: ClusterState, stimulus: Stimulus, decision: Decision, before: bytes) -> None:
    """Assert what must hold of every decision: laws, fold, and round trips."""
    found = violations(state)
    assert found == [], found
    folded = state_from_dict(orjson.loads(before))
    folded.advance(stimulus.at_s)
    for fact in decision.facts:
        apply(folded, fact)
    folded.number += 1
    assert state_hash(folded) == state_hash(state), "the facts alone do not lead to the state"
    restored = state_from_dict(orjson.loads(state_to_json(state)))
    assert state_to_json(restored) == state_to_json(state)
    assert restored._open == state._open
    written = decision_bytes(decision_to_dict(decision))
    again = orjson.loads(written)
    assert decision_bytes(again) == written
    assert (
        decision_bytes({**again, "facts": [[type(f).__name__, f] for f in facts_from_dict(again)]})
        == written
    )
    as_read = orjson.loads(orjson.dumps(stimulus_to_dict(stimulus)))
    assert stimulus_from_dict(as_read) == stimulus


def begun_anew(engine: Engine) -> None:
    """Assert that what an engine keeps beside the state follows from the state."""
    state, settings, agenda = engine.state, engine.settings, engine._agenda
    assert alike(engine.snapshot(), View().snapshot(state))
    for ahead_s in (0.0, 61.0, 700.0, 3000.0, 1e9):
        end_s = state.now_s + ahead_s
        nodes = [name for name in state.nodes if node_due_s(state, name) <= end_s]
        orders = [n for n in state.commands if command_due_s(state, settings, n) <= end_s]
        jobs = [name for name in state.jobs if job_due_s(state, settings, name) <= end_s]
        assert sorted(agenda.nodes.due(end_s)) == sorted(nodes)
        assert sorted(agenda.commands.due(end_s)) == sorted(orders)
        assert sorted(agenda.jobs.due(end_s)) == sorted(jobs)


@dataclass
class Cell:
    """An engine under test. Every stimulus is checked; a twin restored from JSON keeps step.

    The twin looks at all nodes and claims, where the engine looks at those that it touched.
    """

    policy: Scripted = field(default_factory=Scripted)
    settings: Settings = field(default_factory=Settings)
    now_s: float = START_S
    last: Decision = field(default_factory=Decision)
    bootid: int = 0

    def __post_init__(self) -> None:
        self.engine = Engine(ClusterState(), self._make)
        self.feed(LeaderStarted("test", 1, "scripted", self.settings.to_dict()))

    def _make(self, name: str) -> Policy:
        assert name == "scripted"
        return self.policy

    @property
    def state(self) -> ClusterState:
        return self.engine.state

    def job(self, name: str = "j0") -> Job:
        return self.state.jobs[name]

    def feed(self, data: Input, cause: Cause | None = None) -> Decision:
        """Let the engine decide, a twin from JSON too, and check both."""
        stimulus = Stimulus(self.now_s, data, cause or Cause("/agents/a", self.bootid, 0))
        before = state_to_json(self.state)
        planner = self.policy.planner
        twin = Engine(state_from_dict(orjson.loads(before)), self._make)
        self.last = self.engine.handle(stimulus)
        decided(self.state, stimulus, self.last, before)
        self.policy.planner = planner
        with patch.object(loans, "_touched", lambda turn: turn.state.nodes.keys()):
            same = twin.handle(copy.deepcopy(stimulus))
        assert decision_bytes(decision_to_dict(same)) == decision_bytes(
            decision_to_dict(self.last)
        ), "a restored engine decides otherwise"
        assert state_hash(twin.state) == state_hash(self.state)
        if self.state.number % 3 == 0:  # so that a snapshot comes after several stimuli
            self.seen()
        return self.last

    def told(self, *data: Input) -> Self:
        """Feed one after the other, and give the cell itself."""
        for one in data:
            self.feed(one)
        return self

    def reborn(self, *born: NodeBorn) -> Decision:
        """An agent begins anew and says what it has."""
        self.bootid += 1
        return self.told(*born).last

    def seen(self) -> Snapshot:
        """What a policy would see now."""
        begun_anew(self.engine)
        return self.engine.snapshot()

    def wait(self, seconds: float, step_s: float = 60.0) -> Decision:
        """Let time pass, in steps of a cycle."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + step_s)
            self.feed(TimePassed())
        return self.last

    def plan(
        self,
        targets: Mapping[str, Target | None] | None = None,
        *,
        lend: Sequence[str] = (),
        reclaim: Mapping[str, float] | None = None,
    ) -> Decision:
        """Have the policy say this in a cycle now."""
        return self.adopt(Plan(targets or {}, tuple(lend), reclaim or {}))

    def adopt(self, made: Plan) -> Decision:
        """Have the policy make this plan in a cycle now."""
        self.policy.planner = lambda _: made
        self.now_s = max(self.now_s + 5.0, self.state.next_cycle_s)
        self.feed(TimePassed())
        assert self.policy.planner is None, "the policy was not asked"
        return self.last

    # --- what agents say ---

    def sent(self, *kinds: type[CommandData] | Any) -> list[Any]:
        """The commands of the last decision, of these kinds."""
        return [c.data for c in self.last.commands if not kinds or isinstance(c.data, kinds)]

    def acks(self, outcome: str = "done", *, kind: str | None = None) -> None:
        """Acknowledge every open command (of a kind)."""
        for command in list(self.state.commands.values()):
            if kind is None or command.kind == kind:
                ack = events.CommandAcknowledged.model_validate(
                    {"command": command.id, "outcome": outcome, "reason": "test"}
                )
                self.feed(ack)

    def start_workers(self, job: str = "j0") -> None:
        """Every worker of the job's present allocation takes its first step."""
        known = self.job(job)
        for name, gpus in list(known.allocation.items()):
            self.feed(
                WorkerStarted(job=job, epoch=known.epoch, node=name, gpus=gpus, step=known.step)
            )

    def stop_workers(
        self,
        job: str = "j0",
        reason: StopReason = "preempted",
        *,
        step: int = 0,
        nodes: Sequence[str] | None = None,
        epoch: int | None = None,
    ) -> None:
        """Workers leave what they have of the job's present allocation."""
        known = self.job(job)
        at = known.epoch if epoch is None else epoch
        for name, gpus in sorted(known.allocation.items()):
            if nodes is None or name in nodes:
                self.leave(job, name, gpus, at, reason, step)

    def save(self, job: str, step: int, epoch: int | None = None) -> None:
        """A checkpoint of the job's present allocation is committed."""
        at = self.job(job).epoch if epoch is None else epoch
        self.feed(
            CheckpointCommitted(job=job, epoch=at, step=step, uri="u", size_mib=1, cost_s=2.0)
        )

    def progress(
        self,
        job: str,
        step: int,
        samples_per_s: float = 10.0,
        saved: int = 0,
        epoch: int | None = None,
    ) -> None:
        """The job's agent says how far it is."""
        at = self.job(job).epoch if epoch is None else epoch
        self.feed(progressed(step, job, at, samples_per_s, saved))

    def leave(
        self,
        job: str,
        node: str,
        gpus: list[int],
        epoch: int,
        reason: StopReason = "scaled_in",
        step: int = 0,
    ) -> None:
        """Workers are off GPUs; by default those that a change of size gave up."""
        self.feed(
            WorkerStopped(job=job, epoch=epoch, node=node, gpus=gpus, reason=reason, step=step)
        )

    def fail_worker(
        self,
        job: str = "j0",
        node: str = "n0",
        *,
        retriable: bool = True,
        error: str = "test",
        ran: bool = True,
    ) -> None:
        """The worker on one node dies."""
        known = self.job(job)
        self.feed(
            WorkerFailed(
                job=job,
                epoch=known.epoch,
                node=node,
                gpus=known.allocation[node],
                error=error,
                retriable=retriable,
                step=known.checkpoint_step,
                ran=ran,
            )
        )

    def run(self, job: str = "j0", pool: str = "train", **placement: int) -> Job:
        """Plan the job and bring it up."""
        self.plan({job: target(pool, **placement)})
        self.acks(kind="StartGang")
        self.start_workers(job)
        assert self.job(job).state == "running"
        return self.job(job)
