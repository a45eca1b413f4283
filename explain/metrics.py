"""What jobs report of themselves over time, such as a loss: curves, from entries of the journal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

#: Points of one curve, at most.
POINTS = 1000
#: An entry that tells of such a report holds these bytes.
WANTED = (b'"JobMeasured"',)
_Row = TypeVar("_Row")


class Sample(NamedTuple):
    """The newest values that a job had reported by a moment, in seconds since the Unix epoch."""

    at_s: float
    step: int
    metrics: Mapping[str, float]


#: By name, in their order: moment, step and value of each point.
Curves = Mapping[str, Sequence[tuple[float, int, float]]]


def samples_in(at_s: float, decision: Mapping[str, Any]) -> Iterator[tuple[str, Sample]]:
    """Give what an entry tells of such reports, by job."""
    for kind, fields in decision.get("facts", ()):
        if kind == "JobMeasured":
            yield fields["job"], Sample(float(at_s), fields["step"], fields["metrics"])


def curves_of(samples: Iterable[Sample], most: int = POINTS) -> Curves:
    """Give the curves of a job's samples, of which each has at most so many points.

    A job that is moved goes on from its last checkpoint: then steps fall, while time never does.
    """
    found: dict[str, list[tuple[float, int, float]]] = {}
    for sample in samples:
        for name, value in sample.metrics.items():
            found.setdefault(name, []).append((sample.at_s, sample.step, value))
    return {name: thinned(found[name], most) for name in sorted(found)}


def thinned(rows: Sequence[_Row], most: int) -> Sequence[_Row]:
    """Give at most so many of some rows, at even distances; the last stays."""
    stride = max(1, -(-len(rows) // most))
    return rows[::-1][::stride][::-1]


def in_words(metrics: Mapping[str, float]) -> str:
    """Say values in a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()))
