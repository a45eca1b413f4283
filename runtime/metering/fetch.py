"""One HTTP GET, with a limit of time and of size."""

import io
import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from urllib.parse import urlsplit

from runtime.metering.periodic import monotonic_s

#: The largest page that is read. vLLM's is some 100 KiB.
PAGE_BYTES_MAX = 8 * 1024 * 1024
_CHUNK_BYTES = 65_536
#: OpenMetrics would add `_total` to counters that servers document without.
_ACCEPT = "text/plain;version=0.0.4,*/*;q=0.1"


class FetchError(Exception):
    """The page could not be fetched; the message says why and what to do."""


class FetchTimeoutError(FetchError):
    """It did not come in time."""


class FetchTooLargeError(FetchError):
    """It is larger than what is read."""


def check_url(url: str) -> None:
    """Refuse an address that cannot be fetched.

    Raises:
        ValueError: not an http or https address with a host.
    """
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        # Credentials in an address end up in messages; there are headers for them.
        fits = fits and url.isprintable() and " " not in url and "@" not in parts.netloc
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"url: {url!r} is not like http://HOST:PORT/metrics")


def fetch(
    url: str,
    timeout_s: float,
    *,
    bytes_max: int = PAGE_BYTES_MAX,
    headers: Mapping[str, str] | None = None,
) -> str:
    """Give the page's text; all of it must come within `timeout_s` seconds, however it drips.

    That is why the socket is read here: a library's time-out is for each read of many. Only to
    look up the host's name, and to try its further addresses, may take longer.

    Raises:
        FetchError: no answer, another status than 200, or not text.
    """
    until_s = monotonic_s() + timeout_s
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {
        "Host": parts.netloc,
        "Accept": _ACCEPT,
        "User-Agent": "tidegate",
        "Connection": "close",
    } | dict(headers or {})
    request = f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items())
    try:
        with socket.create_connection((host, port), _left_s(until_s)) as plain:
            plain.settimeout(_left_s(until_s))
            if not secure:
                plain.sendall(f"{request}\r\n".encode())
                answer = _read(plain, until_s, bytes_max)
            else:
                context = ssl.create_default_context()
                with context.wrap_socket(plain, server_hostname=host) as wrapped:
                    wrapped.sendall(f"{request}\r\n".encode())
                    answer = _read(wrapped, until_s, bytes_max)
        return _text(answer, url)
    except TimeoutError:
        raise FetchTimeoutError(f"{url}: no whole answer within {timeout_s:g} s") from None
    except (OSError, UnicodeError) as error:
        raise FetchError(f"{url}: {error}; is the server up and the address right?") from None
    except FetchTooLargeError:
        raise FetchTooLargeError(
            f"{url}: more than {bytes_max} bytes; not a page of metrics"
        ) from None


def _left_s(until_s: float) -> float:
    left_s = until_s - monotonic_s()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _read(connection: socket.socket, until_s: float, bytes_max: int) -> bytes:
    answer = bytearray()
    while True:
        connection.settimeout(_left_s(until_s))
        chunk = connection.recv(_CHUNK_BYTES)
        if not chunk:
            return bytes(answer)
        answer += chunk
        if len(answer) > bytes_max:
            raise FetchTooLargeError


class _Answer:
    """What `HTTPResponse` takes for a socket: bytes that are already here."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, *_: object, **__: object) -> io.BytesIO:
        return io.BytesIO(self._answer)


def _text(answer: bytes, url: str) -> str:
    try:
        response = HTTPResponse(_Answer(answer))  # type: ignore[arg-type]
        response.begin()
        if response.status != 200:
            raise FetchError(
                f"{url}: answers {response.status} {response.reason}; give the address of its"
                " metrics"
            )
        return response.read().decode("utf-8")
    except (HTTPException, ValueError) as error:  # ValueError: also what is not UTF-8
        raise FetchError(f"{url}: not a whole answer in HTTP and UTF-8: {error!r}") from None
