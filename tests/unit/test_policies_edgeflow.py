"""EdgeFlow: shares in the cloud, three rules for the edge, and borrowing it."""

from dataclasses import replace

import pytest

from scheduler.policies.interface import Kind, LoanPhase, Plan
from scheduler.policies.literature.edgeflow import EdgeFlow
from tests.snapshots import Job, Pool, decide, rules, snapshot

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


def test_without_an_edge_it_fills_by_deadline_and_grows_who_ends_soonest_by_it() -> None:
    jobs = [job("a", 900.0, 1000.0), job("b", 1800.0, 1000.0, submit_s=1.0)]
    plan = decide(EdgeFlow(), snapshot([TRAIN], jobs))
    # a needs 1, b needs 2. One GPU is left, and the next size of b takes two.
    assert where(plan) == {"a": "train:2", "b": "train:2"}
    assert rules(plan) == {"a": "edgeflow.surplus", "b": "edgeflow.share"}


def test_nobody_is_refused_who_misses_gets_what_is_left() -> None:
    jobs = [job("a", 3000.0, 1000.0), job("b", 3000.0, 1001.0, submit_s=1.0)]
    plan = decide(EdgeFlow(), snapshot([TRAIN], jobs))
    assert where(plan) == {"a": "train:4"}
    assert rules(plan)["b"] == "edgeflow.late"
    assert plan.notes == {}


def test_rule_2_sends_who_is_in_time_there_if_no_cloud_gpu_is_idle() -> None:
    # All of the cloud is needed for a; b would make it at half the speed.
    jobs = [job("a", 3900.0, 1000.0, edge_allowed=False), job("b", 400.0, 2000.0, submit_s=1.0)]
    plan = decide(EdgeFlow(), snapshot([TRAIN, EDGE], jobs))
    assert where(plan) == {"a": "train:4", "b": "edge:1"}
    assert rules(plan)["b"] == "edgeflow.rule2"


def test_rule_2_leaves_all_in_the_cloud_while_a_gpu_is_idle() -> None:
    seen = snapshot([TRAIN, EDGE], [job("a", 400.0, 2000.0)])
    assert where(EdgeFlow().plan(seen)) == {"a": "train:4"}


@pytest.mark.parametrize(
    "change", [{"memory_mib": 17_000.0}, {"edge_allowed": False}, {"start_cost_s": 1500.0}]
)
def test_rule_2_respects_memory_leave_and_the_time_it_takes(change: dict[str, float]) -> None:
    jobs = [job("a", 3900.0, 1000.0, edge_allowed=False), job("b", 400.0, 2000.0, submit_s=1.0)]
    seen = snapshot([TRAIN, EDGE], [jobs[0], replace(jobs[1], **change)])  # type: ignore[arg-type]
    plan = decide(EdgeFlow(), seen)
    assert where(plan) == {"a": "train:4"}
    exact = snapshot([TRAIN, EDGE], [jobs[0], replace(jobs[1], memory_mib=16_000.0)])
    assert where(EdgeFlow().plan(exact))["b"] == "edge:1"


def test_rule_3_sends_the_furthest_behind_first_and_frees_its_gpus() -> None:
    jobs = [
        job("a", 3600.0, 1000.0, held={"train-000": 4}),
        job("b", 90_000.0, 1003.0, submit_s=1.0),
        job("c", 2000.0, 1002.0, submit_s=2.0),
    ]
    plan = decide(EdgeFlow(), snapshot([TRAIN, EDGE], jobs))
    assert where(plan) == {"b": "edge:1"}
    assert rules(plan)["b"] == "edgeflow.rule3"
    assert rules(plan)["c"] == "edgeflow.late"


def test_rule_1_who_is_there_stays() -> None:
    jobs = [job("a", 90_000.0, 10.0, held={"edge-000": 1}), job("b", 9.0, 999.0, submit_s=1.0)]
    plan = decide(EdgeFlow(), snapshot([TRAIN, EDGE], jobs))
    assert where(plan) == {"b": "train:4"}


def test_rule_1_who_loses_its_server_goes_to_another_or_to_the_cloud() -> None:
    two = replace(EDGE, nodes=2, loan=(LoanPhase.RECLAIMING, LoanPhase.LENT))
    held = job("a", 400.0, 2000.0, held={"edge-000": 1})
    plan = decide(EdgeFlow(), snapshot([TRAIN, two], [held]))
    target = plan.targets["a"]
    assert target is not None
    assert target.placement == (("edge-001", 1),)
    assert rules(plan) == {"a": "edgeflow.rule1"}
    plan = decide(EdgeFlow(), snapshot([TRAIN, replace(EDGE, loan=LoanPhase.RECLAIMING)], [held]))
    assert where(plan) == {"a": "train:4"}


def test_one_job_to_a_server_however_many_gpus_it_has() -> None:
    big = replace(EDGE, nodes=2, gpus=4, speed=1.0)
    jobs = [job("a", 3900.0, 1000.0, edge_allowed=False)] + [
        job(f"b{i}", 100.0, 2000.0, sizes=(1,), rates=(1.0,), submit_s=1.0 + i) for i in range(3)
    ]
    plan = decide(EdgeFlow(), snapshot([TRAIN, big], jobs))
    there = [t.placement for t in plan.targets.values() if t is not None and t.pool == "edge"]
    assert sorted(there) == [(("edge-000", 1),), (("edge-001", 1),)]


def test_idle_servers_are_asked_for_when_a_deadline_may_want_them() -> None:
    idle = replace(EDGE, loan=LoanPhase.OWNED, history=[0.0] * 24)
    late = [job("a", 9000.0, 1000.0), job("b", 9000.0, 1001.0, submit_s=1.0)]
    plan = decide(EdgeFlow(), snapshot([TRAIN, idle], late))
    assert plan.lend == ("edge-000",)
    other = replace(idle, id="infer", kind=Kind.INFERENCE, nodes=4, gpus=8)
    assert EdgeFlow().plan(snapshot([TRAIN, other], late)).lend == ()


def test_jobs_without_a_deadline_get_what_is_left() -> None:
    jobs = [Job("a", work_s=100.0, sizes=(1, 2, 4)), job("b", 1900.0, 1000.0, submit_s=1.0)]
    plan = decide(EdgeFlow(), snapshot([TRAIN], jobs))
    assert where(plan) == {"a": "train:2", "b": "train:2"}
