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


class CellRow(BaseModel):
    """A cell, in short."""

    cell: str
    first: int = Field(description="The first entry that the log still has.")
    entry: int | None
    now_s: float | None
    leader: str | None
    leader_epoch: int | None
    policy: str | None
    nobody_leads: str | None = Field(
        description="Why nobody decides in it now, and what to do; null: a scheduler leads."
    )
    problem: str | None
    closed: str | None = Field(description="Why nothing can be asked of it, if so, whoever asks.")


class CellsAnswer(BaseModel):
    """The cells of the log."""

    cells: list[CellRow]
