"""Runs one request in a thread of its own, so that it delays nobody and can be abandoned."""

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

#: The most bytes of an answer that are read: a good answer is short.
_ANSWER_BYTES = 64 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes

    @property
    def is_good(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300


class HttpRequest:
    """One HTTP request. It follows no redirect and uses no proxy."""

    def __init__(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """Prepare it.

        Args:
            method: GET or POST.
            url: Where to; of http or https.
            timeout_s: How long to wait for a connection and for each piece of the answer.
            body: What to send.
            headers: Sent with it.
            ca_file: The authorities to trust for https, PEM; None: the system's.
        """
        self._url, self._timeout_s, self._ca_file = urlsplit(url), timeout_s, ca_file
        self._method, self._body, self._headers = method, body, dict(headers or {})
        self._socket: socket.socket | None = None

    def __call__(self) -> Answer:
        """Ask and wait for the answer.

        Raises:
            OSError: there is no connection, or it broke.
            HTTPException: what answers does not speak HTTP.
        """
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        with contextlib.closing(self._connection()) as connection:
            connection.connect()
            self._socket = connection.sock  # the connection drops it while we read
            connection.request(self._method, target, self._body, self._headers)
            with connection.getresponse() as response:
                return Answer(response.status, response.read(_ANSWER_BYTES))

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            tls = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise OSError(f"ca_file: {self._ca_file} cannot be used: {error}") from error
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=tls)

    def give_up(self) -> None:
        """Make the waiting thread give up, even if the answer is coming slowly."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not TLS's own shutdown, which would disturb the reading thread.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class BackgroundCall(Generic[T]):
    """A request under way. Read `answer` and `error` only when it is done."""

    def __init__(
        self, question: Callable[[], T], give_up: Callable[[], None] | None = None
    ) -> None:
        """Begin; `give_up` ends the wait early."""
        self.answer: T | None = None
        #: Why there is no answer; empty if there is one.
        self.error = ""
        self._question, self._give_up = question, give_up
        self._done = threading.Event()
        # A daemon: the agent's end does not wait for a server that hangs.
        threading.Thread(target=self._ask, name="question", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether there is an answer or an error."""
        return self._done.is_set()

    def abandon(self) -> None:
        """Let the thread end soon; its answer is ignored."""
        if self._give_up is not None:
            self._give_up()

    def _ask(self) -> None:
        try:
            self.answer = self._question()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._done.set()
