"""What both clients share: the gateway that they ask, the moment of their reads, and HTTP."""

import copy
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

import httpx

from tidegate_client.contexts import Place, checked_url
from tidegate_client.errors import NoGateway, Problem, no_gateway
from tidegate_client.events import Events
from tidegate_client.flow import API, RETRIED, TRIES, Call, Moment

#: How long a call may take, in seconds; a wait for an outcome comes on top.
TIMEOUT_S = 30.0
#: Between a stream that broke and the next, in seconds.
AGAIN_S = 2.0
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
Self = TypeVar("Self", bound="ClientBase[Any]")


def options(place: Place, transport: Any) -> dict[str, Any]:
    """Give the options of httpx that both clients have."""
    url = checked_url(place.url)
    headers = {"Accept": "application/json", "User-Agent": "tidegate-client"}
    if place.token is not None:
        headers["Authorization"] = f"Bearer {place.token}"
    return {
        "base_url": f"{url}{API}",
        "headers": headers,
        "timeout": TIMEOUT_S,
        "transport": transport,
        # This machine is reached without the proxies of its environment.
        "trust_env": url.startswith("https:"),
    }


class ClientBase(Generic[Http]):
    """What asks a gateway about one moment of a log: a client, or the list of its jobs."""

    def __init__(self, http: Http, moment: Moment) -> None:
        self._http: Http = http
        self._moment = moment

    def at(
        self: Self, at: str | float | datetime | None = None, *, entry: int | None = None
    ) -> Self:
        """Give the same client, or job, at a moment of the log; they share their connections.

        Args:
            at: ISO 8601 or seconds since the Unix epoch, in the log's time; `06:30`, the last time
                that it was so late there; `d1 06:30`, of its day 1. UTC unless it says otherwise.
            entry: Or after this entry of the journal.

        Raises:
            ValueError: both are given, or neither.
        """
        found = copy.copy(self)
        found._moment = self._moment.elsewhere(at, entry)
        return found

    def _request(self, call: Call) -> httpx.Request:
        """Write a call as an HTTP request."""
        request: httpx.Request = self._http.build_request(
            call.method,
            call.path,
            params=dict(call.parameters) or None,
            json=call.body,
            headers=dict(call.headers),
            timeout=httpx.Timeout(TIMEOUT_S, read=TIMEOUT_S + call.wait_s),
        )
        return request


class HeadStream(Events):
    """A stream of `Head`s, which is opened again where it broke."""

    def __init__(self, moment: Moment) -> None:
        """Follow the moment's cell."""
        super().__init__()
        self._broken = 0
        self._cell = Moment(cell=moment.cell).parameters()

    def asked(self) -> Mapping[str, Any]:
        """Give what the stream is opened with; it says something every 15 s."""
        self.begin()
        timeout = httpx.Timeout(TIMEOUT_S, read=60.0)
        return {"params": self._cell, "headers": self.headers(), "timeout": timeout}

    def goes_on(self) -> None:
        """Note that the gateway sent something."""
        self._broken = 0

    def refused(self, problem: Problem) -> None:
        """Note that there is no stream now: what stands before a gateway says so while it is away.

        Raises:
            Problem: there will be none, or it was said too often.
        """
        if problem.status not in RETRIED or self._broken >= TRIES:
            raise problem

    def broke(self, error: httpx.TransportError | None) -> None:
        """Note that the stream ended; it may be opened again `AGAIN_S` later.

        Raises:
            NoGateway: it did so too often.
        """
        if error is not None and self._broken >= TRIES:
            raise no_gateway(error)
        self._broken += 1
        if self._broken > TRIES:
            raise NoGateway("the gateway ends each stream at once")
