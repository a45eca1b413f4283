"""`/healthz`, `/readyz`, `/metrics`: served by a thread, so that a stuck event loop is reported."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
from prometheus_client import CONTENT_TYPE_LATEST

from bus.contract import BusError

#: Status, content type and body.
Answer = tuple[int, str, bytes]


def as_json(good: bool, document: Mapping[str, object]) -> Answer:
    """Give the answer of a probe: 200 or 503, one JSON object."""
    return (200 if good else 503), "application/json", orjson.dumps(document) + b"\n"


def as_metrics(page: bytes) -> Answer:
    """Give the answer of a scrape."""
    return 200, CONTENT_TYPE_LATEST, page


class HttpServer:
    """Listens from the beginning; each request has a thread of its own."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Answer]]) -> None:
        """Listen; port 0 takes any free one.

        Raises:
            BusError: the address cannot be had.
        """
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(pages))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise BusError(
                f"http: {host}:{port} cannot be listened on: {why}; set http.port to another, "
                "to 0 for any free one, or to off"
            ) from None
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(pages: Mapping[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        #: A client that connects and says nothing is let go.
        timeout = 10.0

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            missing = 404, "text/plain", f"there are {', '.join(pages)}\n".encode()
            status, kind, body = page() if page is not None else missing
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  the name is the standard library's

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing of requests: probes come every few seconds."""

    return Handler
