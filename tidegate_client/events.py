"""Server-sent events, read line by line."""

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from tidegate_client.errors import NotKnown


class Head(BaseModel):
    """Where a cell is: the number of its newest entry."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    cell: str
    entry: int | None = None
    now_s: float | None = None
    problem: str | None = None
    #: Why nobody decides in it now, and what to do; None: a scheduler leads.
    nobody_leads: str | None = None
    #: Why nothing can be asked of it, whoever asks; None: it can.
    closed: str | None = None


class Events:
    """What has come of a stream; `last` is the id to go on from."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.begin()

    def begin(self) -> None:
        """Leave out the event of which a broken stream gave a part: it comes anew."""
        self._id = self.last
        self._kind, self._data = "", ""

    def headers(self) -> dict[str, str]:
        """Give the headers by which the gateway goes on where it was left."""
        return {} if self.last is None else {"Last-Event-ID": self.last}

    def take(self, line: str) -> Iterator[Head]:
        """Take a line; give the event that it ends, if it does.

        Raises:
            NotKnown: the gateway ends the stream, since it no longer knows who asks.
        """
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self._id = value
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data += value
        elif not line:
            kind, data, self.last = self._kind, self._data, self._id
            self.begin()
            if kind == "head":
                yield Head.model_validate_json(data)
            elif kind == "end":
                raise NotKnown(401, data or "sign in again", None, None)
