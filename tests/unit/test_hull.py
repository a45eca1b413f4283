"""Sharing out where the next GPU gains most: against every way to share a few."""

from itertools import product

import numpy as np
import pytest

from scheduler.policies.interface import Floats, Ints
from scheduler.policies.parts import hull
from scheduler.policies.parts.hull import Steps, climb, climb_anew, grow, take

NO = -np.inf


def none(rows: int) -> Ints:
    return np.zeros(rows, dtype=np.int64)


def best(sizes: Ints, value: Floats, gpus: int) -> float:
    """Return the most that any levels are worth which need at most so many GPUs in all."""
    rows, levels = value.shape
    return max(
        float(value[range(rows), picked].sum())
        for picked in product(range(levels), repeat=rows)
        if sizes[list(picked)].sum() <= gpus
    )


def worth(value: Floats, level: Ints) -> float:
    return float(value[np.arange(len(level)), level].sum())


def test_a_hull_leaves_out_what_gains_less_than_what_comes_after() -> None:
    """4 GPUs are worth nothing over 2, 8 much more: one step of 6, not a stop at 2."""
    sizes = np.array([0, 1, 2, 4, 8])
    steps = climb(sizes, np.array([[0.0, 4.0, 5.0, 5.0, 11.0]]), none(1))
    assert steps.end.tolist() == [1, 4]
    assert steps.cost.tolist() == [1, 7]
    assert steps.slope.tolist() == [4.0, 1.0]


def test_steps_are_in_order_of_slope_then_row_and_each_hull_in_its_own() -> None:
    sizes = np.array([0, 1, 2, 4])
    value = np.array([[0.0, 2.0, 3.0, 4.0], [0.0, 2.0, 4.0, 5.0], [0.0, NO, NO, NO]])
    steps = climb(sizes, value, none(3))
    assert steps.row.tolist() == [0, 1, 0, 0, 1]
    assert (np.diff(steps.slope) <= 0).all()
    assert [steps.fitting(gpus) for gpus in (-1, 0, 1, 2, 3, 4, 9)] == [0, 0, 1, 1, 2, 3, 5]


def test_who_begins_where_it_may_not_be_has_no_steps() -> None:
    """Minus infinity at the start would make every gain of that job no number at all."""
    value = np.array([[NO, 2.0, 3.0], [0.0, 2.0, 2.5], [NO, NO, NO]])
    assert set(climb(np.array([0, 1, 2]), value, none(3)).row.tolist()) == {1}
    assert grow(np.array([0, 1, 2]), value, none(3), none(3) + 2, 9).tolist() == [0, 2, 0]


def test_nobody_grows_beyond_its_cap_or_from_above_it() -> None:
    sizes, value = np.array([0, 1, 2, 4]), np.tile([0.0, 3.0, 5.0, 8.0], (3, 1))
    level = grow(sizes, value, np.array([0, 2, 3]), np.array([1, 3, 0]), 9)
    assert level.tolist() == [1, 3, 3]
    assert grow(sizes, value, np.array([0, 2, 3]), np.array([1, 3, 0]), 0).tolist() == [0, 2, 3]


def test_what_the_first_refused_step_leaves_is_used() -> None:
    """A step to 8 does not fit into 6: smaller steps are taken first, then sizes in between."""
    sizes = np.array([0, 1, 2, 4, 8])
    value = np.array([[0.0, 1.0, 1.5, 1.5, 1.5], [0.0, 2.0, 4.0, 8.0, 16.0]])
    steps = climb(sizes, value, none(2))
    assert steps.end.tolist() == [4, 1, 2]
    level, left = take(sizes, value, none(2), steps, 6)
    assert (sizes[level].tolist(), left) == ([2, 4], 0)
    level, left = take(sizes, value, none(2), steps, 3)
    assert (sizes[level].tolist(), left) == ([2, 1], 0)


@pytest.mark.parametrize(("concave", "bound"), [(True, 1.0), (False, 0.92)])
def test_it_is_the_best_on_concave_curves_and_near_it_on_any(concave: bool, bound: float) -> None:
    """On curves that are not concave the last steps may be missed: a knapsack's rest."""
    rng = np.random.default_rng(5)
    sizes = np.array([0, 1, 2, 3] if concave else [0, 1, 2, 4, 8])
    found = most = 0.0
    for _ in range(80):
        gains = rng.uniform(0, 1, (4, len(sizes) - 1))
        gains = -np.sort(-gains, axis=1) if concave else gains * np.diff(sizes)
        value = np.concatenate((np.zeros((4, 1)), np.cumsum(gains, axis=1)), axis=1)
        gpus = int(rng.integers(0, 13))
        level = grow(sizes, value, none(4), none(4) + len(sizes) - 1, gpus)
        assert sizes[level].sum() <= gpus
        most += best(sizes, value, gpus)
        found += worth(value, level)
    assert bound * most <= found + 1e-9 <= most + 1e-6


@pytest.mark.parametrize("seed", range(40))
def test_few_jobs_climb_as_many_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever way steps are found, they are the same, in the same order, also where equal."""
    rng = np.random.default_rng(seed)
    n, groups = int(rng.integers(1, 30)), int(rng.integers(1, 4))
    sizes = np.concatenate(([0], np.cumsum(rng.integers(1, 4, int(rng.integers(1, 9))))))
    value = rng.integers(-2, 12, (groups * n, len(sizes))).astype(np.float64)
    value[rng.random(value.shape) < 0.3] = NO
    value[:, 0] = 0.0
    start = rng.integers(0, len(sizes), groups * n)
    found = []
    for most in (0, 10**9):
        monkeypatch.setattr(hull, "_AT_ONCE", most)
        steps = climb(sizes, value, start, groups)
        found.append([steps.row, steps.end, steps.cost, steps.slope])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("seed", range(80))
def test_who_climbs_as_before_has_the_same_steps(seed: int) -> None:
    """Steps that are taken over are those that a climb finds, in its order, also where equal."""
    rng = np.random.default_rng(seed)
    sizes, n = np.array([0, 1, 2, 4, 8]), int(rng.integers(1, 40))
    values, starts = [], []
    for _ in range(2):
        values.append(rng.integers(-2, 12, (n, len(sizes))).astype(np.float64))
        if seed % 2:  # none are equal
            values[-1] += rng.random(values[-1].shape)
        values[-1][rng.random(values[-1].shape) < 0.3] = NO
        values[-1][:, 0] = 0.0
        starts.append(rng.integers(0, len(sizes), n))
    same = rng.random(n) < rng.choice([0.5, 0.8, 0.95, 1.0])
    values[1][same], starts[1][same] = values[0][same], starts[0][same]
    before = climb(sizes, values[0], starts[0])
    anew = climb_anew(sizes, values[1], starts[1], before, same)
    whole = climb(sizes, values[1], starts[1])
    for one, other in zip(*map(columns, (anew, whole)), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def columns(steps: Steps) -> list[Ints | Floats]:
    return [steps.row, steps.end, steps.cost, steps.slope]


def test_where_nothing_can_be_gained_there_are_no_steps() -> None:
    steps = climb(np.array([0, 1, 2]), np.zeros((4, 3)), np.zeros(4, dtype=np.int64))
    assert [len(part) for part in (steps.row, steps.end, steps.cost, steps.slope)] == [0] * 4
