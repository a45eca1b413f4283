"""A trend tells growth from a level, and leaves the warm-up out."""

import pytest

from tests.chaos.trend import Trend


def test_a_figure_that_grows_shows_its_slope_and_its_quarters() -> None:
    trend = Trend(warm_s=100.0)
    trend.add(0.0, 1000.0)  # before it is warm
    for step in range(8):
        trend.add(100.0 + 360.0 * step, 50.0 + step)
    found = trend.summary()
    assert found["samples"] == 8
    assert found["per_hour"] == pytest.approx(10.0)
    assert (found["first_quarter"], found["last_quarter"], found["max"]) == (50.5, 56.5, 57.0)


def test_a_level_figure_and_a_single_sample_have_no_slope() -> None:
    level = Trend()
    for step in range(4):
        level.add(10.0 * step, 3.0)
    assert level.summary()["per_hour"] == pytest.approx(0.0, abs=1e-9)
    one = Trend(warm_s=60.0)
    one.add(0.0, 5.0)
    assert one.summary()["per_hour"] == 0.0
