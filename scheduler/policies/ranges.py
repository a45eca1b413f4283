"""Which numbers an option of a policy may be: said where it is declared, refused at the start.

A policy whose option is nonsense would fail at its first decision, and at every one after it. So an
option's type says its range: one of these, or `Annotated` with bounds of its own. An option whose
type has no range is a number from 0 to a thousand million.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

#: What an option whose type has no range may be; in seconds, some 30 years.
LEAST, MOST = 0.0, 1e9
#: Above 0: it divides, or 0 would mean never to end.
Positive = Annotated[float, Field(gt=0.0, le=MOST)]
#: Part of a whole.
Share = Annotated[float, Field(ge=0.0, le=1.0)]
#: Part of a whole, and some of it.
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]
#: Of ranks, lengths and speeds: beyond, all but the extremes would be nothing.
Power = Annotated[float, Field(ge=-8.0, le=8.0)]


def out_of_range(value: object) -> bool:
    """Whether a number is outside `LEAST` to `MOST`; of a table or a tuple, whether any is."""
    if isinstance(value, int | float):
        return not LEAST <= value <= MOST
    if isinstance(value, Mapping):
        return any(map(out_of_range, value.values()))
    return isinstance(value, tuple) and any(map(out_of_range, value))
