"""How gradient noise grows with the batch, from changes of the batch."""

import math

import numpy as np
import pytest

from scheduler.estimator.noise import Measured, Trend


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


def test_a_job_that_changes_its_batch_tells_once_it_is_sure() -> None:
    trend, noise = Trend(), Measured()
    assert noise.now() is None
    for value in (90.0, 100.0, 1000.0):
        noise.show(64.0, value, trend)
    assert noise.now() == (64.0, 100.0)
    for value in (200.0, 150.0):
        noise.show(128.0, value, trend)
        assert (noise.now(), trend.version) == ((64.0, 100.0), 0)
    noise.show(128.0, 140.0, trend)
    assert (noise.now(), trend.version) == ((128.0, 150.0), 1)
    assert trend.times(128.0, 64.0) == pytest.approx(1.5)
    # What was hardly measured says nothing of a change.
    noise.show(256.0, 500.0, trend)
    for _ in range(3):
        noise.show(512.0, 900.0, trend)
    assert trend.version == 2
    assert trend.times(512.0, 256.0) > 1.5  # from 128 to 512, as the batch


def test_a_job_without_noise_tells_nothing() -> None:
    trend, noise = Trend(), Measured()
    for batch, value in ((64.0, 0.0), (128.0, 5.0)):
        for _ in range(3):
            noise.show(batch, value, trend)
    assert (noise.now(), trend.version) == ((128.0, 5.0), 0)
