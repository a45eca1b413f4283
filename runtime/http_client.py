"""The one HTTP client: one request, one answer, within a limit of time and a limit of size.

It follows no redirect, uses no proxy and keeps no connection. Every failure is an `HttpError`, a
sentence without the address: an address may hold a secret, and its owner knows how to show it.
"""

import contextlib
import io
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

from runtime.periodic import monotonic_s

#: The largest answer that is read. vLLM's page of metrics is some 100 KiB.
ANSWER_BYTES_MAX = 8 * 1024 * 1024
_CHUNK_BYTES = 65_536


class HttpError(Exception):
    """There is no answer; the message says why and what to do."""


class HttpTimeoutError(HttpError):
    """The answer did not come in time."""


class HttpTooLargeError(HttpError):
    """The answer is larger than what is read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    reason: str
    body: bytes

    @property
    def is_good(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300


def check_url(url: str) -> None:
    """Refuse an address that no request can be sent to.

    Raises:
        ValueError: it is not of http or https, has no host, has a user name or a fragment, or
            has characters that must be escaped.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"url: {error}, in {url!r}") from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("url: has characters that must be written as %XX")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"url: give http(s)://HOST[:PORT]/PATH, not {url!r}")
    # Credentials in an address end up in messages.
    if "@" in parts.netloc or parts.fragment:
        raise ValueError("url: must have no user name and no fragment")


class HttpRequest:
    """One HTTP request. Another thread may give it up."""

    def __init__(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        bytes_max: int = ANSWER_BYTES_MAX,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """Prepare it.

        Args:
            method: GET or POST.
            url: Where to; as `check_url` takes it.
            timeout_s: The whole answer must come within this, however it drips. Only to look up
                the host's name, and to try its further addresses, may take longer.
            bytes_max: The largest body that is read.
            body: What to send.
            headers: Sent with it.
            ca_file: The authorities to trust for https, PEM; None: the system's.
        """
        self._url, self._timeout_s, self._bytes_max = urlsplit(url), timeout_s, bytes_max
        self._ca_file = ca_file
        self._method, self._body = method, body
        self._headers = {"User-Agent": "tidegate", "Connection": "close"} | dict(headers or {})
        self._socket: socket.socket | None = None

    def __call__(self) -> Answer:
        """Ask and wait for the answer.

        Raises:
            HttpError: there is none.
        """
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        until_s = monotonic_s() + self._timeout_s
        try:
            with contextlib.closing(self._connection()) as connection:
                connection.connect()
                with connection.sock as self._socket:
                    connection.sock = _TimedSocket(self._socket, until_s)
                    connection.request(self._method, target, self._body, self._headers)
                    with connection.getresponse() as response:
                        body = bytearray()
                        while chunk := response.read(_CHUNK_BYTES):
                            body += chunk
                            if len(body) > self._bytes_max:
                                raise HttpTooLargeError(f"more than {self._bytes_max} bytes")
                        if response.length:
                            raise IncompleteRead(bytes(body), response.length)
                        return Answer(response.status, response.reason, bytes(body))
        except TimeoutError:
            raise HttpTimeoutError(f"no whole answer within {self._timeout_s:g} s") from None
        except HTTPException as error:
            raise HttpError(f"not a whole answer in HTTP: {error!r}") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: of a host's name
            raise HttpError(f"{error}; is the server up and the address right?") from None
        except ValueError as error:
            raise HttpError(f"the request cannot be sent: {error}") from None

    def give_up(self) -> None:
        """Make the waiting thread give up, even if the answer is coming slowly."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not TLS's own shutdown, which would disturb the reading thread.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _connection(self) -> HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            tls = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise HttpError(f"ca_file: {self._ca_file} cannot be used: {error}") from None
        return HTTPSConnection(host, port, timeout=self._timeout_s, context=tls)


class _TimedSocket(io.RawIOBase):
    """What `http.client` takes for a socket: waits only for what is left of the whole time.

    A socket's own time-out is for each read of many.
    """

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        super().__init__()
        self._connection, self._until_s = connection, until_s

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        return io.BufferedReader(self)

    def sendall(self, data: bytes) -> None:
        self._wait_only_what_is_left()
        self._connection.sendall(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._wait_only_what_is_left()
        return self._connection.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: the answer is still read after the connection was closed."""

    def _wait_only_what_is_left(self) -> None:
        left_s = self._until_s - monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
