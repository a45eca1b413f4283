"""What the API answers of reclaims: nodes that go back to their owners, or went.

Fields are only ever added. Moments are in seconds since the Unix epoch, in the log's own time.
"""

from typing import Literal

from pydantic import BaseModel, Field

from explain.documents import ReasonDocument
from gateway.models import Framed


class ReclaimRow(BaseModel):
    """A node that goes back to its owner, or went."""

    node: str
    pool: str | None = Field(description="Null: the state does not know the node any more.")
    gpus: int | None
    state: Literal["going", "back", "lost"] = Field(description="`lost`: it died on loan.")
    called_entry: int = Field(description="Where it was called back.")
    called_s: float
    due_s: float = Field(description="When its owner is expected to need it.")
    saved_s: float | None = Field(description="When the last job that left it had saved its work.")
    empty_s: float | None = Field(description="When its agent was told to hand it back.")
    end_s: float | None = Field(
        description="When its owner had it, or it was lost; null: neither by this moment."
    )
    end_entry: int | None
    late_s: float = Field(description="How much later than due, so far if it still goes.")
    jobs: int = Field(description="How many jobs left it for that.")
    because: ReasonDocument | None


class ReclaimsPage(Framed):
    """Reclaims, newest first."""

    reclaims: list[ReclaimRow]
    next: str | None
