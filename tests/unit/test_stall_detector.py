"""When workers count as stuck, and when they are killed for it."""

import pytest

from runtime.executors.sections import WorkerOptions
from runtime.executors.stall_detector import StallDetector


def look(
    detector: StallDetector,
    moved_s: float | None,
    now_s: float,
    begun_s: float | None = 0.0,
    interval_s: float | None = None,
) -> None:
    detector.look(
        now_s, moved_s=moved_s, step_interval_s=interval_s, begun_s=begun_s, step=7, epoch=1
    )


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
    detector = StallDetector(WorkerOptions(), "j")
    look(detector, moved_s, now_s, interval_s=interval_s)
    assert detector.kill_reason is None
    assert detector.since_s == since_s


@pytest.mark.parametrize(("begun_s", "since_s"), [(100.0, 100.0), (None, None)])
def test_who_reported_steps_before_is_expected_to_from_its_beginning(
    begun_s: float | None, since_s: float | None
) -> None:
    detector = StallDetector(WorkerOptions(), "j", is_resumed=True)
    look(detector, None, 699.0, begun_s)
    assert detector.since_s is None
    look(detector, None, 700.0, begun_s)
    assert detector.since_s == since_s


def test_a_stuck_gang_is_killed_once_and_only_if_it_is_said_so() -> None:
    spared = StallDetector(WorkerOptions(), "j")
    look(spared, 0.0, 600.0)
    assert (spared.kill_reason, spared.end_by_s) == (None, None)
    ended = StallDetector(WorkerOptions(end_stuck=True), "j")
    look(ended, 0.0, 599.0)
    assert ended.kill_reason is None
    for now_s in (600.0, 601.0):
        look(ended, 0.0, now_s)
    assert ended.kill_reason == "stuck: alive, but no step after 7"
    assert ended.end_by_s == 600.0


def test_time_in_which_nobody_could_look_does_not_count() -> None:
    """A machine that was suspended, or whose clock was set, ended all its gangs."""
    detector = StallDetector(WorkerOptions(end_stuck=True), "j")
    for now_s in (101.0, 690.0, 4000.0, *range(4060, 4478, 60), 4478.0):
        look(detector, 100.0, now_s)
        assert detector.kill_reason is None
    look(detector, 100.0, 4479.0)
    assert detector.kill_reason is not None, "1 s, twice a minute, and 479 s"
    moved = StallDetector(WorkerOptions(end_stuck=True), "j")
    look(moved, 100.0, 101.0)
    for now_s in (4000.0, *range(4060, 4600, 60), 4599.0):
        look(moved, 4000.0, now_s)
        assert moved.kill_reason is None
    look(moved, 4000.0, 4600.0)
    assert moved.kill_reason is not None, "it took a step as it came back"


def test_who_looks_rarely_notices_it_later() -> None:
    """A cluster may be asked every few minutes alone (`poll_s`)."""
    detector = StallDetector(WorkerOptions(end_stuck=True), "j")
    for now_s in range(0, 3000, 300):
        look(detector, 0.0, now_s)
        assert detector.kill_reason is None
    look(detector, 0.0, 3000.0)
    assert detector.kill_reason is not None


def test_who_takes_steps_again_is_not_stuck_any_more() -> None:
    detector = StallDetector(WorkerOptions(), "j")
    look(detector, 0.0, 600.0)
    look(detector, 601.0, 602.0)
    assert detector.since_s is None
