"""What the API takes and answers of requests of people: fields are only ever added.

Moments are in seconds since the Unix epoch, in the log's own time.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from explain.acts import Act
from gateway.models import Framed
from schemas.requests import VerbData
from schemas.values import Note


class RequestBody(BaseModel):
    """What is asked for. Who asks is not to be said: the gateway knows."""

    model_config = ConfigDict(extra="forbid")

    args: Annotated[VerbData, Field(discriminator="verb")] = Field(
        description="The verb and its arguments."
    )
    reason: Note = ""
    dry_run: bool = Field(
        default=False, description="Only say what would come of it now; nothing is written."
    )


class JobFileBody(BaseModel):
    """The file of a job, as it is written, and what a form says beside it."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="JSON, if it begins with a brace; else YAML.")
    form: dict[str, Any] | None = Field(
        default=None, description="What a form says, as a file does, and before it: a whole job."
    )


class JobFileAnswer(BaseModel):
    """What a job's file says, under the names that `job.submit` has."""

    fields: dict[str, Any] = Field(description="Those of `spec` that it says; of a form, all.")
    deadline_after_s: float | None = Field(description="Its `deadline`, counted from submission.")


class RequestAnswer(BaseModel):
    """A request, and what came of it so far."""

    cell: str
    request: str = Field(description="Its id.")
    result: Literal["pending", "done", "refused", "dead_letter", "would_be_done"]
    entry: int | None = Field(description="The entry of the journal that tells of it.")
    field: str = Field(description="What the scheduler refused it for; else empty.")
    refused_because: str
    subject: str
    role: str
    tenant: str | None
    via: str
    verb: str
    about: str
    args: dict[str, Any] = Field(description="The verb and its arguments, as they were asked.")
    reason: str
    asked_s: float
    expires_s: float = Field(description="What is pending is not done after that.")
    nobody_leads: str | None = Field(
        default=None,
        description="Of what is pending: why no scheduler takes it now; it waits for one.",
    )
    note: str | None = Field(
        default=None,
        description="Of a `dry_run`: what it may be refused for that nobody looked at.",
    )


class ActsPage(Framed):
    """What people asked for, newest first."""

    acts: list[Act]
    next: str | None
