"""Tiresias: its queues, its sweep, and the published figures."""

import json

import numpy as np
import pytest

from benchmarks.public_data import DATA as PUBLIC
from scheduler.policies.interface import Kind, LoanPhase, Snapshot
from scheduler.policies.literature.tiresias import Tiresias
from tests.markets import columns, noted, sizes
from tests.snapshots import Job, Pool, decide, snapshot

DATA = PUBLIC / "pollux"
NOW_S = 10_000.0


def seen(jobs: list[Job], service: dict[str, float] | None = None, gpus: int = 8) -> Snapshot:
    """A node of so many GPUs; jobs ask for their only size. `service` in GPU s."""
    one = snapshot([Pool("train", gpus=gpus)], jobs, now_s=NOW_S)
    return columns(one, attained_gpu_s=[(service or {}).get(name, 0.0) for name in one.jobs.ids])


def test_the_sweep_skips_what_does_not_fit() -> None:
    jobs = [
        Job("a", sizes=[4], submit_s=1.0),
        Job("b", sizes=[8], submit_s=2.0),
        Job("c", sizes=[2], submit_s=3.0),
        Job("d", sizes=[4], submit_s=4.0),
    ]
    plan = decide(Tiresias(), seen(jobs))
    assert sizes(plan) == {"a": 4, "c": 2}
    waits = {reason.subject: reason for reason in plan.reasons if reason.verb == "waits"}
    assert waits["b"].lost_to == ("a",)
    assert waits["d"].lost_to == ("a", "c")
    assert plan.notes["b"] == (0.0, 2.0, 0.0)


def test_a_served_job_is_demoted_and_preempted_for_one_that_is_not() -> None:
    jobs = [
        Job("old", sizes=[8], submit_s=1.0, held={"train-000": 8}),
        Job("new", sizes=[4], submit_s=2.0),
    ]
    below, at = ({"old": amount} for amount in (57_599.0, 57_600.0))
    assert sizes(Tiresias().plan(seen(jobs, below))) == {}
    plan = decide(Tiresias(), seen(jobs, at))
    assert sizes(plan) == {"old": 0, "new": 4}
    assert plan.notes["old"] == (1.0, NOW_S, 0.0)


def test_a_queue_is_in_order_of_entry_and_thresholds_may_be_many() -> None:
    policy = Tiresias(thresholds_gpu_s=(100.0, 200.0))
    jobs = [Job(name, sizes=[8], submit_s=1.0) for name in "abc"]
    service = {"a": 150.0, "b": 150.0, "c": 250.0}
    one = noted(seen(jobs, service), a=(1, 90.0, 0), b=(1, 80.0, 0), c=(2, 10.0, 0))
    plan = decide(policy, one)
    assert sizes(plan) == {"b": 8}
    assert plan.notes == {}
    later = seen(jobs, {"c": 250.0})
    assert policy.plan(later).notes["c"] == (2.0, NOW_S, 0.0)


def test_moving_jobs_and_those_that_back_off_are_left_alone() -> None:
    jobs = [
        Job("moves", sizes=[4], held={"train-000": 4}, moving=True),
        Job("backs", sizes=[4], backoff_until_s=NOW_S + 1.0),
        Job("a", sizes=[8], submit_s=5.0),
        Job("b", sizes=[4], submit_s=6.0),
    ]
    plan = decide(Tiresias(), seen(jobs, {"moves": 1e6}))
    assert sizes(plan) == {"b": 4}


def test_a_gang_is_what_was_asked_for_or_the_nearest_below_that_is_allowed() -> None:
    one = seen([Job("a", sizes=[2, 8]), Job("b", sizes=[8], submit_s=1.0)], gpus=16)
    one = columns(one, requested=[4, 4])
    assert sizes(Tiresias().plan(one)) == {"a": 2, "b": 8}


def test_a_gang_that_must_leave_its_node_moves_at_a_size_it_allows() -> None:
    gone = Pool("infer", Kind.INFERENCE, loan=LoanPhase.RECLAIMING)
    jobs = [Job("a", sizes=[2], held={"infer-000": 3}), Job("b", sizes=(), held={"infer-000": 1})]
    plan = decide(Tiresias(), snapshot([Pool("train"), gone], jobs, now_s=NOW_S))
    assert sizes(plan) == {"a": 2, "b": 0}


def test_all_training_pools_are_used() -> None:
    pools = [Pool("x", gpus=4), Pool("y", gpus=4)]
    one = snapshot(pools, [Job(name, sizes=[4]) for name in "abc"], now_s=NOW_S)
    plan = decide(Tiresias(), one)
    assert sizes(plan) == {"a": 4, "b": 4}


@pytest.mark.parametrize("thresholds", [(0.0,), (5.0, 5.0), (9.0, 3.0)])
def test_thresholds_must_ascend(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        Tiresias(thresholds_gpu_s=thresholds)


CASES = [
    pytest.param(load, number, marks=[pytest.mark.slow] if load != "0.5" else [])
    for load in ("0.5", "1.0", "1.5", "2.0")
    for number in (1, 2, 3, 4)
]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(
    not DATA.is_dir(), reason="no public data: set TIDEGATE_DATA to a folder with pollux/"
)
@pytest.mark.parametrize(("load", "number"), CASES)
def test_the_published_mean_jct_is_met_to_a_hundredth_of_a_second(load: str, number: int) -> None:
    pytest.importorskip("scipy")
    from simulator.physics.base import Cluster
    from simulator.physics.pollux import PolluxPhysics
    from simulator.run import Options, simulate

    published = json.loads((DATA / "published_mean_jct.json").read_text())
    physics = PolluxPhysics(DATA / "profiles")
    trace = DATA / "workloads" / f"load-{load}" / f"workload-{number}.csv"
    jobs = physics.entries(trace, Cluster(), adaptive=False)
    out = simulate(jobs, Tiresias(), Options(tick_s=physics.tick_s, instant=physics.instant))
    mean_s = float(np.mean(out.end_s - out.submit_s))
    assert mean_s == pytest.approx(published[load][f"workload-{number}"]["tiresias"], abs=0.0051)
