"""How one pool of best-effort training is shared by the default policy."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scheduler.policies.flow import FlowOptions, is_plain, shares, stake_of

from scheduler.policies.interface import Kind, Plan, Snapshot
from scheduler.policies.parts.curves import curves
from scheduler.policies.tide import Tide
from tests.snapshots import Job, Pool, apply, faults, snapshot

NOW_S = 10_000.0
HOUR_S = 3600.0


def plan(seen: Snapshot) -> Plan:
    assert is_plain(seen)
    found = Tide().plan(seen)
    assert faults(seen, found) == []
    return found


def sizes(found: Plan) -> dict[str, int]:
    return {job: target.size if target else 0 for job, target in found.targets.items()}


def waits(found: Plan, job: str) -> tuple[str, str, float, float]:
    reason = next(one for one in found.reasons if one.subject == job and one.verb == "waits")
    return reason.rule, reason.needs[0].name, reason.needs[0].have, reason.needs[0].want


def test_only_one_pool_of_best_effort_training_is_shared_freely() -> None:
    pool = Pool("train")
    assert is_plain(snapshot([pool], [Job("a")]))
    assert not is_plain(snapshot([pool], [Job("a", deadline_s=NOW_S + 9e9)]))
    assert not is_plain(snapshot([pool], [Job("a", priority=1)]))
    assert not is_plain(snapshot([pool, Pool("serve", Kind.INFERENCE)], [Job("a")]))
    assert not is_plain(snapshot([Pool("edge", Kind.EDGE)], [Job("a")]))
    assert Tide().plan(snapshot([pool], [])) == Plan()


def test_jobs_that_scale_badly_share_and_a_short_one_gets_more() -> None:
    seen = snapshot([Pool("train", nodes=2)], [Job(name, power=0.4) for name in "abcd"])
    assert sizes(plan(seen)) == dict.fromkeys("abcd", 4)
    jobs = [Job("long", work_s=50 * HOUR_S), Job("short", work_s=HOUR_S)]
    found = sizes(plan(snapshot([Pool("train", gpus=10)], jobs)))
    assert found == {"long": 2, "short": 8}


def test_a_running_job_is_stopped_for_one_that_gains_more() -> None:
    old = Job("old", work_s=50 * HOUR_S, sizes=(8,), held={"train-000": 8})
    new = Job("new", work_s=0.1 * HOUR_S, sizes=(8,))
    found = plan(snapshot([Pool("train")], [new, old]))
    assert sizes(found) == {"old": 0, "new": 8}
    assert {(one.subject, one.verb) for one in found.reasons} == {
        ("old", "preempts"),
        ("new", "starts"),
    }


def test_a_change_must_pay_for_its_pause() -> None:
    def after(cost_s: float) -> dict[str, int]:
        job = Job("a", work_s=20 * HOUR_S, held={"train-000": 4}, start_cost_s=cost_s)
        return sizes(plan(snapshot([Pool("train")], [job])))

    assert after(30.0) == {"a": 8}
    assert after(200.0) == {}  # twice 210 s within 600 s is more than 8 GPUs gain over 4
    about_to_end = Job("a", work_s=40.0, held={"train-000": 2})
    assert sizes(plan(snapshot([Pool("train")], [about_to_end]))) == {}


def test_who_went_without_for_long_goes_before_the_short() -> None:
    def started(hours: float) -> list[str]:
        jobs = [
            Job("long", work_s=10 * HOUR_S, sizes=(8,), submit_s=0.0),
            Job("short", work_s=HOUR_S, sizes=(8,), submit_s=hours * HOUR_S - 10.0),
        ]
        return list(plan(snapshot([Pool("train")], jobs, now_s=hours * HOUR_S)).targets)

    assert started(1.0) == ["short"]
    assert started(48.0) == ["long"]


@pytest.mark.parametrize(
    ("job", "rule", "need", "have", "want"),
    [
        (Job("a", sizes=()), "gang.size", "allowed_sizes", 0, 1),
        (Job("a", backoff_until_s=NOW_S + 5), "gang.backoff", "backoff_s", 5.0, 0.0),
        (Job("a", memory_mib=90_000), "gang.no_pool", "gpu_memory_mib", 80_000, 90_000),
        (Job("a", sizes=(16,)), "gang.capacity", "gpus_of_the_pool", 8, 16),
    ],
)
def test_why_a_job_waits(job: Job, rule: str, need: str, have: float, want: float) -> None:
    assert waits(plan(snapshot([Pool("train")], [job])), "a") == (rule, need, have, want)


def test_a_moving_job_is_left_alone() -> None:
    jobs = [Job("a", held={"train-000": 2}, moving=True), Job("b")]
    seen = snapshot([Pool("train")], jobs)
    assert "a" not in plan(seen).targets


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_it_comes_to_rest_and_never_wastes(seed: int) -> None:
    """Asked again about its own plan it changes ever less; no GPU idles that a job could use."""
    rng = np.random.default_rng(seed)
    pool = Pool("train", nodes=int(rng.integers(1, 5)), gpus=int(rng.choice([4, 8])))
    jobs = [
        Job(f"j{n:02}", work_s=float(rng.uniform(60, 90_000)), power=float(rng.uniform(0.3, 1.0)))
        for n in range(int(rng.integers(1, 20)))
    ]
    for cycle in range(6):
        seen = snapshot([pool], jobs, now_s=NOW_S + 600 * cycle)
        jobs = apply(seen, plan(seen), jobs)
    seen = snapshot([pool], jobs, now_s=NOW_S + 3600)
    assert dict(plan(seen).targets) == {}
    curve = curves(seen.jobs)
    gpus, worth = shares(seen, curve, stake_of(seen, curve), FlowOptions())
    assert (worth[gpus > 0] > 0).all()
    free = int(seen.nodes.free.sum())
    if free:
        assert (seen.jobs.size == min(8, pool.nodes * pool.gpus)).all() or free < 8
