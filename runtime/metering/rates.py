"""Rates, means and quantiles over a window, from counters and histograms."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

_KEYS_MAX = 20_000

#: A series: its name and its labels in order.
Key = tuple[str, tuple[tuple[str, str], ...]]


def key_of(name: str, labels: Mapping[str, str]) -> Key:
    """Name a series."""
    return name, tuple(sorted(labels.items()))


@dataclass(frozen=True, slots=True)
class Change:
    """How much series grew over `span_s` seconds. A series that has not grown is in it with 0."""

    span_s: float
    grown: Mapping[Key, float]
    #: Requests in the server at its end less those at its beginning.
    in_flight: float


@dataclass(frozen=True, slots=True)
class _Snapshot:
    at_s: float
    totals: Mapping[Key, float]
    in_flight: float


class CounterHistory:
    """Counters over a window, corrected for restarts of the server.

    A counter that is lower than before began again at zero, as Prometheus' `rate` has it. One that
    is new began at zero since the page before; one that is gone stays where it was.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._raw: dict[Key, float] = {}
        self._totals: dict[Key, float] = {}
        self._snapshots: deque[_Snapshot] = deque()

    def add(self, at_s: float, values: Mapping[Key, float], in_flight: float) -> bool:
        """Take a page's counters; say whether the server was restarted since the page before."""
        if len(self._raw) > _KEYS_MAX:  # labels that come and go without end
            self._raw, self._totals = {}, {}
            self._snapshots.clear()
        restarted = False
        first = not self._snapshots
        for key, value in values.items():
            before = self._raw.get(key)
            if before is None:
                growth = 0.0 if first else value
            elif value < before:
                restarted, growth = True, value
            else:
                growth = value - before
            self._raw[key] = value
            self._totals[key] = self._totals.get(key, 0.0) + growth
        self._snapshots.append(_Snapshot(at_s, dict(self._totals), in_flight))
        # One older than the window stays, so that the span is never shorter than it.
        while len(self._snapshots) > 2 and self._snapshots[1].at_s <= at_s - self._window_s:
            self._snapshots.popleft()
        return restarted

    def change(self) -> Change | None:
        """Give the growth over about the window; None until two pages were seen."""
        if len(self._snapshots) < 2:
            return None
        first, last = self._snapshots[0], self._snapshots[-1]
        if last.at_s <= first.at_s:
            return None
        grown = {key: total - first.totals.get(key, 0.0) for key, total in last.totals.items()}
        return Change(last.at_s - first.at_s, grown, last.in_flight - first.in_flight)


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile read off a histogram."""

    #: Infinite if it lies above the last finite bound.
    value: float
    #: The largest finite bound, which is all that can be said then.
    last_bound: float


def quantile(share: float, buckets: Iterable[tuple[float, float]]) -> Quantile | None:
    """Give a quantile of a histogram, linear within its bucket as Prometheus has it.

    Args:
        share: Which; 0.99 for the p99.
        buckets: Upper bound and cumulative count of each.

    Returns:
        None if nothing was counted, or the counts make no histogram.
    """
    ordered = sorted(buckets)
    if len(ordered) < 2 or not math.isinf(ordered[-1][0]):
        return None
    counts = [count for _, count in ordered]
    total = counts[-1]
    if not (0 < total < math.inf and all(a <= b for a, b in pairwise(counts))):
        return None
    rank = share * total
    below, low = 0.0, 0.0
    last_bound = ordered[-2][0]
    for bound, count in ordered:
        if count >= rank:
            if math.isinf(bound):
                return Quantile(math.inf, last_bound)
            inside = (rank - below) / (count - below) if count > below else 1.0
            return Quantile(low + (bound - low) * inside, last_bound)
        below, low = count, bound
    return None
