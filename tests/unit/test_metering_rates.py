"""Counters over a window, and quantiles."""

import math

import pytest
from hypothesis import given, strategies as st

from runtime.metering.rates import Change, CounterHistory, quantile

A = ("a", (("x", "1"),))
B = ("b", ())


def changed(history: CounterHistory) -> Change:
    change = history.change()
    assert change is not None
    return change


def test_growth_needs_two_pages_and_starts_with_the_first() -> None:
    history = CounterHistory(60.0)
    history.add(0.0, {A: 1000.0}, 5.0)
    assert history.change() is None
    history.add(10.0, {A: 1030.0}, 8.0)
    change = changed(history)
    assert (change.span_s, change.grown, change.in_flight) == (10.0, {A: 30.0}, 3.0)


def test_the_window_slides() -> None:
    history = CounterHistory(20.0)
    for second in range(0, 101, 10):
        history.add(float(second), {A: float(second**2)}, 0.0)
    change = changed(history)
    assert (change.span_s, change.grown[A]) == (20.0, 100.0**2 - 80.0**2)


def test_a_restart_counts_from_zero_and_is_told() -> None:
    history = CounterHistory(60.0)
    assert not history.add(0.0, {A: 1000.0, B: 5.0}, 0.0)
    assert history.add(10.0, {A: 7.0, B: 6.0}, 0.0)
    assert changed(history).grown == {A: 7.0, B: 1.0}


def test_series_that_come_late_or_go_for_a_while() -> None:
    history = CounterHistory(60.0)
    history.add(0.0, {A: 1000.0}, 0.0)
    history.add(10.0, {B: 3.0}, 0.0)
    history.add(20.0, {A: 1004.0, B: 3.0}, 0.0)
    assert changed(history).grown == {A: 4.0, B: 3.0}


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=2, max_size=30))
def test_growth_is_never_negative_and_never_more_than_what_was_counted(
    steps: list[tuple[float, bool]],
) -> None:
    history, value, counted = CounterHistory(1e9), 0.0, 0.0
    for second, (growth, restart) in enumerate(steps):
        value = growth if restart else value + growth
        if second:
            counted += growth
        history.add(float(second), {A: value}, 0.0)
    change = changed(history)
    # A restart that passes the old count is taken for growth, so it may be less.
    assert -1e-6 <= change.grown[A] <= counted * (1 + 1e-9) + 1e-6


def test_quantiles_are_linear_within_a_bucket() -> None:
    buckets = [(math.inf, 100.0), (1.0, 50.0), (2.0, 99.0), (4.0, 100.0)]
    found = quantile(0.99, buckets)
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert quantile(0.5, buckets) is not None
    assert quantile(0.25, buckets).value == pytest.approx(0.5)  # type: ignore[union-attr]


def test_above_the_last_bound_nothing_more_can_be_told() -> None:
    found = quantile(0.99, [(1.0, 10.0), (math.inf, 20.0)])
    assert found is not None
    assert (found.value, found.last_bound) == (math.inf, 1.0)


@pytest.mark.parametrize(
    "buckets",
    [
        [],
        [(math.inf, 5.0)],
        [(1.0, 5.0), (2.0, 6.0)],
        [(1.0, 5.0), (math.inf, 4.0)],
        [(1.0, 0.0), (math.inf, 0.0)],
        [(1.0, math.nan), (math.inf, 3.0)],
    ],
)
def test_what_is_no_histogram_has_no_quantile(buckets: list[tuple[float, float]]) -> None:
    assert quantile(0.99, buckets) is None


@given(
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=50),
    st.lists(st.floats(0.1, 50.0), min_size=1, max_size=8, unique=True),
)
def test_a_p99_lies_in_the_bucket_of_the_value_at_its_rank(
    values: list[float], bounds: list[float]
) -> None:
    ends = [*sorted(bounds), math.inf]
    found = quantile(0.99, [(end, float(sum(v <= end for v in values))) for end in ends])
    exact = sorted(values)[math.ceil(0.99 * len(values)) - 1]
    bucket = next(end for end in ends if exact <= end)
    assert found is not None
    assert found.value <= bucket * (1 + 1e-9)
    assert found.value >= max((end for end in ends if end < bucket), default=0.0) - 1e-9
