"""The law of quotas finds who comes to too much, and accuses nobody of what ran before."""

from typing import Any

import orjson
import pytest

from bus.contract import Record
from schemas.topics import JOURNAL
from tests.whole.laws_quotas import beyond_quotas

Fact = tuple[str, dict[str, Any]]


def accepted(*jobs: str) -> list[Fact]:
    return [("JobAccepted", {"job": job, "spec": {"tenant": "t"}}) for job in jobs]


def sized(name: str, job: str, gpus: int) -> Fact:
    return name, {"job": job, "allocation": {"n": list(range(gpus))}}


def quota(gpus: int, jobs: int | None = None) -> Fact:
    return "QuotaSet", {"tenant": "t", "gpus": gpus, "jobs": jobs}


def found(*facts: Fact, policy: str = "plain") -> list[str]:
    entries = [
        {"data": {"number": n, "at_s": 0.0, "policy": policy, "decision": {"facts": [fact]}}}
        for n, fact in enumerate([*accepted("a", "b"), *facts])
    ]
    records = [Record(JOURNAL.name, 0, "", orjson.dumps(one), {}, 0.0) for one in entries]
    return list(beyond_quotas(records, {"t": 4}, "rationing"))


START_A, START_B = sized("GangStarting", "a", 4), sized("GangStarting", "b", 2)


def test_a_configured_quota_holds_under_its_policy_alone() -> None:
    assert found(START_A, START_B) == []
    assert found(START_A, policy="rationing") == []
    assert "has 6 of 4 GPUs" in found(START_A, START_B, policy="rationing")[0]


@pytest.mark.parametrize("policy", ["plain", "rationing"])
def test_a_quota_that_was_set_holds_instead_until_it_is_cleared(policy: str) -> None:
    cleared = "QuotaCleared", {"tenant": "t"}
    assert found(quota(6), START_A, START_B, policy=policy) == []
    assert "has 6 of 5 GPUs" in found(quota(5), START_A, START_B, policy=policy)[0]
    assert found(quota(0), cleared, START_A, policy=policy) == []


def test_a_quota_of_no_gpus_lets_nothing_start() -> None:
    assert "has 4 of 0 GPUs" in found(quota(0), START_A)[0]


def test_what_ran_or_was_claimed_when_a_quota_became_less_goes_on() -> None:
    assert found(START_A, quota(2), sized("GangScaling", "a", 3)) == []
    assert found(sized("TargetSet", "a", 4), quota(2), START_A) == []
    claimed_later = found(quota(2), sized("TargetSet", "a", 4), START_A)
    assert "has 4 of 2 GPUs" in claimed_later[0]
    dropped = found(sized("TargetSet", "a", 4), ("TargetDropped", {"job": "a"}), quota(2), START_A)
    assert "has 4 of 2 GPUs" in dropped[0]


def test_a_move_to_no_more_gpus_is_no_growth() -> None:
    moves = [sized("TargetSet", "a", 4), ("JobMigrating", {"job": "a"}), START_A]
    assert found(START_A, quota(2), *moves) == []


def test_a_gang_that_leaves_has_no_gpu_any_more_that_it_has_left() -> None:
    def released(*gpus: int) -> Fact:
        return "GpusReleased", {"job": "a", "node": "n", "gpus": list(gpus)}

    stops = "GangStopping", {"job": "a", "reason": "failed"}
    rationed = {"policy": "rationing"}
    assert found(START_A, released(2, 3), stops, START_B, **rationed) == []
    assert "has 5 of 4 GPUs" in found(START_A, released(3), stops, START_B, **rationed)[0]
    shrinks = sized("GangScaling", "a", 3), released(3)
    assert "has 5 of 4 GPUs" in found(START_A, *shrinks, START_B, **rationed)[0]


def test_jobs_are_counted_too() -> None:
    assert "has 2 of 1 jobs" in found(quota(9, 1), START_A, START_B)[0]
    assert found(quota(9, 1), START_A, ("JobQueued", {"job": "a"}), START_B) == []
