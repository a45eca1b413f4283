"""Which numbers an option of a policy may be: said where it is declared, refused at the start.

A policy whose option is nonsense would fail at its first decision, and at every one after it. So
the type of an option that is a number is one of these, or `Annotated` with bounds of its own.
"""

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

#: The largest number; in seconds, some 30 years.
MOST = 1e9
#: The smallest beside 0: to divide by much less overflows, and what is taken to the power of it
#: cannot be told from 1. No larger than that, or logs that name what worked would not replay.
LEAST = 1e-9


def _not_tiny(value: float) -> float:
    if 0.0 < abs(value) < LEAST:
        raise PydanticCustomError(
            "tiny", "input should be 0, or {least} from it at least", {"least": LEAST}
        )
    return value


_Float = Annotated[float, AfterValidator(_not_tiny)]
#: Of anything.
Amount = Annotated[_Float, Field(ge=0.0, le=MOST)]
#: Above 0: it divides, or 0 would mean never to end.
Positive = Annotated[float, Field(ge=LEAST, le=MOST)]
#: How many.
Count = Annotated[int, Field(ge=0, le=int(MOST))]
#: Part of a whole.
Share = Annotated[_Float, Field(ge=0.0, le=1.0)]
#: Part of a whole, and some of it.
PositiveShare = Annotated[float, Field(ge=LEAST, le=1.0)]
#: Of ranks, lengths and speeds: beyond, all but the extremes would be nothing.
Power = Annotated[_Float, Field(ge=-8.0, le=8.0)]
