"""Computes the load of one replica from its metrics page."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.metering.exposition import Page, Series
from runtime.metering.rates import Change, CounterHistory, Key, Quantile, key_of, quantile
from runtime.metering.servers import Metric, Server

#: Values above these are mistakes of the page.
REQUESTS_MAX = 1e6
RATE_MAX_PER_S = 1e5
LATENCY_MAX_S = 86_400.0
#: What a server says itself is of the last minute: a summary in Prometheus's libraries, as Triton
#: has, is so unless it is told otherwise.
TOLD_OF_S = 60.0


class NoLoadError(Exception):
    """The page does not tell how many requests run and wait; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class ServerReading:
    """The load of one replica; None where the page does not say, or not yet."""

    running: float
    waiting: float
    #: Requests that arrive.
    rate_per_s: float | None = None
    #: Mean time in service, waiting left out where the server tells it apart.
    service_s: float | None = None
    #: Infinite if above what the histogram can tell.
    latency_p99_s: float | None = None
    #: Of requests that ended within this, if the server says it itself; 0: those since last time.
    latency_of_s: float = 0.0
    #: The longest latency that the histogram can tell.
    latency_told_s: float | None = None
    kv_cache_use: float | None = None
    #: What is missing or absurd on the page, in sentences.
    doubts: tuple[str, ...] = ()
    restarted: bool = False


def read_page(server: Server, page: Page, at_s: float, history: CounterHistory) -> ServerReading:
    """Give a replica's load.

    Args:
        server: What its metrics mean.
        page: Its page.
        at_s: When it came, on a clock that nobody sets.
        history: Its counters before; the page's are added.

    Raises:
        NoLoadError: the page does not say how many requests run and wait.
    """
    doubts: list[str] = []
    waiting = _requests(server.waiting, page)
    running = _requests(server.running, page) if server.running else None
    counters = _counters(server, page, doubts)
    restarted = history.add(at_s, counters, waiting + (running or 0.0))
    change = history.change()
    rate_per_s = service_s = None
    p99: Quantile | None = None
    if change is not None:
        rate_per_s = _rate(server, change, doubts)
        service_s = _service_s(server, change)
        p99 = _p99(server, change, doubts)
    if running is None:
        if change is None:
            raise NoLoadError("requests that run follow from the next page")
        if rate_per_s is None or (service_s is None and rate_per_s > 0):
            raise NoLoadError("no rate and duration from which requests that run would follow")
        running = rate_per_s * (service_s or 0.0)
    _absent(server, page, doubts)
    told_p99_s = _gauge(server.latency_p99, page, LATENCY_MAX_S, doubts)
    return ServerReading(
        running=running,
        waiting=waiting,
        rate_per_s=rate_per_s,
        service_s=service_s,
        latency_p99_s=p99.value if p99 is not None else told_p99_s,
        latency_of_s=0.0 if p99 is not None or told_p99_s is None else TOLD_OF_S,
        latency_told_s=p99.last_bound if p99 is not None else told_p99_s,
        kv_cache_use=_share(_gauge(server.kv_cache_use, page, 1.05, doubts)),
        doubts=tuple(doubts),
        restarted=restarted,
    )


# --- gauges ---


def _requests(metrics: Sequence[Metric], page: Page) -> float:
    total = 0.0
    for place, metric in enumerate(metrics):
        value = _value(metric, page)
        if value is None:
            if place == 0:
                raise NoLoadError(f"{' and '.join(metric.names)} is not on the page")
            continue
        if not 0 <= value <= REQUESTS_MAX:
            raise NoLoadError(f"{metric.names[0]} is {value:g}, which no server has")
        total += value
    return total


def _gauge(metric: Metric | None, page: Page, most: float, doubts: list[str]) -> float | None:
    value = None if metric is None else _value(metric, page)
    if value is None or metric is None:
        return None
    if 0 <= value <= most:
        return value
    doubts.append(f"{metric.names[0]} is {value:g}, which cannot be")
    return None


def _share(value: float | None) -> float | None:
    return None if value is None else min(1.0, value)


def _value(metric: Metric, page: Page) -> float | None:
    """Give the metric's figure; None if it is not there."""
    for name in metric.names:
        if rows := _rows(metric, page.series.get(name, ())):
            values = _distinct(metric, rows)
            if any(map(math.isnan, values)):
                return math.nan
            if any(value < 0 for value in values):
                return min(values)
            if metric.aggregate == "max":
                return max(values)
            return math.fsum(values) / (len(values) if metric.aggregate == "mean" else 1)
    return None


def _rows(metric: Metric, rows: Iterable[Series]) -> list[Series]:
    wanted = metric.labels.items()
    found = [row for row in rows if all(row.labels.get(label) == value for label, value in wanted)]
    if "quantile" not in metric.labels:
        return found
    # A summary without observations is NaN by the format's own rule, as of a model without users.
    return [row for row in found if not math.isnan(row.value)]


def _distinct(metric: Metric, rows: Iterable[Series]) -> list[float]:
    """Give the scaled values, one for all that repeat each other."""
    alike: dict[Key, list[float]] = {}
    for row in rows:
        own = {k: v for k, v in row.labels.items() if k not in metric.repeated_by}
        alike.setdefault(key_of("", own), []).append(row.value * metric.scale)
    # max() would take or leave a NaN by its place.
    return [math.nan if any(map(math.isnan, some)) else max(some) for some in alike.values()]


# --- counters ---


def _counters(server: Server, page: Page, doubts: list[str]) -> dict[Key, float]:
    """Give all counters that are read, as they stand, unscaled."""
    found: dict[Key, float] = {}
    for name in sorted(server.counters & page.series.keys()):
        absurd = 0
        for row in page.series[name]:
            if 0 <= row.value < math.inf:
                found[key_of(name, row.labels)] = row.value
            else:
                absurd += 1
        if absurd:
            doubts.append(f"{name}: {absurd} of its series are not what a counter can be")
    return found


def _grown(metric: Metric, change: Change, part: str = "") -> dict[Key, float]:
    """Give the growth of each of its series, under the first of its names that is there."""
    for name in metric.names:
        grown = {
            key: value
            for key, value in change.grown.items()
            if key[0] == name + part and metric.labels.items() <= dict(key[1]).items()
        }
        if grown:
            return grown
    return {}


def _sum(metric: Metric, change: Change, part: str = "") -> float | None:
    grown = _grown(metric, change, part)
    return math.fsum(grown.values()) * metric.scale if grown else None


def _rate(server: Server, change: Change, doubts: list[str]) -> float | None:
    if server.requests is None or (count := _sum(server.requests, change)) is None:
        return None
    if server.requests_are == "completions":
        # What came is what was done and what has piled up since.
        count = max(0.0, count + change.in_flight)
    rate_per_s = count / change.span_s
    if rate_per_s <= RATE_MAX_PER_S:
        return rate_per_s
    doubts.append(f"{server.requests.names[0]} grew by {rate_per_s:.3g} a second, which cannot be")
    return None


def _service_s(server: Server, change: Change) -> float | None:
    """Give the mean time in service; with waiting, so too long, where no better is known."""
    pairs = [(server.service_seconds, "", server.service_count, "")]
    pairs += [(one, "_sum", one, "_count") for one in (server.service, server.latency)]
    for seconds, seconds_part, count, count_part in pairs:
        if seconds is None or count is None:
            continue
        total_s = _sum(seconds, change, seconds_part)
        done = math.fsum(_grown(count, change, count_part).values())
        if total_s is not None and done > 0 and 0 <= total_s / done <= LATENCY_MAX_S:
            return total_s / done
    return None


def _p99(server: Server, change: Change, doubts: list[str]) -> Quantile | None:
    if server.latency is None:
        return None
    buckets: dict[float, float] = {}
    for (name, labels), count in _grown(server.latency, change, "_bucket").items():
        try:
            bound = float(dict(labels).get("le", "nan")) * server.latency.scale
        except ValueError:
            bound = math.nan
        if not bound >= 0:
            doubts.append(f"{name}: a bucket whose bound is no time")
            return None
        buckets[bound] = buckets.get(bound, 0.0) + count
    found = quantile(0.99, buckets.items())
    if found is None and any(buckets.values()):
        doubts.append(f"{server.latency.names[0]} is no histogram: its counts do not ascend")
    return found


def _absent(server: Server, page: Page, doubts: list[str]) -> None:
    """Doubt a page without a figure that this kind of server gives."""
    for metric, part in (
        (server.requests, ""),
        (server.latency, "_bucket"),
        (server.latency_p99, ""),
        (server.kv_cache_use, ""),
    ):
        if metric is not None and not any(name + part in page.series for name in metric.names):
            doubts.append(f"{' and '.join(metric.names)} is not on the page")
