"""ElasticFlow's shares and EdgeFlow's rules, one by one."""

from itertools import product

import numpy as np
import pytest

from scheduler.policies.parts.offload import Cloud, Offload, edge_ends, offload
from scheduler.policies.parts.share import (
    Curve,
    Demand,
    Filling,
    Profile,
    end_with_more,
    fill,
    satisfy,
)

SIZES = np.array([1, 2, 4])
LINEAR = np.array([1.0, 2.0, 4.0])
INF = float("inf")
#: When two jobs are due at the edge or in the cloud.
DUE_S = np.array([100.0, 100.0])


def shares(gpus: int, work: list[float], deadline_s: list[float]) -> tuple[list[Filling], Profile]:
    left = Profile(np.zeros(1), np.array([gpus]))
    todo = zip(work, deadline_s, strict=True)
    return satisfy(left, [Demand(*one, Curve(SIZES, LINEAR)) for one in todo]), left


def test_each_job_gets_the_least_that_is_enough() -> None:
    found, left = shares(4, [100.0, 100.0], [100.0, 60.0])
    assert [own.now for own in found] == [1, 2]
    assert [own.end_s for own in found] == [100.0, 50.0]
    assert left.free[0] == 1


def test_a_later_deadline_fills_what_an_earlier_one_leaves() -> None:
    # The first takes all four until 25; the second needs 2 on average, so 4 from 25 to 37.5.
    found, _ = shares(4, [100.0, 50.0], [25.0, 40.0])
    assert [own.now for own in found] == [4, 0]
    assert [own.end_s for own in found] == [25.0, 37.5]


def test_a_miss_takes_nothing_from_those_in_time() -> None:
    found, _ = shares(4, [1000.0, 100.0], [10.0, 60.0])
    assert [own.now for own in found] == [2, 2]
    assert found[0].end_s == pytest.approx(50.0 + (1000 - 100) / 4)


def test_no_gpus_is_never() -> None:
    (found,), _ = shares(0, [10.0], [50.0])
    assert (found.end_s, found.now) == (INF, 0)


def test_nothing_is_given_out_twice() -> None:
    rng = np.random.default_rng(4)
    for gpus in (3, 12, 60):
        work, due_s = rng.uniform(1, 100, 40).tolist(), rng.uniform(1, 100, 40).tolist()
        found, left = shares(gpus, work, due_s)
        assert left.free[0] == gpus - sum(own.now for own in found)
        assert (left.free >= 0).all()
        assert left.free[-1] == gpus


def test_with_linear_speed_filling_is_exact() -> None:
    """If it says no, no assignment of constant sizes in deadline order says yes (two jobs)."""
    rng = np.random.default_rng(3)
    for _ in range(80):
        work, deadline = rng.uniform(5, 60, 2), np.sort(rng.uniform(5, 60, 2))
        found, _ = shares(4, work.tolist(), deadline.tolist())
        possible = any(
            work[0] / a <= deadline[0] and work[1] / b <= deadline[1]
            for a, b in product(SIZES.tolist(), repeat=2)
            if a + b <= 4
        )
        met = [own.end_s <= due_s + 1e-6 for own, due_s in zip(found, deadline, strict=True)]
        assert all(met) or not possible


def test_one_size_more_until_the_next_event() -> None:
    """Equation 7: 1 GPU for 100 steps; with 2 for the first 20 s, 60 steps are left at 1 each."""
    profile = Profile(np.array([0.0]), np.array([1]))
    own = fill(profile, Demand(100.0, 500.0, Curve(SIZES[:1], LINEAR[:1])))
    assert own.end_s == 100.0
    alone = Profile(np.array([0.0, 100.0]), np.array([0, 1]))
    end_s = end_with_more(alone, own, Demand(100.0, 500.0, Curve(SIZES[:2], LINEAR[:2])), 20.0)
    assert end_s == pytest.approx(20.0 + 60.0)


# --- EdgeFlow -------------------------------------------------------------------------------------


def cloud(end_s: list[float], grown: list[float] | None = None, idle: bool = False) -> Cloud:
    ends = np.array(end_s)
    return Cloud(ends, np.array(grown or end_s), np.zeros(len(ends), dtype=np.bool_), idle)


def test_rule_1_an_evicted_job_gets_another_server_first() -> None:
    ends = np.array([[90.0, 80.0], [50.0, 50.0]])
    found = offload(DUE_S, cloud([INF, 50.0]), ends, [0, 1], [0], [1])
    assert found == [Offload(0, 1, "rule1"), Offload(1, 0, "rule2")]


def test_rule_1_brings_back_first_who_is_late_there_but_not_in_the_cloud() -> None:
    ends = np.array([[200.0], [250.0]])
    deadline_s = np.array([100.0, 110.0])
    found = offload(deadline_s, cloud([90.0, 300.0]), ends, [0], [0, 1], [])
    assert found == [Offload(1, 0, "rule1")]


@pytest.mark.parametrize(("idle", "moves"), [(False, 1), (True, 0)])
def test_rule_2_needs_a_full_cloud(idle: bool, moves: int) -> None:
    fare, ends = cloud([50.0, 50.0], idle=idle), np.array([[90.0], [110.0]])
    found = offload(DUE_S, fare, ends, [0], [], [0, 1])
    assert [move.rule for move in found] == ["rule2"] * moves
    assert all(move.job == 0 for move in found), "the other would be late at the edge"


def test_rule_3_sends_the_hopeless_first_and_never_who_is_in_time() -> None:
    deadline_s = np.array([100.0, 100.0, 100.0])
    fare = cloud([50.0, 110.0, 500.0], grown=[50.0, 95.0, 480.0], idle=True)
    ends = np.full((3, 1), 900.0)
    found = offload(deadline_s, fare, ends, [0], [], [0, 1, 2])
    assert found == [Offload(2, 0, "rule3")]
    ends = np.full((3, 3), 900.0)
    two = offload(deadline_s, fare, ends, [0, 1, 2], [], [0, 1, 2])
    assert [move.job for move in two] == [2, 1]


def test_rule_3_sends_jobs_at_their_largest_size_first() -> None:
    fare = Cloud(np.array([150.0, 500.0]), np.array([150.0, 480.0]), np.array([True, False]), True)
    found = offload(DUE_S, fare, np.full((2, 2), 900.0), [0, 1], [], [0, 1])
    assert [move.job for move in found] == [0, 1]


def test_a_job_that_does_not_fit_never_goes() -> None:
    rate, memory = np.array([[1.0], [1.0], [0.0]]), np.array([16.0, 17.0, 1.0])
    jobs = (np.full(3, 10.0), rate, memory)
    ends = edge_ends(0.0, *jobs, np.array([16.0]), np.full((3, 1), 5.0))
    assert ends.tolist() == [[15.0], [INF], [INF]]
    late = offload(np.ones(3), cloud([9.0, 9.0, 9.0]), ends, [0], [], [1, 2])
    assert late == []
