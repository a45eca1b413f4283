"""What the API answers of the gateway itself: whether it reads the log, how far its index is."""

from pydantic import BaseModel, Field


class IndexHealth(BaseModel):
    """The index of a cell."""

    entries: int
    building: bool
    done: float = Field(description="0 to 1.")
    bytes: int
    notice: str | None


class CellHealth(BaseModel):
    """How a cell is read."""

    cell: str
    entry: int | None
    now_s: float | None
    problem: str | None
    index: IndexHealth


class Health(BaseModel):
    """How the gateway is."""

    status: str = Field(description="`ok`, `starting` or `unreadable`.")
    version: str
    log: str
    problem: str | None
    cells: list[CellHealth]
    streams: int
    past_bytes: int
