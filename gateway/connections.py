"""Connections, and how many there may be: whoever asks nothing over one does not keep it."""

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: The first line and the headers of a request come within so many seconds, or never.
HEAD_S = 20.0
#: Files and connections that the process may have open at once: there may be 2,000 streams, and a
#: shell allows 1,024 of all.
_OPEN_MOST = 16_384


class Connection(H11Protocol):
    """A connection that is cut where no request comes, or only a part of its head.

    Uvicorn waits for ever there: a stranger without a token could take all connections.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
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
