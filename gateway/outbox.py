"""Writing requests of people to the log: the one thing that the gateway writes."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from bus.clock import Clock, SystemClock
from bus.contract import Bus, BusError, Message, Unreadable
from bus.signing import Signer
from schemas.codec import encode, request
from schemas.requests import Request
from schemas.topics import REQUESTS

#: A log that has not stored a request within this is away, in seconds.
_PATIENCE_S = 10.0
Writing = Callable[[Clock], Bus]


class LogTime(SystemClock):
    """The time that a log lives in: real, unless it is a demo's."""

    at_s: float | None = None

    def now_s(self) -> float:
        """Seconds since the Unix epoch."""
        return super().now_s() if self.at_s is None else self.at_s


class Undelivered(Exception):
    """A request may not be on the log; it says why."""


class Outbox:
    """The log, opened for writing at the first request and kept open."""

    def __init__(self, writing: Writing, path: Path | None, signer: Signer | None = None) -> None:
        """Begin closed.

        Args:
            writing: Opens the log for writing; it must not make one.
            path: Its file; None if it is none.
            signer: Signs what is written; None on a file, whose writer is its owner.
        """
        self._writing, self._path, self._signer = writing, path, signer
        self.key_id = "" if signer is None else signer.key_id
        self._source = f"/gateways/{self.key_id or 'local'}"
        self._clock = LogTime()
        self._bus: Bus | None = None
        self._file: tuple[int, int] | None = None

    async def send(self, asked: Request, log_s: float | None) -> None:
        """Store a request; when this returns, it outlives a crash.

        Args:
            asked: What is asked for.
            log_s: The time that the log lives in; None: real time.

        Raises:
            ValueError: it is larger than any scheduler would take.
            Undelivered: the log is away.
        """
        value = encode(request(asked, source=self._source))
        headers = {} if self._signer is None else self._signer.headers(value)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                bus = await self._open()
                self._clock.at_s = log_s
                await bus.publish(Message(REQUESTS.name, asked.cell, value, headers))
        except TimeoutError:
            await self.close()
            raise Undelivered(f"it did not answer within {_PATIENCE_S:.0f} s") from None
        except (BusError, OSError, sqlite3.Error) as error:
            await self.close()
            raise Undelivered(str(error)) from error

    async def _open(self) -> Bus:
        file = self._look()
        if self._bus is None or file != self._file:
            await self.close()
            self._bus, self._file = self._writing(self._clock), file
        return self._bus

    def _look(self) -> tuple[int, int] | None:
        """What tells that the log is another file than the one that is open."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise Unreadable(f"{self._path} does not exist any more; put it back") from None
        return found.st_dev, found.st_ino

    async def close(self) -> None:
        """Let go of the log, for so long as it takes and no longer than it may."""
        bus, self._bus = self._bus, None
        if bus is not None:
            with contextlib.suppress(TimeoutError, BusError, OSError, sqlite3.Error):
                async with asyncio.timeout(_PATIENCE_S):
                    await bus.close()
