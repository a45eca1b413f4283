"""No schedule has more jobs in time than the bound says, nor does a job with fewer GPU seconds."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from benchmarks.deadline_bound import GPUS_PER_NODE, SIZES, needed, together
from simulator.physics.base import Placement
from simulator.physics.elasticflow import Overhead

_JOB = st.tuples(st.integers(0, 8), st.integers(1, 8), st.integers(1, 12))
_STEP = st.tuples(st.sampled_from(SIZES), st.floats(0.0, 500.0))


def _fit(jobs: list[tuple[int, int, int]], gpus: int) -> bool:
    """Say if jobs that may be divided in every way all have what they need in their windows."""
    starts, ends = {start for start, _, _ in jobs}, {start + long for start, long, _ in jobs}
    return all(
        sum(need for start, long, need in jobs if begin <= start and start + long <= end)
        <= gpus * (end - begin)
        for begin in starts
        for end in ends
        if begin < end
    )


@given(st.lists(_JOB, min_size=1, max_size=6), st.integers(1, 3))
def test_no_set_of_jobs_that_fits_is_larger(jobs: list[tuple[int, int, int]], gpus: int) -> None:
    largest = max(
        count
        for count in range(len(jobs) + 1)
        if any(_fit(list(some), gpus) for some in combinations(jobs, count))
    )
    start, long, need = np.array(jobs, dtype=np.float64).T
    assert largest <= together(start, start + long, need, gpus) + 1e-9


def test_it_is_as_many_as_there_is_time_for() -> None:
    zero, ten = np.zeros(3), np.full(3, 10.0)
    # 40 GPU seconds for jobs of 16: two and a half.
    assert together(zero, ten, np.full(3, 16.0), 4) == pytest.approx(2.5)
    # Least first: 8 and 16 are in, and 16 of 24.
    assert together(zero, ten, np.array([24.0, 8.0, 16.0]), 4) == pytest.approx(2.0 + 16.0 / 24.0)
    # One that has its own time beside them is in, too; one that is late alone is not.
    apart = np.array([0.0, 0.0, 10.0])
    assert together(apart, apart + 10.0, np.full(3, 40.0), 4) == pytest.approx(2.0)
    assert together(zero, ten, np.array([8.0, math.inf, 8.0]), 4) == pytest.approx(2.0)


def _placed(gpus: int) -> Placement:
    return tuple((node, min(GPUS_PER_NODE, gpus)) for node in range(max(1, gpus // GPUS_PER_NODE)))


@given(
    st.lists(st.floats(0.1, 1.0), min_size=len(SIZES), max_size=len(SIZES)),
    st.lists(_STEP, min_size=1, max_size=4),
)
def test_no_run_of_a_job_takes_less(gains: list[float], steps: list[tuple[int, float]]) -> None:
    rates, overhead = np.cumsum(gains), Overhead()
    at: Placement = ()
    work = took_s = gpu_s = 0.0
    for size, long_s in steps:
        pause_s = overhead.pause_s(at, _placed(size), first=not at) if _placed(size) != at else 0.0
        at = _placed(size)
        work += float(rates[SIZES.index(size)]) * long_s
        took_s += pause_s + long_s
        gpu_s += size * (pause_s + long_s)
    free, paid = needed(work, rates, took_s * (1 + 1e-9), overhead)
    assert free <= paid <= gpu_s * (1 + 1e-6)


def test_a_job_that_is_late_alone_needs_more_than_there_is() -> None:
    rates = np.array(SIZES, dtype=np.float64)
    # 640 at 64 a second, and the start: 10 s are too few for the pause.
    assert needed(640.0, rates, 10.0, Overhead()) == (640.0, math.inf)
    assert needed(641.0, rates, 10.0, Overhead()) == (math.inf, math.inf)
