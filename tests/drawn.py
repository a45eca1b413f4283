"""Chance that hypothesis draws, in the place of numpy's: a case that fails shrinks draw by draw.

A test that draws a seed and makes a world of it shrinks the seed, which makes another world, no
smaller one. `Drawn` has what our worlds use of a numpy `Generator`. One number is one draw, which
shrinks; an array comes from a seed that is drawn once, since its length is what matters.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

_BELOW_1 = float(np.nextafter(1.0, 0.0))
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Drawn:
    """Draws as a `numpy.random.Generator` does."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._rows: np.random.Generator | None = None

    @property
    def rows(self) -> np.random.Generator:
        """What arrays are drawn from."""
        if self._rows is None:
            self._rows = np.random.default_rng(self._draw(st.integers(0, 2**32 - 1)))
        return self._rows

    def integers(self, low: int, high: int | None = None, size: Any = None) -> Any:
        if size is not None:
            return self.rows.integers(low, high, size)
        first, end = (0, low) if high is None else (low, high)
        return self._draw(st.integers(first, end - 1))

    def random(self, size: Any = None) -> Any:
        """Shrink towards 1: what `random() < chance` adds, the least world is without."""
        if size is not None:
            return self.rows.random(size)
        return _BELOW_1 - self.uniform(0.0, 1.0)

    def uniform(self, low: float, high: float, size: Any = None) -> Any:
        if size is not None:
            return self.rows.uniform(low, high, size)
        return self._draw(st.floats(low, high, exclude_max=low < high))

    def choice(self, values: Sequence[Any], size: Any = None) -> Any:
        if size is not None:
            return self.rows.choice(values, size)
        return values[self._draw(st.integers(0, len(values) - 1))]

    def spawn(self, count: int) -> list[Any]:
        return [self] * count


def drawn(draw: Draw) -> np.random.Generator:
    """Give what a function that expects a `Generator` can draw from."""
    return cast("np.random.Generator", Drawn(draw))
