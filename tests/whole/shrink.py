"""Makes a storm that breaks a law smaller: fewer blows, fewer jobs, while the law stays broken.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (TSE 2002):
halves, then quarters, and so on. We stop after so many runs rather than at the very least.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.whole.storm import Storm

T = TypeVar("T")
#: The most runs that one storm is worth.
RUNS_MAX = 120


def shrink(storm: Storm, breaks: Callable[[Storm], bool]) -> Storm:
    """Give a smaller storm that breaks a law too."""
    left = [RUNS_MAX]

    def still(tried: Storm) -> bool:
        left[0] -= 1
        return left[0] >= 0 and breaks(tried)

    blows = _fewer(storm.blows, lambda kept: still(replace(storm, blows=tuple(kept))))
    storm = replace(storm, blows=tuple(blows))
    jobs = _fewer(storm.jobs, lambda kept: still(replace(storm, jobs=tuple(kept))))
    return replace(storm, jobs=tuple(jobs))


def _fewer(items: Sequence[T], still: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    size = len(items) // 2
    while size:
        start = 0
        while start < len(items):
            fewer = [*items[:start], *items[start + size :]]
            if still(fewer):
                items = fewer
            else:
                start += size
        size //= 2
    return items
