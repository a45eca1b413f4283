"""The envelope of every message: CloudEvents 1.0, structured JSON, the same bytes everywhere.

Required attributes and `subject`, `time`, `datacontenttype` are the specification's; `sequence`
is its documented extension (a string, since the JSON format's integers end at 32 bits); `bootid`,
`cell`, `causationid`, `expirytime` and `traceparent` are extensions as it allows.
"""

from datetime import UTC, datetime
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

TypeName = TypeVar("TypeName", bound=str)
Data = TypeVar("Data")

Uri = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Digits = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,18})$")]

#: Wide enough for the name of a source, its bootid and a sequence number.
Id = Annotated[str, StringConstraints(min_length=1, max_length=192)]

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


class Envelope(BaseModel, Generic[TypeName, Data]):
    """One CloudEvent. `source` and `id` identify it; `source` and `sequence` order it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    specversion: Literal["1.0"]
    id: Id = Field(description="Unique among the messages of the source; repeats are the same.")
    source: Uri = Field(description="Who says it: /agents/NAME, /tenants/NAME, /schedulers/CELL.")
    type: TypeName
    time: AwareDatetime = Field(description="When it happened, as the source's clock says.")
    subject: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        description="What it is about: the node, job, pool or command."
    )
    datacontenttype: Literal["application/json"] = "application/json"
    sequence: Digits = Field(description="Position among the source's messages of this bootid.")
    bootid: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        description="Higher with each start of the source; the sequence starts again with each."
    )
    cell: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,32}$")] = "default"
    causationid: Id | None = Field(default=None, description="The message that led to this one.")
    expirytime: AwareDatetime | None = Field(
        default=None, description="From then on nobody may act on it."
    )
    traceparent: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="W3C trace context."
    )
    data: Data

    @property
    def time_s(self) -> float:
        """The moment it was said, in seconds since the Unix epoch."""
        return self.time.timestamp()


def moment(time_s: float) -> datetime:
    """Seconds since the Unix epoch as the aware datetime that envelopes carry."""
    return datetime.fromtimestamp(time_s, UTC)
