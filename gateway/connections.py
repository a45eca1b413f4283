"""Connections, and how many there may be: whoever asks nothing over one does not keep it."""

import asyncio
import logging
import resource
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: The first line and the headers of a request come within so many seconds, or never.
HEAD_S = 20.0
#: Files and connections that the process may have open at once: there may be 2,000 streams, and a
#: shell allows 1,024 of all.
_OPEN_MOST = 16_384
#: Of these, so many are for the log, its index and processes, and for who is being let in.
_RESERVED = 128
#: What asyncio says where no connection can be taken, up to 2,048 times a second.
_NONE_TAKEN = "socket.accept() out of system resource"
#: How often it is said here, in seconds.
_SAID_EACH_S = 60.0
_log = logging.getLogger("tidegate.gateway")


class Connection(H11Protocol):
    """A connection that is cut where no request comes, or only a part of its head.

    Uvicorn waits for ever there: a stranger without a token could take all connections. It is cut
    at once where there are too many: else the log could not be opened any more.
    """

    most: ClassVar[int] = _OPEN_MOST - _RESERVED  #: Connections at a time.
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._look()

    def data_received(self, data: bytes) -> None:
        """Take what came; a whole head begins a request."""
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def _look(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def allow_many() -> None:
    """Let the process have as many open as it may need, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_MOST if hard == resource.RLIM_INFINITY else min(hard, _OPEN_MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    Connection.most = max(most // 2, most - _RESERVED)


class Shortage:
    """Says once a minute that no connection can be taken: others' words would fill the disk."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._said_s = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Be the loop's handler of exceptions."""
        if context.get("message") != _NONE_TAKEN:
            loop.default_exception_handler(context)
        elif loop.time() - self._said_s >= _SAID_EACH_S:
            self._said_s = loop.time()
            _log.error(
                "no connection can be taken, since too many are open: %s; who asks waits until "
                "some end. Let the process have more open (ulimit -n, LimitNOFILE), or let fewer "
                "reach this port",
                context.get("exception"),
            )
