"""Where a defence is taken away storms find it."""

import pytest

from tests.whole.planted import PLANTED
from tests.whole.storm import draw
from tests.whole.world import run

#: A planted fault is found within so many storms that have what can find it.
FOUND_IN = 100
#: Long enough for leases to end.
HOURS = 2.0


@pytest.mark.parametrize("name", PLANTED)
def test_storms_find_what_a_missing_defence_lets_through(name: str) -> None:
    planted = PLANTED[name]
    storms = (draw(seed, HOURS, planted.kinds) for seed in range(1, FOUND_IN + 1))
    with planted.take_away():
        found = next((one.seed for one in storms if run(one).broken), None)
    assert found is not None
