"""Storms of half a day break no law; in a file of its own, which another worker runs."""

import os

import pytest

from tests.whole.storm import draw
from tests.whole.world import run


@pytest.mark.parametrize("seed", range(1001, 1004 if os.environ.get("CI") else 1002))
def test_long_storms_break_no_law(seed: int) -> None:
    assert run(draw(seed, hours=12.0)).broken == []
