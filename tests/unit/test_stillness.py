"""When workers count as stuck."""

import pytest

from runtime.executors.stall import stalled_since_s


@pytest.mark.parametrize(
    ("moved_s", "interval_s", "now_s", "since_s"),
    [
        (None, None, 1e9, None),  # never said a step
        (100.0, None, 699.0, None),
        (100.0, None, 700.0, 100.0),
        (100.0, 1.0, 700.0, 100.0),  # 20 usual steps are shorter
        (100.0, 60.0, 1299.0, None),  # 20 usual steps are longer
        (100.0, 60.0, 1300.0, 100.0),
    ],
)
def test_after_ten_minutes_or_twenty_usual_steps(
    moved_s: float | None, interval_s: float | None, now_s: float, since_s: float | None
) -> None:
    assert stalled_since_s(moved_s, interval_s, 600.0, now_s) == since_s
