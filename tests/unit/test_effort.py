"""Each profile tries a property on its part of the examples, and never on more than were asked."""

import pytest
from hypothesis import settings

from tests.effort import examples


@pytest.mark.parametrize(
    ("profile", "asked", "given"),
    [("laptop", 80, 80), ("quick", 80, 20), ("quick", 3, 3), ("quick", 15, 4), ("ci", 80, 80)],
)
def test_a_profile_has_its_part(profile: str, asked: int, given: int) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        assert examples(asked) == given
    finally:
        settings.load_profile(before)
