"""The port of this machine to which a provider's page leads back after a sign-in (RFC 8252)."""

import hmac
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tidegate_client.errors import TimedOut

_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidegate</title></head>
<body><p>%s</p></body></html>
"""


class Return:
    """A port of this machine, to which the provider's page leads back once."""

    def __init__(self, state: str) -> None:
        """Listen on a port that is free; `state` is known to who began the sign-in alone."""
        found: dict[str, str] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                at = urlsplit(self.path)
                said = {name: values[0] for name, values in parse_qs(at.query).items()}
                mine = hmac.compare_digest(said.get("state", "").encode(), state.encode())
                if at.path != "/callback" or not mine or found:
                    # Any page may lead a browser here; only the answer to our question counts.
                    self._say(404, b"There is nothing here.")
                    return
                found.update(said)
                well = "code" in said
                text = b"You are signed in" if well else b"You are not signed in"
                self._say(200, text + b"; the terminal tells more. Close this page.")

            def _say(self, status: int, text: bytes) -> None:
                body = _PAGE % text
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Keep quiet: the address has the code in it."""

        Handler.timeout = 5  # a browser that connects and says nothing is not waited for
        self._found = found
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        #: Where the provider leads back to.
        self.uri = f"http://127.0.0.1:{self._server.server_port}/callback"

    def __enter__(self) -> "Return":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    def wait(self, patience_s: float) -> dict[str, str]:
        """Give what the provider says once it leads back.

        Raises:
            TimedOut: it did not within so many seconds.
        """
        end_s = time.monotonic() + patience_s
        while not self._found:
            self._server.timeout = end_s - time.monotonic()
            if self._server.timeout <= 0.0:
                raise TimedOut(f"nobody signed in within {patience_s:g} s; begin again")
            self._server.handle_request()
        return self._found
