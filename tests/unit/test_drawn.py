"""A world that hypothesis draws shrinks to the least that still fails, not to another world."""

import numpy as np
from hypothesis import find, given, settings, strategies as st

from tests.drawn import Draw, Drawn, drawn


@st.composite
def worlds(draw: Draw) -> list[tuple[int, bool]]:
    """Draw jobs as our worlds are made: how many, and of each its size and whether it runs."""
    rng = drawn(draw)
    return [
        (int(rng.integers(1, 9)), bool(rng.random() < 0.5)) for _ in range(int(rng.integers(25)))
    ]


def test_what_fails_shrinks_to_the_least_world() -> None:
    quiet = settings(database=None, derandomize=True, max_examples=500)
    assert find(worlds(), lambda jobs: len(jobs) >= 3, settings=quiet) == [(1, False)] * 3
    large = find(
        worlds(), lambda jobs: sum(size for size, runs in jobs if runs) > 5, settings=quiet
    )
    assert large == [(6, True)]


@st.composite
def numbers(draw: Draw) -> list[object]:
    rng = drawn(draw)
    assert isinstance(rng, Drawn)
    return [
        rng.integers(3, 5),
        rng.integers(2),
        rng.random(),
        rng.uniform(2.0, 3.0),
        rng.choice([7, 8]),
        *rng.integers(0, 4, 3),
        *rng.uniform(1.0, 2.0, 2),
    ]


@given(found=numbers())
def test_draws_are_where_numpys_would_be(found: list[float]) -> None:
    least = np.array([3, 0, 0.0, 2.0, 7, 0, 0, 0, 1.0, 1.0])
    most = np.array([4, 1, 1.0, 3.0, 8, 3, 3, 3, 2.0, 2.0])
    assert (least <= found).all()
    assert (found <= most).all()
    assert found[2] < 1.0
