"""What agents send of the logs of jobs' workers; nothing is decided by it."""

import base64
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.values import Epoch, LogBytes, Name, Note, Rank, Strict

#: No chunk holds more of a log, in bytes.
CHUNK_BYTES = 64 * 1024

#: Why nothing more comes for a reader: all was sent, the time or the bytes asked for are used up,
#: the agent has no such log, or it reads for as many as it may.
LogEnd = Literal["complete", "expired", "missing", "busy"]


class LogChunk(Strict):
    """A piece of what one worker wrote, as it wrote it."""

    TYPE: ClassVar[str] = "tidegate.log.chunk.v1"
    agent: Name
    reader: Name = Field(description="For whom it is, as the request for it said.")
    job: Name
    epoch: Epoch = Field(description="Of the run whose log it is.")
    rank: Rank
    offset: LogBytes = Field(description="Bytes of the log before `content`.")
    content: Annotated[
        str,
        Field(
            pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            max_length=4 * ((CHUNK_BYTES + 2) // 3),
            description="As written, in base64: a program may write what is no text.",
        ),
    ] = ""
    skipped: LogBytes = Field(
        default=0, description="Bytes asked for before `offset` that are not kept any more."
    )
    end: LogEnd | None = Field(default=None, description="Why it is the last; null: more may come.")
    note: Note = ""

    @property
    def written(self) -> bytes:
        """What the worker wrote."""
        return base64.b64decode(self.content)
