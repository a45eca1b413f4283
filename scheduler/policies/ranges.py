"""Which numbers an option of a policy may be: said where it is declared, refused at the start.

A policy that raises is found out at its first decision, and then at every one. So an option's type
says its range: one of these, or `Annotated` with bounds of its own. One that says nothing is a
number from 0 to a thousand million.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

#: What an option that says nothing may be; in seconds, some 30 years.
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
    """Whether a number, or one of several, is not what options are that say nothing."""
    if isinstance(value, int | float):
        return not LEAST <= value <= MOST
    if isinstance(value, Mapping):
        return any(map(out_of_range, value.values()))
    return isinstance(value, tuple) and any(map(out_of_range, value))
