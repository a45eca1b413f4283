"""From sizes to plans: who keeps, who moves, where gangs go."""

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase, Plan, Reason
from scheduler.policies.parts.allot import KEEP, Allotment, Because, allot
from tests.snapshots import Job, Pool, faults, snapshot

SIZES = (1, 2, 4, 6, 8, 12)
TRAIN = Pool("train", nodes=3, gpus=4)


def sizes(*gpus: int) -> np.ndarray:
    return np.array(gpus, dtype=np.int64)


def placed(plan: Plan) -> dict[str, dict[str, int] | None]:
    return {
        name: None if target is None else dict(target.placement)
        for name, target in plan.targets.items()
    }


def test_large_gangs_get_whole_nodes_and_small_ones_the_fullest_that_fits() -> None:
    seen = snapshot([TRAIN], [Job("a"), Job("b", sizes=SIZES), Job("c"), Job("d")], sizes=SIZES)
    plan = allot(seen, Allotment(sizes(1, 6, 2, 0), "test.rule"))
    got = placed(plan)
    assert sum((got["b"] or {}).values()) == 6
    assert sorted((got["b"] or {}).values()) == [2, 4]
    assert len(got["a"] or {}) == len(got["c"] or {}) == 1
    assert set(got) == {"a", "b", "c"}
    assert not faults(seen, plan)
    (waits,) = [reason for reason in plan.reasons if reason.verb == "waits"]
    assert (waits.subject, waits.rule) == ("d", "test.rule")


def test_who_keeps_the_size_keeps_the_place() -> None:
    jobs = [
        Job("a", held={"train-000": 2, "train-001": 2}),
        Job("b", held={"train-002": 2}),
        Job("c"),
    ]
    seen = snapshot([TRAIN], jobs)
    plan = allot(seen, Allotment(sizes(4, KEEP, 4), "test.rule", why={2: Because("test.c")}))
    assert set(plan.targets) == {"c"}
    assert sum((placed(plan)["c"] or {}).values()) == 4
    assert [reason.rule for reason in plan.reasons] == ["test.c"]
    assert not faults(seen, plan)


def test_the_whole_reason_of_a_job_is_told_where_it_waits_alone() -> None:
    seen = snapshot([TRAIN], [Job("a"), Job("b"), Job("c")])
    waits = {row: Reason(name, "waits", "test.waits") for row, name in enumerate("ab")}
    plan = allot(seen, Allotment(sizes(4, 0, 0), "test.rule", waits=waits))
    told = [(reason.subject, reason.verb, reason.rule) for reason in plan.reasons]
    assert told == [
        ("a", "starts", "test.rule"),
        ("b", "waits", "test.waits"),
        ("c", "waits", "test.rule"),
    ]


def test_what_is_given_up_is_there_for_others() -> None:
    seen = snapshot([TRAIN], [Job("a", held={"train-000": 4}), Job("b", sizes=SIZES)], sizes=SIZES)
    plan = allot(seen, Allotment(sizes(0, 12), "test.rule"))
    assert placed(plan) == {"a": None, "b": {"train-000": 4, "train-001": 4, "train-002": 4}}
    assert [(r.subject, r.verb) for r in plan.reasons] == [("a", "preempts"), ("b", "starts")]
    assert not faults(seen, plan)


def test_who_moves_now_is_left_alone() -> None:
    seen = snapshot([TRAIN], [Job("a", held={"train-000": 4}, moving=True), Job("b")])
    plan = allot(seen, Allotment(sizes(0, 8), "test.rule"))
    assert set(plan.targets) == {"b"}
    assert not faults(seen, plan)


def test_nobody_stays_on_a_node_that_goes_back() -> None:
    lent = Pool(
        "infer", Kind.INFERENCE, nodes=2, gpus=4, loan=(LoanPhase.RECLAIMING, LoanPhase.LENT)
    )
    seen = snapshot(
        [TRAIN, lent], [Job("a", held={"infer-000": 2}), Job("b", held={"infer-001": 2})]
    )
    pools = np.array([seen.pools.ids.index(name) for name in ("train", "infer")])
    wanted = Allotment(sizes(2, 2), "test.rule", pool=pools)
    plan = allot(seen, wanted)
    assert set(plan.targets) == {"a"}
    assert plan.targets["a"] is not None
    assert plan.targets["a"].pool == "train"
    assert not faults(seen, plan)


def test_gpus_given_out_twice_are_a_bug_with_a_name() -> None:
    seen = snapshot([TRAIN], [Job("a"), Job("b")])
    with pytest.raises(RuntimeError, match="b shall get 8 GPUs of 4 free ones"):
        allot(seen, Allotment(sizes(8, 8), "test.rule"))


def test_from_the_node_with_most_free_again_and_again() -> None:
    seen = snapshot([TRAIN], [Job("a", held={"train-001": 1}), Job("b")])
    plan = allot(seen, Allotment(sizes(KEEP, 6), "test.rule", style="most_free"))
    assert placed(plan) == {"b": {"train-000": 4, "train-002": 2}}
    plan = allot(seen, Allotment(sizes(KEEP, 1), "test.rule", style="most_free"))
    assert placed(plan) == {"b": {"train-000": 1}}
    plan = allot(seen, Allotment(sizes(KEEP, 1), "test.rule"))
    assert placed(plan) == {"b": {"train-001": 1}}
