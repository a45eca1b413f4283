"""Storms break no law; in a file of its own, which another worker runs."""

import os

import pytest

from tests.whole.storm import draw
from tests.whole.world import run

FIRST, CHUNK = 151, 10
SEEDS = 150 if os.environ.get("CI") else 10


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_more_storms_break_no_law(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert run(draw(seed)).broken == [], f"make simulate-faults SEEDS=1 SEED={seed} VERBOSE=1"
