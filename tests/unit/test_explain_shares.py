"""Shares as people write them."""

import pytest

from explain.shares import percent


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0, "0%"), (0.001, "<1%"), (0.01, "1%"), (0.29, "29%"), (0.57, "57%"), (0.5, "50%"),
        (0.996, "99%"), (1.0, "100%"), (0.999_999, "99%"),
    ],
)  # fmt: skip
def test_nothing_is_done_before_it_is(share: float, said: str) -> None:
    assert percent(share) == said
