"""Storms of eight hours, in which telemetry grows too old to be kept, break no law.

In a file of its own, which another worker runs.
"""

import os

import pytest

from tests.whole.storm import draw
from tests.whole.world import run


@pytest.mark.parametrize("seed", range(1001, 1021 if os.environ.get("CI") else 1003))
def test_long_storms_break_no_law(seed: int) -> None:
    assert run(draw(seed, hours=8.0)).broken == []
