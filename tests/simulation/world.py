"""Real agent cores behind a faulty wire, under a policy that plans anything, checked from outside.

Driver, agents and contact are the simulator's. All chance comes from one generator. Words of one
sender arrive in order, maybe late, maybe twice; commands may be lost. After everything that happens
an outside checker compares what agents and engine hold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import orjson

from runtime.core import Limits, NodeSpec
from runtime.simulated_owner import SimulatedOwner
from scheduler.contact import Contact
from scheduler.core.canonical import state_to_json
from scheduler.core.engine import Engine
from scheduler.core.restore import state_from_dict
from scheduler.core.settings import Settings
from scheduler.core.stimuli import Decision, Input, LeaderStarted, Stimulus
from scheduler.core.transitions import TERMINAL, NodeState
from scheduler.core.validate import violations
from scheduler.dedupe import Dedupe
from scheduler.policies.interface import LoanPhase, Phase, Plan, Policy, Snapshot, Target
from scheduler.policies.registry import make_policy
from schemas.events import JobSubmitted, PoolKind
from simulator.cores import Cores, Wire
from simulator.driver import Driver
from tests.builders import START_S, submitted
from tests.simulation.frail import FrailAgent

DEMAND_PERIOD_S = 7200.0
#: What takes time on the wire takes up to so long.
LATE_S = 40.0


@dataclass
class Faults(Wire):
    """Chances per word."""

    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def orders(self) -> Sequence[float]:
        if self.rng.random() < self.loss:
            return ()
        return self._copies(float(self.rng.uniform(0.0, LATE_S)))

    def events(self) -> Sequence[float]:
        late = self.rng.random() < self.late
        return self._copies(float(self.rng.uniform(0.0, LATE_S)) if late else 0.0)

    def _copies(self, takes_s: float) -> Sequence[float]:
        return (takes_s,) * (2 if self.rng.random() < self.twice else 1)


@dataclass
class RandomPolicy:
    """Any plan at all: mostly valid ones, and some that no policy may make."""

    rng: np.random.Generator
    nonsense: float = 0.2  #: The share of plans with something that cannot be.
    sane: Policy | None = None
    made: Plan | None = None  #: The last one.
    name: str = "random"

    def plan(self, snapshot: Snapshot) -> Plan:
        self.made = self.any(snapshot) if self.sane is None else self.sane.plan(snapshot)
        return self.made

    def any(self, snapshot: Snapshot) -> Plan:
        rng, nodes, jobs = self.rng, snapshot.nodes, snapshot.jobs
        free = {name: int(count) for name, count in zip(nodes.ids, nodes.free, strict=True)}
        usable = dict(zip(nodes.ids, nodes.usable, strict=True))
        targets: dict[str, Target | None] = {}
        held: dict[int, dict[str, int]] = {}
        holdings = snapshot.holdings
        for job, node, gpus in zip(holdings.job, holdings.node, holdings.gpus, strict=True):
            held.setdefault(int(job), {})[nodes.ids[int(node)]] = int(gpus)
        for index, name in enumerate(jobs.ids):
            if jobs.phase[index] == Phase.MOVING or rng.random() < 0.5:
                continue
            for node, gpus in held.get(index, {}).items():
                free[node] += gpus * bool(usable[node])
            if jobs.phase[index] == Phase.RUNNING and rng.random() < 0.3:
                targets[name] = None
                continue
            target = self._target(snapshot, free)
            if target is None:
                for node, gpus in held.get(index, {}).items():
                    free[node] -= gpus * bool(usable[node])
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
        if jobs.ids and rng.random() < self.nonsense:
            targets[str(rng.choice(jobs.ids))] = self._nonsense(nodes.ids)
        noted = [name for name in jobs.ids if rng.random() < 0.1]
        notes = {name: tuple(rng.uniform(0, 9, rng.integers(1, 5)).tolist()) for name in noted}
        return Plan(targets, lend, reclaim, notes=notes)

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


def agent_of(
    name: str, pool: str, kind: PoolKind, gpus: dict[str, int], limits: Limits | None = None
) -> FrailAgent:
    """Make an agent whose owner, if it has one, needs all or nothing in turn."""
    specs = [NodeSpec(node, pool, kind, count, "A100", 80_000) for node, count in gpus.items()]
    if kind == "training":
        return FrailAgent(name, specs, None, limits)

    def demand(now_s: float) -> float:
        return sum(gpus.values()) * (now_s % DEMAND_PERIOD_S > DEMAND_PERIOD_S / 2)

    owner = SimulatedOwner(pool, gpus, demand, START_S, per_node=kind == "edge")
    return FrailAgent(name, specs, owner, limits)


class World(Cores):
    """An engine, its agents, and the wire between them."""

    agents: Mapping[str, FrailAgent]

    def __init__(
        self,
        seed: int,
        faults: Faults,
        settings: Settings | None = None,
        limits: Limits | None = None,
        *,
        policy: Policy | None = None,
        agents: Sequence[FrailAgent] = (),
        policies: Callable[[str], Policy] | None = None,
    ) -> None:
        """Begin with all nodes born, and no job; `policies` makes those that people choose."""
        self.seed, self.faults = seed, faults
        self.rng = faults.rng = np.random.default_rng(seed)
        self.policy = RandomPolicy(np.random.default_rng(seed + 1))
        self.epochs: dict[str, int] = {}
        self.submitted: list[str] = []
        agents = agents or [
            agent_of("a-train", "train", "training", {"t0": 4, "t1": 4}, limits),
            agent_of("a-infer", "infer", "inference", {"i0": 2, "i1": 4}, limits),
            agent_of("a-e0", "edge", "edge", {"e0": 2}, limits),
            agent_of("a-e1", "edge", "edge", {"e1": 2}, limits),
        ]
        super().__init__(agents, faults)
        asked = policy or self.policy
        self._policies = policies or (lambda _: asked)
        self._leads = LeaderStarted("simulator", 1, asked.name, (settings or Settings()).to_dict())
        self.driver = Driver(asked, self, settings or Settings(), policies=policies)
        self.driver.now_s = START_S
        self.driver.watches.append(self.saw)
        self.driver.begin()

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    @property
    def now_s(self) -> float:
        return self.driver.now_s

    def feed(self, data: Input) -> None:
        """Let a tenant say something."""
        self.driver.say(data, "/tenants/t")

    def restart_engine(self) -> None:
        """Let another leader go on from the state as JSON, with what its journal keeps."""
        kept = state_from_dict(orjson.loads(state_to_json(self.engine.state)))
        self.driver.engine = Engine(kept, self._policies)
        self.driver.say(replace(self._leads, leader_epoch=kept.leader.epoch + 1), "scheduler")
        taken, self._dedupe = self._dedupe.to_dict(), Dedupe()
        self._dedupe.load(taken)
        self._dedupe.excuse()
        self._contact = Contact()
        self._contact.begin(self.engine.state, self.now_s)

    def submit(self, gpus_min: int = 1, total_steps: int | None = 600, **more: object) -> None:
        name = f"j{len(self.submitted)}"
        self.submitted.append(name)
        job = submitted(name, gpus_min=gpus_min, gpus_max=8)
        steps = {"total_steps": total_steps}
        self.feed(JobSubmitted.model_validate({**job.model_dump(), **steps, **more}))

    def step(self, seconds: float = 20.0) -> None:
        """Let time pass."""
        self.driver.advance(self.now_s + seconds)

    # --- the outside checker ---

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        assert violations(self.engine.state) == [], f"after {stimulus.data}"

    def happen(self, now_s: float) -> None:
        super().happen(now_s)
        self.check()

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
                                assert held in (job, None) or self._must_go(job, gang.epoch), (
                                    f"{node}/{gpu}: {job} runs, the ledger says {held}"
                                )
        for job, names in by_job.items():
            assert len(names) == 1, f"{job} has gangs at {names}"
        for name, known in state.jobs.items():
            assert known.epoch >= self.epochs.get(name, 0), f"{name}: its epoch fell"
            self.epochs[name] = known.epoch
        assert list(state.jobs) == self.submitted, "a job was lost"

    def _must_go(self, job: str, epoch: int) -> bool:
        state = self.engine.state
        told = (order.data["epoch"] >= epoch for order in state.opened("StopGang", job))
        return epoch < state.jobs[job].start_epoch or any(told)

    # --- when faults stop ---

    def heal(self) -> None:
        """No more faults, and a sane policy."""
        self.faults.loss = self.faults.twice = self.faults.late = 0.0
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
