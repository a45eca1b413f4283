"""Readiness probes of servers, by address: http://, https://, tcp:// or file://.

    http://127.0.0.1:8000/health    a GET is answered with a status of 200 to 299
    tcp://127.0.0.1:8000            the connection is accepted
    file:///run/llm/ready           the file is there (it is removed before the server starts)

Each probe runs in a thread of its own: a server that hangs delays nobody else.
"""

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from runtime.http_client import HttpRequest
from runtime.threads import in_thread

_TIMEOUT_S = 5.0


class Readiness:
    """Probes one server, and remembers that it was ready."""

    def __init__(self, url: str) -> None:
        """Probe this address; empty: a server that runs is ready.

        Raises:
            ValueError: it is no address of these kinds.
        """
        self._url = url
        self._parts = _parts(url) if url else None
        self._call: Future[bool] | None = None
        self._give_up: Callable[[], None] = lambda: None  #: Lets its thread end soon.
        self.is_ready = False

    def reset(self, *, starts: bool) -> None:
        """Forget the answers; `starts`: the server will be started, so its file is removed.

        Raises:
            OSError: the file cannot be removed.
        """
        self.is_ready = False
        if self._call is not None:
            self._give_up()
            self._call = None
        if starts and self._parts is not None and self._parts.scheme == "file":
            Path(unquote(self._parts.path)).unlink(missing_ok=True)

    def ask(self) -> None:
        """Continue probing, until it has been ready once."""
        if self.is_ready:
            return
        if self._parts is None:
            self.is_ready = True
        elif self._parts.scheme == "file":
            self.is_ready = Path(unquote(self._parts.path)).exists()
        elif self._call is None:
            self._call = self._begin(self._parts)
        elif self._call.done():
            self.is_ready = self._call.exception() is None and self._call.result()
            self._call = None

    def _begin(self, parts: SplitResult) -> Future[bool]:
        if parts.scheme == "tcp":
            place = (parts.hostname or "", parts.port or 0)
            return in_thread(lambda: _takes_connections(place))
        question = HttpRequest("GET", self._url, timeout_s=_TIMEOUT_S)
        self._give_up = question.give_up
        return in_thread(lambda: question().is_good)


def _takes_connections(place: tuple[str, int]) -> bool:
    with contextlib.closing(socket.create_connection(place, timeout=_TIMEOUT_S)):
        return True


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    match parts.scheme:
        case "http" | "https":
            known = bool(parts.hostname)
        case "tcp":
            known = bool(parts.hostname and parts.port)
        case "file":
            known = parts.path.startswith("/")
        case _:
            known = False
    if not known:
        raise ValueError(
            f"ready: {url!r} is no address to ask; give http://HOST:PORT/PATH, tcp://HOST:PORT or "
            "file:///PATH"
        )
    return parts
