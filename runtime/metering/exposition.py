"""Prometheus and OpenMetrics text: the only module that knows its parser.

Only wanted series are parsed in full; of other lines only the shape is checked. A page of an
inference server has hundreds of series, of which we read thirty, and a mistake in another metric
must not keep us from reading these.
Format: prometheus.io/docs/instrumenting/exposition_formats.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

#: The most series read of one page; more is a mistake, and costs the agent its CPU.
SERIES_MAX = 10_000
#: The longest line of a wanted one; the parser takes the square of its length.
_LINE_CHARS_MAX = 16_384
_EOF = "# EOF"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?=[ \t{])")


class MalformedError(Exception):
    """The text is not what a metrics page is; the message names the line."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: labels and value. The value may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """A parsed page."""

    #: The names of all series on it, as written: `x_bucket`, `x_total`.
    names: frozenset[str]
    #: The wanted series, by name.
    series: Mapping[str, list[Series]]


def parse(text: str, wanted: Collection[str]) -> Page:
    """Read the series of the wanted names.

    Raises:
        MalformedError: a line is neither a comment nor a series, a wanted one cannot be read, or
            there are more than `SERIES_MAX` wanted ones.
    """
    names: set[str] = set()
    series: dict[str, list[Series]] = {}
    count = 0
    lines = text.split("\n")
    # The format ends every line; half a number is a number too. OpenMetrics may end with its mark.
    if lines[-1] not in ("", _EOF):
        raise MalformedError(f"line {len(lines)}: the page is cut off here")
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith(("#", '{"')):  # a quoted name is none that we know
            continue
        match = _NAME.match(line)
        if match is None:
            raise MalformedError(f"line {number}: no metric begins with {line[:40]!r}")
        name = match.group()
        names.add(name)
        if name in wanted:
            count += 1
            if count > SERIES_MAX:
                raise MalformedError(
                    f"line {number}: more than {SERIES_MAX} series of the wanted names; give the"
                    " address of one server, not of a federation"
                )
            series.setdefault(name, []).append(_series(number, line))
    return Page(frozenset(names), series)


def _series(number: int, line: str) -> Series:
    if len(line) > _LINE_CHARS_MAX:
        raise MalformedError(f"line {number}: has more than {_LINE_CHARS_MAX} characters")
    try:
        if " # " in line:  # an exemplar, or a label with that in it
            return _parsed(line)
        head, brace, tail = line.rpartition("}")
        labels = _labels(head + brace) if brace else {}
        value, *stamps = tail.split() if brace else line.split()[1:]
        if any("_" in number for number in (value, *stamps)):  # which Python would read
            raise ValueError
        list(map(float, stamps))
        return Series(labels, float(value))
    # The parser is lax and leaves its own slips on broken lines uncaught.
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        raise MalformedError(f"line {number}: cannot read {line[:80]!r}") from None


@lru_cache(maxsize=4096)
def _labels(head: str) -> Mapping[str, str]:
    """Give the labels of a line's beginning, which is the same on the next page."""
    return _parsed(f"{head} 0").labels


def _parsed(line: str) -> Series:
    (family,) = text_string_to_metric_families(line)
    (sample,) = family.samples
    return Series(sample.labels, float(sample.value))
