"""Random requests among random faults: a replay decides the same, and no law is broken."""

import numpy as np
import orjson

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
from scheduler.policies.registry import make_policy
from schemas.requests import (
    AcceptNode,
    CancelJob,
    ClearPolicy,
    ClearQuota,
    CordonNode,
    DrainNode,
    FreezeLoans,
    RecallLoans,
    RefuseNode,
    SetPolicy,
    SetQuota,
    SubmitJob,
    UncordonNode,
    UnfreezeLoans,
    VerbData,
)
from tests.builders import request_of, submitted
from tests.simulation.world import Faults, World


class Recorded(World):
    """A world that keeps what was decided in it."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.record: list[tuple[bytes, bytes]] = []
        super().__init__(seed, faults, policy=make_policy("tide"), policies=make_policy)

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        super().saw(stimulus, decision)
        said = orjson.dumps(stimulus_to_dict(stimulus))
        self.record.append((said, decision_bytes(decision_to_dict(decision))))


def drawn(rng: np.random.Generator, world: World) -> VerbData:
    """Any request, also ones that make no sense."""
    node = str(rng.choice([*world.engine.state.nodes, "nowhere"]))
    if rng.random() < 0.5:
        return of_the_cell(rng, world, node)
    match int(rng.integers(10)):
        case 8 | 9:
            return of_who_joins(rng, world, node)
        case 0 | 1:
            return CordonNode(node=node)
        case 2 | 3:
            return UncordonNode(node=node)
        case 4 | 5:
            in_s = float(rng.choice([20.0, 300.0, 1500.0]))
            return DrainNode(node=node, by_s=world.now_s + in_s, force=bool(rng.integers(2)))
        case 6:
            return CancelJob(job=f"j{int(rng.integers(12))}")
        case _:
            name = f"j{len(world.submitted)}"
            world.submitted.append(name)
            return SubmitJob(spec=submitted(name))


def of_who_joins(rng: np.random.Generator, world: World, node: str) -> VerbData:
    """Accept any node as something, or take that back."""
    accepted = list(world.engine.state.standing.accepted)
    if rng.random() < (0.6 if accepted else 0.35):
        return RefuseNode(node=str(rng.choice(accepted or [node])))
    agent, kind = (
        str(rng.choice(["edge-9", *world.agents])),
        str(rng.choice(["training", "edge", "edge"])),
    )
    every = None if rng.integers(2) else node
    fields = {"agent": agent, "node": every, "pool": "edge", "pool_kind": kind, "gpu_count": 2}
    return AcceptNode.model_validate(fields)


def of_the_cell(rng: np.random.Generator, world: World, node: str) -> VerbData:
    """Any request about loans, quotas and the policy."""
    lender = str(rng.choice(["infer", "edge", node, *world.engine.state.on_loan]))
    until_s, recall = world.now_s + float(rng.choice([50.0, 900.0])), bool(rng.integers(2))
    if world.engine.state.on_loan and recall:
        return RecallLoans(lender=lender, by_s=until_s)
    match int(rng.integers(9)):
        case 0 | 1:
            return FreezeLoans(lender=lender if recall else "edge", until_s=until_s)
        case 2:
            return UnfreezeLoans()
        case 3 | 4:
            return RecallLoans(lender=lender, by_s=until_s)
        case 5:
            return SetQuota(tenant="t", gpus=int(rng.integers(12)), jobs=int(rng.integers(1, 5)))
        case 6:
            return ClearQuota(tenant="t")
        case 7:
            lines = ["tide:patience_s=60", "fifo", "srtf", "elasticflow", "edgeflow", "nope"]
            return SetPolicy(line=str(rng.choice(lines)), recall=recall)
        case _:
            return ClearPolicy(recall=recall)


def test_storms_of_requests_replay_identically() -> None:
    kinds = set[str]().union(*map(storm, range(5)))
    assert {"RequestDone", "RequestRefused", "NodeCordoned", "DrainStarted", "DrainEnded"} <= kinds
    assert {"NodeAccepted", "NodeRefused"} <= kinds
    assert {"LoansFrozen", "LoansUnfrozen", "LoanRecalled"} <= kinds
    assert {"QuotaSet", "QuotaCleared", "PolicyChanged", "PolicyCleared"} <= kinds


def storm(seed: int) -> set[str]:
    """Let random requests come, decide all again, and give the kinds of facts that there were."""
    world = Recorded(seed, Faults(loss=0.05, twice=0.1, late=0.3))
    rng = np.random.default_rng(seed + 7)
    for number in range(250):
        if rng.random() < 0.15:
            args = drawn(rng, world)
            asked = request_of(world.now_s, args, f"r{number}", role="admin")
            world.feed(asked)
            if rng.random() < 0.3:
                world.feed(asked)
        if rng.random() < 0.05 and len(world.submitted) < 12:
            world.submit(total_steps=int(10 ** rng.uniform(2.0, 4.0)))
        agent = list(world.agents.values())[int(rng.integers(4))]
        if rng.random() < (0.01 if agent.up else 0.2):
            agent.restart(world.now_s)
        if rng.random() < 0.02:
            world.restart_engine()
        world.step(float(rng.uniform(1.0, 40.0)))
    again = Engine(ClusterState(), make_policy)
    kinds: set[str] = set()
    for said, recorded in world.record:
        decision = again.handle(stimulus_from_dict(orjson.loads(said)))
        assert decision_bytes(decision_to_dict(decision)) == recorded
        kinds |= {type(fact).__name__ for fact in decision.facts}
    assert state_hash(again.state) == state_hash(world.engine.state)
    return kinds
