"""What a bridge tells an agent: which of its messages Kafka holds, so that it may forget them.

Several bridges share the messages of one agent, so each says exactly which numbers it has stored,
never "all below". An agent sends again what no bridge has named for a while.
"""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from schemas.values import Name, Strict

#: More pieces than this go into a second message.
RANGES_MAX = 256

Number = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Range(Strict):
    """Sequence numbers from `first` to `last`, both included."""

    first: Number
    last: Number

    @model_validator(mode="after")
    def _ascends(self) -> "Range":
        if self.last < self.first:
            raise ValueError(f"last: {self.last} is below first, {self.first}")
        return self


class HorizonReached(Strict):
    """Kafka holds these messages of one boot of the agent."""

    TYPE: ClassVar[str] = "tidegate.horizon.v1"
    agent: Name
    boot: Annotated[int, Field(ge=0, le=2**31 - 1, description="Their `bootid`.")]
    stored: Annotated[list[Range], Field(min_length=1, max_length=RANGES_MAX)]
