"""ElasticFlow's shares and EdgeFlow's rules, one by one."""

from itertools import product

import numpy as np
import pytest

from scheduler.policies.parts.offload import Cloud, Offload, OffloadOptions, edge_ends, offload
from scheduler.policies.parts.share import Profile, book, end_with_more, fill, satisfy

SIZES = np.array([1, 2, 4])
LINEAR = np.array([1.0, 2.0, 4.0])
INF = float("inf")
#: When two jobs are due at the edge or in the cloud.
DUE_S = np.array([100.0, 100.0])


def shares(gpus: int, work: list[float], deadline_s: list[float], rate: np.ndarray = LINEAR):  # type: ignore[no-untyped-def]
    rates = np.tile(rate, (len(work), 1))
    return satisfy(0.0, gpus, np.array(work), np.array(deadline_s), SIZES, rates)


def test_each_job_gets_the_least_that_is_enough() -> None:
    found = shares(4, [100.0, 100.0], [100.0, 60.0])
    assert found.gpus_now.tolist() == [1, 2]
    assert found.end_s.tolist() == [100.0, 50.0]
    assert found.satisfied.all()
    assert found.idle_now == 1


def test_a_later_deadline_fills_what_an_earlier_one_leaves() -> None:
    # The first takes all four until 25; the second needs 2 on average, so 4 from 25 to 37.5.
    found = shares(4, [100.0, 50.0], [25.0, 40.0])
    assert found.gpus_now.tolist() == [4, 0]
    assert found.end_s.tolist() == [25.0, 37.5 + 12.5 * 0]


def test_a_miss_takes_nothing_from_those_in_time() -> None:
    found = shares(4, [1000.0, 100.0], [10.0, 60.0])
    assert found.satisfied.tolist() == [False, True]
    assert found.gpus_now.tolist() == [2, 2]
    assert found.end_s[0] == pytest.approx(50.0 + (1000 - 100) / 4)


def test_no_gpus_is_never() -> None:
    found = shares(0, [10.0], [50.0])
    assert found.end_s.tolist() == [INF]
    assert not found.satisfied.any()


@pytest.mark.parametrize("gpus", [0, 3, 12, 60, 1000])
def test_all_at_once_is_the_same_as_one_by_one(gpus: int) -> None:
    """Where nobody is in another's way, where all are, and in between."""
    rng = np.random.default_rng(4)
    for _ in range(30):
        n = int(rng.integers(1, 40))
        work, due_s = rng.uniform(1, 100, n), rng.uniform(1, 100, n)
        rate = np.cumsum(rng.uniform(0.1, 1, (n, 3)), axis=1) * (rng.random((n, 3)) < 0.8)
        found = satisfy(0.0, gpus, work, due_s, SIZES, rate)
        profile = Profile(np.zeros(1), np.array([gpus]))
        by_deadline = np.argsort(due_s, kind="stable").tolist()
        late: list[int] = []
        for by_s in (due_s, np.full(n, INF)):  # those that are late come again, without a deadline
            for job in late if by_s[0] == INF else by_deadline:
                may = rate[job] > 0
                own = fill(profile, work[job], SIZES[may], rate[job, may], by_s[job])
                if own.end_s > by_s[job] + 1e-6:
                    late.append(job)
                    continue
                book(profile, own)
                assert found.gpus_now[job] == own.now == found.filling(job).now
                assert found.end_s[job] == pytest.approx(own.end_s)
        assert np.flatnonzero(~found.satisfied).tolist() == sorted(late)
        assert found.idle_now == profile.free[0] == gpus - found.gpus_now.sum()
        assert (found.profile.free >= 0).all()
        assert found.profile.free[-1] == gpus
        assert (found.end_s >= 0).all()
        np.testing.assert_allclose(found.profile.starts_s, profile.starts_s)
        np.testing.assert_array_equal(found.profile.free, profile.free)


def test_with_linear_speed_filling_is_exact() -> None:
    """If it says no, no assignment of constant sizes in deadline order says yes (two jobs)."""
    rng = np.random.default_rng(3)
    for _ in range(80):
        work, deadline = rng.uniform(5, 60, 2), np.sort(rng.uniform(5, 60, 2))
        found = shares(4, work.tolist(), deadline.tolist())
        possible = any(
            work[0] / a <= deadline[0] and work[1] / b <= deadline[1]
            for a, b in product(SIZES.tolist(), repeat=2)
            if a + b <= 4
        )
        assert found.satisfied.all() or not possible


def test_one_size_more_until_the_next_event() -> None:
    """Equation 7: 1 GPU for 100 steps; with 2 for the first 20 s, 60 steps are left at 1 each."""
    profile = Profile(np.array([0.0]), np.array([1]))
    own = fill(profile, 100.0, SIZES[:1], LINEAR[:1], 500.0)
    assert own.end_s == 100.0
    alone = Profile(np.array([0.0, 100.0]), np.array([0, 1]))
    end_s = end_with_more(alone, own, 100.0, SIZES[:2], LINEAR[:2], 20.0)
    assert end_s == pytest.approx(20.0 + 60.0)


# --- EdgeFlow -------------------------------------------------------------------------------------


def cloud(end_s: list[float], grown: list[float] | None = None, idle: bool = False) -> Cloud:
    ends = np.array(end_s)
    return Cloud(ends, np.array(grown or end_s), np.zeros(len(ends), dtype=np.bool_), idle)


def test_rule_1_an_evicted_job_gets_another_server_first() -> None:
    ends = np.array([[90.0, 80.0], [50.0, 50.0]])
    found = offload(DUE_S, cloud([INF, 50.0]), ends, [0, 1], [0], [1], OffloadOptions())
    assert found == [Offload(0, 1, "rule1"), Offload(1, 0, "rule2")]


def test_rule_1_brings_back_first_who_is_late_there_but_not_in_the_cloud() -> None:
    ends = np.array([[200.0], [250.0]])
    deadline_s = np.array([100.0, 110.0])
    found = offload(deadline_s, cloud([90.0, 300.0]), ends, [0], [0, 1], [], OffloadOptions())
    assert found == [Offload(1, 0, "rule1")]


@pytest.mark.parametrize(
    ("idle", "pseudo_code", "moves"),
    [(False, False, 1), (True, False, 0), (False, True, 0), (True, True, 1)],
)
def test_rule_2_needs_a_full_cloud(idle: bool, pseudo_code: bool, moves: int) -> None:
    options = OffloadOptions(rule2_when_idle=pseudo_code)
    fare, ends = cloud([50.0, 50.0], idle=idle), np.array([[90.0], [110.0]])
    found = offload(DUE_S, fare, ends, [0], [], [0, 1], options)
    assert [move.rule for move in found] == ["rule2"] * moves
    assert all(move.job == 0 for move in found), "the other would be late at the edge"


def test_rule_3_sends_the_hopeless_first_and_never_who_is_in_time() -> None:
    deadline_s = np.array([100.0, 100.0, 100.0])
    fare = cloud([50.0, 110.0, 500.0], grown=[50.0, 95.0, 480.0], idle=True)
    ends = np.full((3, 1), 900.0)
    found = offload(deadline_s, fare, ends, [0], [], [0, 1, 2], OffloadOptions())
    assert found == [Offload(2, 0, "rule3")]
    ends = np.full((3, 3), 900.0)
    two = offload(deadline_s, fare, ends, [0, 1, 2], [], [0, 1, 2], OffloadOptions())
    assert [move.job for move in two] == [2, 1]


@pytest.mark.parametrize("first", [True, False])
def test_rule_3_and_jobs_at_their_largest_size(first: bool) -> None:
    fare = Cloud(np.array([150.0, 500.0]), np.array([150.0, 480.0]), np.array([True, False]), True)
    options = OffloadOptions(hopeless_first=first)
    found = offload(DUE_S, fare, np.full((2, 2), 900.0), [0, 1], [], [0, 1], options)
    assert [move.job for move in found] == ([0, 1] if first else [1])


def test_a_job_that_does_not_fit_never_goes() -> None:
    rate, memory = np.array([[1.0], [1.0], [0.0]]), np.array([16.0, 17.0, 1.0])
    jobs = (np.full(3, 10.0), rate, memory)
    ends = edge_ends(0.0, *jobs, np.array([16.0]), np.full((3, 1), 5.0), OffloadOptions())
    assert ends.tolist() == [[15.0], [INF], [INF]]
    late = offload(np.ones(3), cloud([9.0, 9.0, 9.0]), ends, [0], [], [1, 2], OffloadOptions())
    assert late == []


def test_readings_of_memory_and_transfer() -> None:
    one, memory = np.array([10.0]), np.array([16.0])
    args = (0.0, one, np.array([[1.0]]), memory, memory, np.array([[5.0]]))
    assert edge_ends(*args, OffloadOptions(memory_strict=True)).tolist() == [[INF]]
    assert edge_ends(*args, OffloadOptions(transfer=False)).tolist() == [[10.0]]
