"""A world for the engine: real agent cores with simulated workers, behind a faulty wire.

Time moves in steps. All chance comes from one generator. Messages of one sender arrive in order,
maybe late, maybe twice; commands may be lost. After every step an outside checker compares what
agents and engine hold.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from runtime.core import (
    AgentCore,
    Birth,
    CheckpointWorkers,
    Command,
    DrainNode,
    HandBackNode,
    Limits,
    NodeSpec,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    Tick,
)
from runtime.simulated import Physics, SimulatedExecutor
from runtime.simulated_owner import SimulatedOwner
from scheduler.core.engine import Engine
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, state_from_dict, state_to_json
from scheduler.core.stimuli import (
    Cause,
    Input,
    LeaderStarted,
    NodeHeard,
    NodeSilent,
    Stimulus,
    TimePassed,
)
from scheduler.core.transitions import TERMINAL, NodeState
from scheduler.core.validate import violations
from scheduler.dedupe import Dedupe, Verdict
from scheduler.policies.interface import LoanPhase, Phase, Plan, Policy, Snapshot, Target
from scheduler.policies.registry import make_policy
from schemas.commands import RenewLease
from schemas.events import PoolKind
from tests.builders import START_S, submitted

DEMAND_PERIOD_S = 7200.0
#: Stands for any message that only shows that its agent is there.
_TELEMETRY: Any = object()


@dataclass
class Faults:
    """Chances per message, and how often things break."""

    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0


class RandomPolicy:
    """Any plan at all: mostly valid ones, and some that no policy may make."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.sane: Policy | None = None

    def plan(self, snapshot: Snapshot) -> Plan:
        if self.sane is not None:
            return self.sane.plan(snapshot)
        rng, nodes, jobs = self.rng, snapshot.nodes, snapshot.jobs
        free = {name: int(count) for name, count in zip(nodes.ids, nodes.free, strict=True)}
        targets: dict[str, Target | None] = {}
        held: dict[int, dict[str, int]] = {}
        holdings = snapshot.holdings
        for job, node, gpus in zip(holdings.job, holdings.node, holdings.gpus, strict=True):
            held.setdefault(int(job), {})[nodes.ids[int(node)]] = int(gpus)
        for index, name in enumerate(jobs.ids):
            if jobs.phase[index] == Phase.MOVING or rng.random() < 0.5:
                continue
            for node, gpus in held.get(index, {}).items():
                free[node] += gpus
            if jobs.phase[index] == Phase.RUNNING and rng.random() < 0.3:
                targets[name] = None
                continue
            target = self._target(snapshot, free)
            if target is None:
                for node, gpus in held.get(index, {}).items():
                    free[node] -= gpus
            else:
                targets[name] = target
                for node, gpus in target.placement:
                    free[node] -= gpus
        owned = [
            n for n, phase in zip(nodes.ids, nodes.loan, strict=True) if phase == LoanPhase.OWNED
        ]
        lent = [
            n for n, phase in zip(nodes.ids, nodes.loan, strict=True) if phase == LoanPhase.LENT
        ]
        lend = tuple(name for name in owned if rng.random() < 0.2)
        late_s = float(rng.uniform(0.0, 900.0))
        reclaim = {name: snapshot.now_s + late_s for name in lent if rng.random() < 0.1}
        if jobs.ids and rng.random() < 0.2:
            targets[str(rng.choice(jobs.ids))] = self._nonsense(nodes.ids)
        return Plan(targets, lend, reclaim)

    def _target(self, snapshot: Snapshot, free: dict[str, int]) -> Target | None:
        pool = int(self.rng.integers(len(snapshot.pools.ids)))
        mine = [
            n for n, p in zip(snapshot.nodes.ids, snapshot.nodes.pool, strict=True) if p == pool
        ]
        size = int(self.rng.integers(1, 5))
        placement = []
        for name in mine:
            count = min(size, free[name])
            if count > 0:
                placement.append((name, count))
                size -= count
        return Target(snapshot.pools.ids[pool], tuple(placement)) if placement else None

    def _nonsense(self, names: tuple[str, ...]) -> Target:
        rng = self.rng
        node = str(rng.choice([*names, "nowhere"]))
        count = int(rng.choice([-1, 0, 3, 99]))
        return Target(str(rng.choice(["train", "edge", "no-pool"])), ((node, count), (node, 1)))


class Agent:
    """A real core with simulated workers and owner; it can be cut off and restarted."""

    def __init__(
        self, name: str, pool: str, kind: PoolKind, gpus: dict[str, int], limits: Limits
    ) -> None:
        self.name, self.kind, self.limits = name, kind, limits
        self.specs = [
            NodeSpec(node, pool, kind, count, "A100", 80_000) for node, count in gpus.items()
        ]
        self.core = AgentCore(name, self.specs, limits)
        self.executor = SimulatedExecutor({}, Physics(rate_noise=0.0, failures_per_gpu_hour=0.0))
        total = sum(gpus.values())
        self.owner: SimulatedOwner | None = None
        if kind != "training":
            self.owner = SimulatedOwner(
                pool,
                gpus,
                lambda t: total * (t % DEMAND_PERIOD_S > DEMAND_PERIOD_S / 2),
                START_S,
                per_node=kind == "edge",
            )
        self.linked, self.up = True, True
        self.bootid, self.sequence = 0, 0
        self.outbox: list[tuple[Cause, Any]] = []
        self.inbox: list[Command] = []
        self.said_s = 0.0
        self._hear(Birth(), START_S)

    def restart(self, now_s: float) -> None:
        """The process dies, its workers with it, and comes back with what it wrote down."""
        self.core = AgentCore.from_dict(self.name, self.specs, self.core.to_dict(), self.limits)
        self.executor = SimulatedExecutor({}, Physics(rate_noise=0.0, failures_per_gpu_hour=0.0))
        self.bootid, self.sequence, self.up = self.bootid + 1, 0, True
        self._hear(Birth(), now_s)

    def die(self, now_s: float, *, farewell: bool) -> None:
        """The process ends, its workers with it; with a word, or without."""
        if farewell:
            for said in self.core.farewell("shut down", now_s).events:
                self._say(said.data)
        self.up = False
        self.executor = SimulatedExecutor({}, Physics(rate_noise=0.0, failures_per_gpu_hour=0.0))

    def step(self, now_s: float) -> None:
        if not self.up:
            return
        self._learn(now_s)
        if self.linked:
            inbox, self.inbox = self.inbox, []
            for command in inbox:
                self._hear(command, now_s)
        self._hear(Tick(), now_s)
        self._learn(now_s)  # what was started and stopped in one breath is gone
        if now_s - self.said_s >= 60.0:
            self.said_s = now_s
            self._say(_TELEMETRY)
            for progress in self.executor.progress(now_s):
                self._hear(progress, now_s)
            for load in self.owner.loads(now_s) if self.owner else ():
                self._say(load)

    def _learn(self, now_s: float) -> None:
        while reports := [
            *self.executor.advance(now_s),
            *(self.owner.advance(now_s) if self.owner else ()),
        ]:
            for report in reports:
                self._hear(report, now_s)

    def _hear(self, stimulus: Any, now_s: float) -> None:
        outputs = self.core.handle(stimulus, now_s)
        for ack in outputs.acks:
            self._say(ack.data)
        for said in outputs.events:
            self._say(said.data)
        for action in outputs.actions:
            match action:
                case StartWorkers():
                    self.executor.start(action, now_s)
                case ScaleWorkers():
                    self.executor.scale(action, now_s)
                case CheckpointWorkers():
                    self.executor.checkpoint(action, now_s)
                case StopWorkers():
                    self.executor.stop(action, now_s)
                case DrainNode() if self.owner is not None:
                    self.owner.drain(action.node, now_s)
                case HandBackNode() if self.owner is not None:
                    self.owner.hand_back(action.node, now_s)

    def _say(self, data: Any) -> None:
        self.outbox.append((Cause(f"/agents/{self.name}", self.bootid, self.sequence), data))
        self.sequence += 1


@dataclass
class World:
    """An engine, its agents, and the wire between them."""

    seed: int
    faults: Faults = field(default_factory=Faults)
    settings: Settings = field(default_factory=Settings)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.policy = RandomPolicy(np.random.default_rng(self.seed + 1))
        self.now_s = START_S
        self.dedupe = Dedupe()
        self.heard_s: dict[str, float] = {}
        self.renewed_s: dict[str, float] = {}
        self.epochs: dict[str, int] = {}
        self.submitted: list[str] = []
        self.handled = 0
        self.agents = {
            agent.name: agent
            for agent in (
                Agent("a-train", "train", "training", {"t0": 4, "t1": 4}, self.limits),
                Agent("a-infer", "infer", "inference", {"i0": 2, "i1": 4}, self.limits),
                Agent("a-e0", "edge", "edge", {"e0": 2}, self.limits),
                Agent("a-e1", "edge", "edge", {"e1": 2}, self.limits),
            )
        }
        self.engine = Engine(ClusterState(), lambda _: self.policy)
        self.feed(LeaderStarted("test", 1, "random", self.settings.to_dict()))

    # --- the scheduler's side ---

    def feed(self, data: Input, cause: Cause | None = None) -> None:
        """Let the engine decide; its commands go on the wire."""
        stimulus = Stimulus(self.now_s, data, cause or Cause("scheduler"))
        decision = self.engine.handle(stimulus)
        self.handled += 1
        assert violations(self.engine.state) == [], f"after {data}"
        for command in decision.commands:
            if self.rng.random() >= self.faults.loss:
                order = Command(command.id, command.data, self.now_s, command.expires_s)
                copies = 2 if self.rng.random() < self.faults.twice else 1
                self.agents[command.agent].inbox += [order] * copies

    def restart_engine(self) -> None:
        """Go on from the state as JSON."""
        state = state_from_dict(orjson.loads(state_to_json(self.engine.state)))
        self.engine = Engine(state, lambda _: self.policy)

    def submit(self, gpus_min: int = 1, total_steps: int = 600) -> None:
        name = f"j{len(self.submitted)}"
        self.submitted.append(name)
        self.feed(submitted(name, gpus_min=gpus_min, gpus_max=8, total_steps=total_steps))

    def step(self, seconds: float = 20.0) -> None:
        """Let time pass for everybody, then check."""
        self.now_s += seconds
        for agent in self.agents.values():
            agent.step(self.now_s)
        for agent in self.agents.values():
            if agent.linked:
                self._deliver(agent)
        self._contact()
        wake_s = self.engine.wake_s
        if wake_s is not None and wake_s <= self.now_s:
            self.feed(TimePassed())
        self.check()

    def _deliver(self, agent: Agent) -> None:
        count = len(agent.outbox)
        if count and self.rng.random() < self.faults.late:
            count = int(self.rng.integers(count))
        for cause, data in agent.outbox[:count]:
            for _ in range(2 if self.rng.random() < self.faults.twice else 1):
                verdict = self.dedupe.take(cause.source, cause.bootid, cause.sequence)
                if verdict is not Verdict.DUPLICATE:
                    self.heard_s[agent.name] = self.now_s
                    if data is not _TELEMETRY:
                        self.feed(data, cause)
        del agent.outbox[:count]

    def _contact(self) -> None:
        for name, heard_s in self.heard_s.items():
            if heard_s >= self.renewed_s.get(name, 0.0) + self.settings.lease_s / 3:
                self.renewed_s[name] = heard_s
                lease_s = self.settings.lease_of(self.agents[name].kind)
                renewal = RenewLease(until_s=heard_s + lease_s)
                id_ = f"renew-{name}-{self.now_s}"
                self.agents[name].inbox.append(Command(id_, renewal, self.now_s, None))
        for node in list(self.engine.state.nodes.values()):
            heard_s = self.heard_s.get(node.agent, 0.0)
            silent = self.now_s - heard_s > self.settings.silence_s
            if node.state is NodeState.ALIVE and silent:
                self.feed(NodeSilent(node.id, heard_s))
            elif (node.state is NodeState.UNKNOWN and not silent) or (
                node.state is NodeState.DEAD and heard_s == self.now_s
            ):
                self.feed(NodeHeard(node.id))

    # --- the outside checker ---

    def check(self) -> None:
        """Compare what agents hold, by their own records, with what must never be."""
        state = self.engine.state
        by_job: dict[str, list[str]] = {}
        for agent in self.agents.values():
            used: set[tuple[str, int]] = set()
            for job, gang in agent.core.gangs.items() if agent.up else ():
                by_job.setdefault(job, []).append(agent.name)
                for placement in (gang.placement, *(left for _, left in gang.leaving)):
                    for node, gpus in placement.items():
                        for gpu in gpus:
                            assert (node, gpu) not in used, f"{node}/{gpu} is run by two gangs"
                            used.add((node, gpu))
                            if state.nodes[node].state is not NodeState.DEAD:
                                held = state.nodes[node].holder[gpu]
                                assert held in (job, None) or self._stray(job, gang.epoch), (
                                    f"{node}/{gpu}: {job} runs, the ledger says {held}"
                                )
        for job, names in by_job.items():
            assert len(names) == 1, f"{job} has gangs at {names}"
        for name, known in state.jobs.items():
            assert known.epoch >= self.epochs.get(name, 0), f"{name}: its epoch fell"
            self.epochs[name] = known.epoch
        assert list(state.jobs) == self.submitted, "a job was lost"

    def _stray(self, job: str, epoch: int) -> bool:
        return epoch < self.engine.state.jobs[job].start_epoch

    # --- when faults stop ---

    def heal(self) -> None:
        """No more faults, and a sane policy."""
        self.faults = Faults()
        self.policy.sane = make_policy("tide")
        for agent in self.agents.values():
            agent.linked = True
            if not agent.up:
                agent.restart(self.now_s)

    def settle(self, hours: float = 24.0, step_s: float = 30.0) -> None:
        """Let every job end; raise if one does not."""
        end_s = self.now_s + 3600.0 * hours
        while self.now_s < end_s:
            jobs = self.engine.state.jobs.values()
            if all(job.state in TERMINAL for job in jobs):
                return
            self.step(step_s)
        left = [f"{j.id}: {j.state}" for j in self.engine.state.jobs.values()]
        raise AssertionError(f"seed {self.seed}: {left} after {hours} h without faults")
