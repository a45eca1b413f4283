"""Shares as people write them."""

import pytest

from explain.shares import few, percent
from explain.wording import Wording
from scheduler.policies.interface import Need, Reason


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0, "0%"), (0.001, "<1%"), (0.01, "1%"), (0.29, "29%"), (0.57, "57%"), (0.5, "50%"),
        (0.996, "99%"), (1.0, "100%"), (0.999_999, "99%"),
    ],
)  # fmt: skip
def test_nothing_is_done_before_it_is(share: float, said: str) -> None:
    assert percent(share) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"), (0.001234, "0.00123"), (1.0, "1"), (12.34, "12.3"), (999.0, "999"),
        (999.6, "1,000"), (1023.0, "1,023"), (1024.0, "1,024"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_a_large_number_is_written_in_full(value: float, said: str) -> None:
    assert few(value) == said


def test_in_a_large_fleet_what_there_is_and_what_is_wanted_are_told_apart() -> None:
    needs = (Need("gpus_above_base", 1023.0, 1024.0),)
    reason, wording = Reason("job", "waits", "gang.capacity", needs=needs), Wording(0.0)
    assert "is 1,023 of 1,024 GPUs" in wording.sentence(reason)
    assert wording.need(needs[0]).endswith("1,023 now, must rise to 1,024")
    assert wording.value("lost_gpu_s", 3600.0 * 512) == "512 GPU h"
