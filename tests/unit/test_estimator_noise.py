"""How gradient noise grows with the batch, from changes of the batch."""

import math

import numpy as np
import pytest

from scheduler.estimator.noise import Trend


def grown(*changes: tuple[float, float, float]) -> Trend:
    trend = Trend()
    for change in changes:
        trend.saw(*change)
    return trend


def test_nothing_seen_is_the_same_noise_at_all_batches() -> None:
    assert Trend().times([1.0, 64.0, 1e6], 64.0).tolist() == [1.0, 1.0, 1.0]


def test_it_goes_on_as_was_seen_up_and_down() -> None:
    trend = grown((64.0, 256.0, 2.0))  # half as much growth as of the batch
    assert trend.times([256.0, 64.0, 16.0, 1024.0], 64.0) == pytest.approx([2.0, 1.0, 0.5, 4.0])
    assert trend.times(64.0, 256.0) == pytest.approx(0.5)
    assert grown((256.0, 64.0, 0.5)).times(256.0, 64.0) == pytest.approx(2.0)


def test_each_octave_has_its_own_slope_and_short_changes_count_more() -> None:
    steep, flat, long = (
        [(64.0, 128.0, 2.0)] * 3,
        [(128.0, 256.0, 1.0)] * 3,
        [(64.0, 256.0, 4.0)] * 3,
    )
    trend = grown(*steep, *flat, *long)
    assert trend.times([128.0, 256.0], 64.0) == pytest.approx([2.0, 2.0])
    trend = grown(*steep, *flat[:2], *long[:0])  # two are not enough
    usual = np.median([1.0] * 3 + [0.0] * 2)
    assert trend.times(256.0, 128.0) == pytest.approx(2.0**usual)


def test_one_that_is_far_off_is_outvoted_and_slopes_are_bounded() -> None:
    changes = [(64.0, 128.0, 1.5)] * 4
    trend = grown(*changes, (64.0, 128.0, 1e9))
    assert trend.times(128.0, 64.0) == pytest.approx(1.5)
    assert grown((64.0, 128.0, 1e9)).times(128.0, 64.0) == pytest.approx(2.0)
    assert grown((64.0, 128.0, 0.1)).times(128.0, 64.0) == pytest.approx(1.0)


@pytest.mark.parametrize("ratio", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_figure_is_left_out(ratio: float) -> None:
    trend = grown((64.0, 128.0, ratio), (64.0, 65.0, 1.5), (0.0, 64.0, 2.0), (64.0, 0.0, 2.0))
    assert trend.version == 0
    assert trend.times(128.0, 64.0) == 1.0


def test_only_the_newest_count() -> None:
    trend = grown(*[(64.0, 128.0, 2.0)] * 10, *[(64.0, 128.0, 1.0)] * 64)
    assert trend.times(128.0, 64.0) == pytest.approx(1.0)
