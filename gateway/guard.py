"""What every request passes before a route sees it: host, identity, origin, allowance.

And what every answer passes on its way out: headers for browsers, and errors as problems.
"""

import asyncio
import contextlib
import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.limits import Limits
from gateway.problems import ENDS, Problem, later, response
from gateway.subjects import Authority, recognised

#: All that a page of ours needs; nothing from elsewhere, and nobody may frame it.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: Names by which a request says that it is for this machine.
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
#: Methods that change nothing, which a page of another origin may cause.
_SAFE = ("GET", "HEAD", "OPTIONS")
_API = "/api/"
#: One that lasts is counted on its own.
_STREAM = "/api/v1/stream"
_log = logging.getLogger("tidegate.gateway")


class Guard:
    """Middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        authority: Authority,
        limits: Limits,
        closing: asyncio.Event,
        hosts: tuple[str, ...] = LOOPBACK_HOSTS,
    ) -> None:
        """Stand before `app`; `hosts` are the names under which it may be asked.

        `closing` is set when the gateway ends.
        """
        self._app, self._authority, self._limits, self._hosts = app, authority, limits, hosts
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, turn = False, contextlib.AsyncExitStack()

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                await turn.aclose()  # whoever reads it slowly keeps no place
                headers = MutableHeaders(raw=message["headers"])
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                message["headers"] = headers.raw
            await send(message)

        try:
            if (reader := await self._admit(scope)) is not None:
                await turn.enter_async_context(self._limits.turn(reader))
            await self._app(scope, receive, answer)
        except Problem as problem:
            await response(problem)(scope, receive, answer)
        except asyncio.CancelledError:
            # Who ends the gateway waits so long for answers, and no longer.
            if begun or not self._closing.is_set():
                raise
            await response(later(f"{ENDS}; ask again once it is back", 5.0))(scope, receive, answer)
        except Exception:
            if begun:
                raise
            # What went wrong is for the log: an answer could carry what its reader may not see.
            _log.exception("%s %s failed", scope["method"], scope["path"])
            failed = Problem(
                500,
                "the gateway failed at this request, which is a bug; what happened is in its own "
                "output. Other requests go on: GET /api/v1/health",
            )
            await response(failed)(scope, receive, answer)
        finally:
            await turn.aclose()

    async def _admit(self, scope: Scope) -> str | None:
        """Let a request in, or not; give whose it is if it is a read, which waits for its turn."""
        headers = Headers(scope=scope)
        name = headers.get("host", "").lower()
        host = name if name.endswith("]") else name.rpartition(":")[0] or name
        if host not in self._hosts:
            # A page elsewhere whose name was made to lead here (DNS rebinding) is told nothing.
            raise Problem(421, f"this gateway answers at {' and '.join(self._hosts)} alone")
        if not scope["path"].startswith(_API):
            return None
        subject = await recognised(self._authority, headers)
        if subject is None:
            raise Problem(
                401,
                self._authority.stranger,
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] not in _SAFE and subject.via == "cookie":
            # A cookie goes with every request of the browser, whoever's page asked for it.
            if headers.get("sec-fetch-site") != "same-origin":
                raise Problem(
                    403,
                    "a request with a cookie that changes something must come from this "
                    "gateway's own pages (Sec-Fetch-Site: same-origin); programs send "
                    "Authorization: Bearer TOKEN",
                )
            if not headers.get("x-tidegate"):
                # No form and no image can send one, whatever a browser says of where it is from.
                raise Problem(
                    403,
                    "a request with a cookie that changes something must carry the header "
                    "X-Tidegate, with any value",
                )
        scope.setdefault("state", {})["subject"] = subject
        if scope["method"] not in _SAFE:
            self._limits.write(subject.name)
        elif scope["path"] != _STREAM:
            self._limits.read(subject.name)
            return subject.name
        return None
