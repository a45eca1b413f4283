"""Which numbers an option of a policy may be: said where it is declared, refused at the start.

A policy whose option is nonsense would fail at its first decision, and at every one after it. So
the type of an option that is a number is one of these, or `Annotated` with bounds of its own.
"""

from typing import Annotated

from pydantic import Field

#: The largest number; in seconds, some 30 years.
MOST = 1e9
#: Of anything.
Amount = Annotated[float, Field(ge=0.0, le=MOST)]
#: Above 0: it divides, or 0 would mean never to end.
Positive = Annotated[float, Field(gt=0.0, le=MOST)]
#: How many.
Count = Annotated[int, Field(ge=0, le=int(MOST))]
#: Part of a whole.
Share = Annotated[float, Field(ge=0.0, le=1.0)]
#: Part of a whole, and some of it.
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]
#: Of ranks, lengths and speeds: beyond, all but the extremes would be nothing.
Power = Annotated[float, Field(ge=-8.0, le=8.0)]
