"""Flows: what a client does, as generators that do no input or output themselves.

A flow yields HTTP calls and pauses, and is sent the answers. `Client` runs flows blocking, and
`AsyncClient` on an event loop, so that retries, pages and errors are written once.
"""

import re
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from tidegate_client.errors import (
    NoGateway,
    NotFound,
    TimedOut,
    TooMany,
    Unavailable,
    no_gateway,
    other_answer,
    problem_of,
    retry_after_s,
)

API = "/api/v1"
#: Tries of one call, the first included.
TRIES = 5
#: All pauses between tries of one call together, in seconds.
PATIENCE_S = 60.0
#: What is waited for is looked at again after so many seconds, then more rarely.
_FIRST_LOOK_S = 0.25
_LAST_LOOK_S = 2.0
#: And so rarely at last while the gateway is away.
_AWAY_LOOK_S = 15.0
#: A gateway waits so long for the scheduler's word at most, in seconds.
WAIT_MOST_S = 30.0
#: Statuses with which a call is made again, after a pause.
RETRIED = (429, 502, 503, 504)
_CLOCK = re.compile(r"(?:d(\d+) )?(\d{1,2}):(\d{2})(?::(\d{2}))?")

Model = TypeVar("Model", bound=BaseModel)
Found = TypeVar("Found")
Parameters = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request."""

    method: str
    path: str
    parameters: Parameters = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0  #: So much longer than any other its answer may take.


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


Flow = Generator[Call | Pause, httpx.Response | None, Found]


class Looks:
    """Looks at what is waited for: soon, then more rarely, until time is up.

    Once the gateway has answered, the wait goes on while it is away, as while it is started anew.
    """

    def __init__(self, timeout_s: float, now_s: Callable[[], float]) -> None:
        self._end_s, self._now_s, self._next_s = now_s() + timeout_s, now_s, _FIRST_LOOK_S
        self._answered = False
        #: Why there was no answer to the last look.
        self._away: NoGateway | Unavailable | TooMany | None = None

    def look(self, kind: type[Model], asked: Call) -> Flow[Model | None]:
        """Ask; None: the gateway is away.

        Raises:
            Problem: the gateway answered with another error.
            NoGateway: none has answered yet.
        """
        try:
            answer = yield from call(asked, 1 if self._answered else TRIES)
            found = model_of(kind, answer)
        except (NoGateway, Unavailable, TooMany) as error:
            if not self._answered:
                raise
            self._away = error
            return None
        except NotFound:
            self._answered, self._away = True, None
            raise
        self._answered, self._away = True, None
        return found

    def again(self, late: str) -> Pause:
        """Give the pause until the next look.

        Raises:
            TimedOut: there is no time left; `late` says for what.
        """
        left_s = self._end_s - self._now_s()
        if left_s <= 0:
            raise TimedOut(late if self._away is None else f"{late}; but {self._away}")
        said_s = getattr(self._away, "after_s", None) or 0.0
        next_s = min(self._next_s, _LAST_LOOK_S if self._away is None else _AWAY_LOOK_S)
        self._next_s = next_s * 1.5
        return Pause(min(max(next_s, said_s), left_s))


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the log, as the parameters of a read; with neither `entry` nor `at` it is now."""

    entry: int | None = None
    at: str | None = None
    cell: str | None = None

    def parameters(self) -> dict[str, str | int | float]:
        """Give it as parameters of a read."""
        said = {"entry": self.entry, "at": self.at, "cell": self.cell}
        return {name: value for name, value in said.items() if value is not None}

    def elsewhere(self, at: str | float | datetime | None, entry: int | None) -> "Moment":
        """Give another moment of the same cell.

        Raises:
            ValueError: both, or none, of a moment and an entry are given.
        """
        if (at is None) == (entry is None):
            raise ValueError("name a moment or an entry: at('06:30') or at(entry=500)")
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ValueError("at: give the datetime a time zone, as in tzinfo=UTC")
            at = at.timestamp()
        return Moment(entry, None if at is None else str(at), self.cell)


def call(asked: Call, tries: int = TRIES) -> Flow[httpx.Response]:
    """Make a call, again where the gateway is busy or away; each try has the same idempotency key.

    Args:
        asked: The call.
        tries: How often it is made at most.

    Raises:
        Problem: the gateway answered with an error.
        NoGateway: nobody answered, or who did leads elsewhere.
    """
    waited_s = 0.0
    for tried in range(1, tries + 1):
        said_s: float | None = None
        try:
            answer = yield asked
        except httpx.RequestError as error:
            failed: Exception = no_gateway(error)
        else:
            assert answer is not None
            if answer.status_code < 300:
                return answer
            if answer.status_code < 400:
                raise other_answer(answer)
            failed = problem_of(answer)
            if answer.status_code not in RETRIED:
                raise failed
            said_s = retry_after_s(answer)
        pause_s = 0.2 * 2**tried if said_s is None else said_s
        if tried == tries or waited_s + pause_s > PATIENCE_S:
            raise failed
        waited_s += pause_s
        yield Pause(pause_s)
    raise AssertionError("the last try returns or raises")


def read(
    kind: type[Model], path: str, moment: Moment, parameters: Parameters | None = None
) -> Flow[Model]:
    """Read an answer about a moment."""
    resolved = yield from resolve_moment(moment)
    answer = yield from call(Call("GET", path, {**resolved.parameters(), **(parameters or {})}))
    return model_of(kind, answer)


def model_of(kind: type[Model], answer: httpx.Response) -> Model:
    """Read what was answered.

    Raises:
        NoGateway: no gateway says such a thing.
    """
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        raise other_answer(answer) from error


class _Frame(BaseModel):
    now_s: float
    origin_s: float


def resolve_moment(moment: Moment) -> Flow[Moment]:
    """Turn a time of day, which the API does not take, into the latest moment with that time.

    `06:30` is that of the log's present day if it is past, else that of the day before. `d1 06:30`
    is that of the log's day 1, as the command line counts days. Both are in UTC.
    """
    found = None if moment.at is None else _CLOCK.fullmatch(moment.at)
    if found is None:
        return moment
    cell = Moment(cell=moment.cell).parameters()
    answer = yield from call(Call("GET", "/overview", cell))
    frame = model_of(_Frame, answer)
    day, hour, minute, second = (None if part is None else int(part) for part in found.groups())
    now = datetime.fromtimestamp(frame.now_s, UTC)
    origin = datetime.fromtimestamp(frame.origin_s, UTC)
    begin = now if day is None else origin + timedelta(days=day)
    try:
        wanted = begin.replace(
            hour=hour or 0, minute=minute or 0, second=second or 0, microsecond=0
        )
    except ValueError as error:
        raise ValueError(f"at: {moment.at} is no time of a day; write 06:30 or d1 06:30") from error
    if day is None and wanted > now:
        wanted -= timedelta(days=1)
    return Moment(None, str(wanted.timestamp()), moment.cell)


def new_key() -> str:
    """Make a key: a request that is sent twice with one key takes effect once."""
    return f"client-{secrets.token_hex(8)}"
