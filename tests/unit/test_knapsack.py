"""The multiple-choice knapsack against brute force, and against its own bound."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler.policies.interface import Floats, Ints
from scheduler.policies.parts.knapsack import exact, greedy

SIZES = np.array([0, 1, 2, 3, 4, 8])


def brute(sizes: Ints, value: Floats, start: Ints, gpus: int) -> float:
    every = np.array(list(product(range(len(sizes)), repeat=len(value))))
    extra = sizes[every] - sizes[start]
    fits = (extra >= 0).all(axis=1) & (extra.sum(axis=1) <= gpus)
    return float(value[np.arange(len(value)), every[fits]].sum(axis=1).max())


def check(sizes: Ints, value: Floats, start: Ints, gpus: int, level: Ints, worth: float) -> None:
    rows = np.arange(len(level))
    extra = sizes[level] - sizes[start]
    assert (extra >= 0).all()
    assert extra.sum() <= max(gpus, 0)
    assert np.isfinite(value[rows, level]).all()
    assert worth == pytest.approx(float(value[rows, level].sum()))


#: Few different worths, so that there are many ties, dominated options and steps without gain.
WORTHS = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 4.0, 7.3])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Ints, int]:
    n = draw(st.integers(1, 4))
    row = st.lists(WORTHS, min_size=len(SIZES), max_size=len(SIZES))
    value = np.array(draw(st.lists(row, min_size=n, max_size=n)))
    start = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    rows = np.arange(n)
    value[rows, start] = np.where(np.isfinite(value[rows, start]), value[rows, start], 0.0)
    return value, start, draw(st.integers(0, 20))


@given(problems())
@settings(max_examples=150, deadline=None)
def test_exact_equals_brute_force(problem: tuple[Floats, Ints, int]) -> None:
    value, start, gpus = problem
    found = exact(SIZES, value, start, gpus)
    check(SIZES, value, start, gpus, found.level, found.worth)
    assert found.worth == pytest.approx(brute(SIZES, value, start, gpus))
    assert found.bound == found.worth


@given(problems())
@settings(max_examples=150, deadline=None)
def test_the_greedy_choice_is_within_its_bound(problem: tuple[Floats, Ints, int]) -> None:
    value, start, gpus = problem
    found = greedy(SIZES, value, start, gpus)
    check(SIZES, value, start, gpus, found.level, found.worth)
    best = brute(SIZES, value, start, gpus)
    assert found.worth <= best + 1e-9
    assert best <= found.bound + 1e-9


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_on_large_cases_exact_is_never_worse_and_the_greedy_loses_one_step_at_most(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    n, sizes = int(rng.integers(20, 60)), np.array([0, 1, 2, 4, 8, 16, 32])
    value = np.cumsum(rng.uniform(-0.3, 1.0, (n, len(sizes))), axis=1)
    value[:, 0] = 0.0
    none = np.zeros(n, dtype=np.int64)
    gpus = int(rng.integers(1, 32 * n))
    rough, best = greedy(sizes, value, none, gpus), exact(sizes, value, none, gpus)
    check(sizes, value, none, gpus, best.level, best.worth)
    assert rough.worth <= best.worth + 1e-9
    assert best.worth <= rough.bound + 1e-9
    largest_step = float((value.max(axis=1) - value[:, 0]).max())
    assert best.worth - rough.worth <= largest_step + 1e-9


def test_the_greedy_is_exact_where_worths_are_concave_in_single_gpus() -> None:
    sizes = np.arange(17)
    rng = np.random.default_rng(5)
    gains = -np.sort(-rng.uniform(0, 1, (12, 16)), axis=1)
    value = np.hstack([np.zeros((12, 1)), np.cumsum(gains, axis=1)])
    none = np.zeros(12, dtype=np.int64)
    for gpus in (1, 7, 40, 100, 500):
        assert greedy(sizes, value, none, gpus).worth == pytest.approx(
            np.sort(gains.ravel())[::-1][:gpus].sum()
        )
        assert exact(sizes, value, none, gpus).worth == pytest.approx(
            greedy(sizes, value, none, gpus).worth
        )


def test_a_step_beyond_a_dip_is_found() -> None:
    """16 GPUs gain less per GPU than 32: a greedy of single steps never sees those."""
    sizes = np.array([0, 8, 16, 32])
    value = np.array([[0.0, 4.0, 4.1, 8.0], [0.0, 1.0, 1.1, 1.2]])
    found = exact(sizes, value, np.zeros(2, dtype=np.int64), 40)
    assert sizes[found.level].tolist() == [32, 8]


def test_equal_weights_are_counted_in_their_unit() -> None:
    sizes = np.array([0, 8, 16, 24])
    value = np.array([[0.0, 2.0, 5.0, 6.0]] * 3)
    found = exact(sizes, value, np.zeros(3, dtype=np.int64), 47)
    assert found.worth == pytest.approx(5.0 + 5.0 + 2.0)


def test_nothing_to_share_out_leaves_all_where_they_are() -> None:
    value = np.array([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    assert exact(SIZES, value, np.array([1]), 0).level.tolist() == [1]
    none = exact(SIZES, np.zeros((0, 6)), np.zeros(0, dtype=np.int64), 9)
    assert (none.level.tolist(), none.worth) == ([], 0.0)


def test_too_much_work_gives_the_greedy_choice_and_says_how_far_off_it_may_be() -> None:
    sizes = np.array([0, 3, 5])
    value = np.array([[0.0, 3.0, 5.5], [0.0, 3.1, 5.4]])
    none = np.zeros(2, dtype=np.int64)
    found = exact(sizes, value, none, 6, work_most=0)
    assert found.worth == greedy(sizes, value, none, 6).worth == pytest.approx(5.5)
    best = exact(sizes, value, none, 6)
    assert best.worth == pytest.approx(6.1)
    assert found.bound >= best.worth
