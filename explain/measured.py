"""What a node last measured of its GPUs."""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.events import NodeMeasured


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over a node's GPUs; None: none of them is measured."""

    busy: float | None  #: 0 to 1.
    memory_mib: float | None  #: In use, of each GPU.

    @classmethod
    def of(cls, said: NodeMeasured) -> "Measured":
        """Take the means of a measurement."""
        return cls(_mean(said.gpu_utilisation), _mean(said.gpu_memory_used_mib))


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest measurement of a node."""

    used: Measured
    at_s: float  #: When it was stored.
    said_s: float  #: When it was said, by its agent's clock.


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
