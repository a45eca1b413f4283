"""Reservations: room from now on is what the search for the earliest room finds first."""

import numpy as np
import pytest

from scheduler.policies.parts.reservations import earliest, free_now
from scheduler.policies.parts.share import Profile


@pytest.mark.parametrize("seed", range(20))
def test_room_is_free_now_if_the_earliest_is_the_first_moment(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    steps = int(numbers.integers(1, 8))
    starts_s = 100.0 + np.append(0.0, numbers.integers(1, 5, steps - 1).cumsum())
    profile = Profile(starts_s, numbers.integers(0, 6, steps))
    for gpus in range(1, 7):
        for run_s in (1.0, 3.0, 7.0, 20.0):
            found = free_now(profile, gpus, run_s)
            assert found == (earliest(profile, gpus, run_s) <= starts_s[0])
