"""How many examples a property is tried on: all in `make test`, a quarter in `make quick`."""

from hypothesis import settings

_USUAL = 100  # hypothesis's own number, which the profile `laptop` keeps


def examples(count: int) -> int:
    """Give `count`, or the part of it that the chosen profile has of the usual examples."""
    return min(count, max(4, count * settings().max_examples // _USUAL))
