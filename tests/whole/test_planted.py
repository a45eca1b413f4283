"""Where a defence is taken away storms find it."""

import pytest

from tests.whole.planted import PLANTED
from tests.whole.storm import draw
from tests.whole.world import run

#: A planted fault is found within so many storms that have what can find it.
FOUND_IN = 100
#: Long enough for leases to end.
HOURS = 2.0
#: Where to begin, for what few storms find: those before it find nothing and take long.
BEGIN = {
    "answered_before_stored": 6,
    "cells_wait_for_each_other": 6,
    "lease_ignored": 27,
    "nothing_known": 2,
    "nothing_reclaimed": 4,
    "quotas_forgotten": 19,
    "set_quotas_forgotten": 35,
    "steps_believed": 4,
    "supervisors_forget": 30,
}


@pytest.mark.parametrize("name", PLANTED)
def test_storms_find_what_a_missing_defence_lets_through(name: str) -> None:
    planted = PLANTED[name]
    seeds = range(BEGIN.get(name, 1), FOUND_IN + 1)
    storms = (draw(seed, HOURS, planted.kinds) for seed in seeds)
    with planted.take_away():
        found = next((one.seed for one in storms if planted.found(run(one))), None)
    assert found is not None


def test_a_run_that_is_cut_off_finds_nothing() -> None:
    outcome = run(draw(1, HOURS), real_s=0.05)
    assert outcome.stuck
    assert outcome.broken
    assert not [name for name, planted in PLANTED.items() if planted.found(outcome)]
