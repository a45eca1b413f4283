"""EdgeFlow: shares in the cloud, three rules for the edge, and borrowing it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase, Plan
from scheduler.policies.literature.edgeflow import EdgeFlow
from scheduler.policies.parts.offload import OffloadOptions
from tests.snapshots import Job, Pool, faults, snapshot

NOW = 10_000.0
TRAIN = Pool("train", nodes=1, gpus=4)
EDGE = Pool("edge", Kind.EDGE, nodes=1, gpus=1, speed=0.5, memory_mib=16_000.0, loan=LoanPhase.LENT)
LINEAR = (1.0, 2.0, 4.0)


def job(name: str, work_s: float, due_in_s: float, **more: object) -> Job:
    made = Job(
        name,
        work_s=work_s,
        deadline_s=NOW + due_in_s,
        sizes=(1, 2, 4),
        rates=LINEAR,
        edge_allowed=True,
        start_cost_s=0.0,
        checkpoint_cost_s=0.0,
        checkpoint_mib=0.0,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def where(plan: Plan) -> dict[str, str]:
    """Job -> pool:GPUs."""
    return {
        name: f"{target.pool}:{target.size}" if target else ""
        for name, target in plan.targets.items()
    }


def rules(plan: Plan) -> dict[str, str]:
    return {reason.subject: reason.rule for reason in plan.reasons}


def test_without_an_edge_it_fills_by_deadline_and_grows_who_ends_soonest_by_it() -> None:
    jobs = [job("a", 900.0, 1000.0), job("b", 1800.0, 1000.0, submit_s=1.0)]
    seen = snapshot([TRAIN], jobs)
    plan = EdgeFlow().plan(seen)
    # a needs 1, b needs 2. One GPU is left, and the next size of b takes two.
    assert where(plan) == {"a": "train:2", "b": "train:2"}
    assert rules(plan) == {"a": "edgeflow.surplus", "b": "edgeflow.share"}
    assert not faults(seen, plan)


def test_nobody_is_refused_who_misses_gets_what_is_left() -> None:
    jobs = [job("a", 3000.0, 1000.0), job("b", 3000.0, 1001.0, submit_s=1.0)]
    seen = snapshot([TRAIN], jobs)
    plan = EdgeFlow().plan(seen)
    assert where(plan) == {"a": "train:4"}
    assert rules(plan)["b"] == "edgeflow.late"
    assert plan.notes == {}
    assert not faults(seen, plan)


def test_rule_2_sends_who_is_in_time_there_if_no_cloud_gpu_is_idle() -> None:
    # All of the cloud is needed for a; b would make it at half the speed.
    jobs = [job("a", 3900.0, 1000.0, edge_allowed=False), job("b", 400.0, 2000.0, submit_s=1.0)]
    seen = snapshot([TRAIN, EDGE], jobs)
    plan = EdgeFlow().plan(seen)
    assert where(plan) == {"a": "train:4", "b": "edge:1"}
    assert rules(plan)["b"] == "edgeflow.rule2"
    assert not faults(seen, plan)


def test_rule_2_leaves_all_in_the_cloud_while_a_gpu_is_idle_but_for_the_other_reading() -> None:
    seen = snapshot([TRAIN, EDGE], [job("a", 400.0, 2000.0)])
    assert where(EdgeFlow().plan(seen)) == {"a": "train:4"}
    other = EdgeFlow(offload=OffloadOptions(rule2_when_idle=True))
    assert where(other.plan(seen)) == {"a": "edge:1"}


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"memory_mib": 17_000.0}, OffloadOptions()),
        ({"memory_mib": 16_000.0}, OffloadOptions(memory_strict=True)),
        ({"edge_allowed": False}, OffloadOptions()),
        ({"start_cost_s": 1500.0}, OffloadOptions()),
    ],
)
def test_rule_2_respects_memory_leave_and_the_time_it_takes(
    change: dict[str, float], options: OffloadOptions
) -> None:
    jobs = [job("a", 3900.0, 1000.0, edge_allowed=False), job("b", 400.0, 2000.0, submit_s=1.0)]
    policy = EdgeFlow(offload=options)
    seen = snapshot([TRAIN, EDGE], [jobs[0], replace(jobs[1], **change)])  # type: ignore[arg-type]
    plan = policy.plan(seen)
    assert where(plan) == {"a": "train:4"}
    assert not faults(seen, plan)
    exact = snapshot([TRAIN, EDGE], [jobs[0], replace(jobs[1], memory_mib=16_000.0)])
    assert where(EdgeFlow().plan(exact))["b"] == "edge:1"


def test_rule_3_sends_the_furthest_behind_first_and_frees_its_gpus() -> None:
    jobs = [
        job("a", 3600.0, 1000.0, held={"train-000": 4}),
        job("b", 90_000.0, 1003.0, submit_s=1.0),
        job("c", 2000.0, 1002.0, submit_s=2.0),
    ]
    seen = snapshot([TRAIN, EDGE], jobs)
    plan = EdgeFlow().plan(seen)
    assert where(plan) == {"b": "edge:1"}
    assert rules(plan)["b"] == "edgeflow.rule3"
    assert rules(plan)["c"] == "edgeflow.late"
    assert not faults(seen, plan)


def test_rule_1_who_is_there_stays() -> None:
    jobs = [job("a", 90_000.0, 10.0, held={"edge-000": 1}), job("b", 9.0, 999.0, submit_s=1.0)]
    seen = snapshot([TRAIN, EDGE], jobs)
    plan = EdgeFlow().plan(seen)
    assert where(plan) == {"b": "train:4"}
    assert not faults(seen, plan)


def test_rule_1_who_loses_its_server_goes_to_another_or_to_the_cloud() -> None:
    two = replace(EDGE, nodes=2, loan=(LoanPhase.RECLAIMING, LoanPhase.LENT))
    held = job("a", 400.0, 2000.0, held={"edge-000": 1})
    seen = snapshot([TRAIN, two], [held])
    plan = EdgeFlow().plan(seen)
    target = plan.targets["a"]
    assert target is not None
    assert target.placement == (("edge-001", 1),)
    assert rules(plan) == {"a": "edgeflow.rule1"}
    assert not faults(seen, plan)
    seen = snapshot([TRAIN, replace(EDGE, loan=LoanPhase.RECLAIMING)], [held])
    plan = EdgeFlow().plan(seen)
    assert where(plan) == {"a": "train:4"}
    assert not faults(seen, plan)


def test_one_job_to_a_server_however_many_gpus_it_has() -> None:
    big = replace(EDGE, nodes=2, gpus=4, speed=1.0)
    jobs = [job("a", 3900.0, 1000.0, edge_allowed=False)] + [
        job(f"b{i}", 100.0, 2000.0, sizes=(1,), rates=(1.0,), submit_s=1.0 + i) for i in range(3)
    ]
    seen = snapshot([TRAIN, big], jobs)
    plan = EdgeFlow().plan(seen)
    there = [t.placement for t in plan.targets.values() if t is not None and t.pool == "edge"]
    assert sorted(there) == [(("edge-000", 1),), (("edge-001", 1),)]
    assert not faults(seen, plan)


def test_idle_servers_are_asked_for_when_a_deadline_may_want_them() -> None:
    idle = replace(EDGE, loan=LoanPhase.OWNED, history=[0.0] * 24)
    late = [job("a", 9000.0, 1000.0), job("b", 9000.0, 1001.0, submit_s=1.0)]
    seen = snapshot([TRAIN, idle], late)
    plan = EdgeFlow().plan(seen)
    assert plan.lend == ("edge-000",)
    assert not faults(seen, plan)
    other = replace(idle, id="infer", kind=Kind.INFERENCE, nodes=4, gpus=8)
    assert EdgeFlow().plan(snapshot([TRAIN, other], late)).lend == ()


def test_jobs_without_a_deadline_get_what_is_left() -> None:
    jobs = [Job("a", work_s=100.0, sizes=(1, 2, 4)), job("b", 1900.0, 1000.0, submit_s=1.0)]
    seen = snapshot([TRAIN], jobs)
    plan = EdgeFlow().plan(seen)
    assert where(plan) == {"a": "train:2", "b": "train:2"}
    assert not faults(seen, plan)


def test_plans_keep_their_promises_in_any_cluster() -> None:
    chance = np.random.default_rng(17)
    phases = [LoanPhase.OWNED, LoanPhase.LENT, LoanPhase.LENT, LoanPhase.RECLAIMING]
    for _ in range(60):
        loans = [phases[i] for i in chance.integers(0, 4, size=3)]
        gpus = int(chance.choice([1, 4]))
        edge = replace(EDGE, nodes=3, gpus=gpus, loan=loans, history=[0.0] * 24)
        free = {"train-000": 4, "train-001": 4}
        free |= {f"edge-{i:03}": gpus for i in range(3) if loans[i] != LoanPhase.OWNED}
        jobs = []
        for number in range(int(chance.integers(0, 9))):
            want, node = int(chance.choice([1, 2, 4])), str(chance.choice(sorted(free)))
            held = {node: want} if chance.random() < 0.5 and free[node] >= want else {}
            free[node] -= want if held else 0
            due_in_s = math.inf if chance.random() < 0.2 else float(chance.uniform(-200, 3000))
            jobs.append(
                job(
                    f"job-{number}",
                    float(chance.uniform(1, 9000)),
                    due_in_s,
                    held=held,
                    moving=bool(held) and chance.random() < 0.2,
                    submit_s=float(number),
                    edge_allowed=node.startswith("edge") or chance.random() < 0.7,
                    memory_mib=20_000.0 if not held and chance.random() < 0.2 else 9_000.0,
                    backoff_until_s=NOW + 1 if chance.random() < 0.1 else -math.inf,
                )
            )
        seen = snapshot([replace(TRAIN, nodes=2), edge], jobs)
        plan = EdgeFlow().plan(seen)
        assert not faults(seen, plan)
        assert EdgeFlow().plan(seen) == plan
