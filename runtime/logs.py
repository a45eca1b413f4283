"""Sending the logs of jobs' workers to whoever reads them: pulled, within limits, never spooled.

What cannot be sent now is read again later, from the files: nothing waits in memory or in the
spool, so logs never take the place of what the scheduler must hear.
"""

import asyncio
import base64
import logging
from dataclasses import dataclass
from typing import Protocol

from bus.clock import Clock
from bus.contract import BusError, Closed, Link, Message
from schemas.codec import encode
from schemas.commands import SendLog
from schemas.log_codec import log_chunk
from schemas.logs import CHUNK_BYTES, LogChunk, LogEnd
from schemas.topics import LOGS

_log = logging.getLogger(__name__)
#: What an agent sends of logs, all readers together, in bytes a second.
RATE_BYTES_PER_S = 256 * 1024
#: For so many readers at once: as many as may read in a whole cell.
READERS_MAX = 16
#: How often a log that is followed is looked at when there was nothing new, in seconds.
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What was read of a log."""

    epoch: int  #: Of the run whose log it is.
    offset: int  #: Bytes of the log before `content`.
    content: bytes
    skipped: int  #: Bytes that were asked for before `offset` and are not kept.
    end: int  #: Where the log ends now.
    ended: bool  #: Whether no more will be written.
    note: str = ""  #: What whoever reads it should know of it.


@dataclass(frozen=True, slots=True)
class NoLog:
    """Why there is nothing to read, in a sentence without its full stop."""

    why: str


class LogSource(Protocol):
    """Where an agent's workers leave what they write."""

    def read(
        self, job: str, epoch: int, rank: int, offset: int, size: int, first_epoch: int = 0
    ) -> LogPiece | NoLog:
        """Read at most `size` bytes from an offset on; a negative one counts from the end.

        What was written under an epoch below the first is of another job, which had the name
        before. Called in a thread: a disk of the network may hang.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoLogs:
    """An agent whose workers leave nothing that it could send."""

    why: str

    def read(
        self, job: str, epoch: int, rank: int, offset: int, size: int, first_epoch: int = 0
    ) -> LogPiece | NoLog:
        return NoLog(self.why)


#: A reading: its reader, and the job and rank whose log it is.
_Log = tuple[str, str, int]


@dataclass(slots=True)
class _Reader:
    """Somebody who reads, and how far they are."""

    order: SendLog
    offset: int
    left: int
    epoch: int = -1


class LogSender:
    """Sends what commands ask for, concurrently with the agent's turns."""

    def __init__(self, source: LogSource, agent: str, bus: Link, clock: Clock, cell: str) -> None:
        self._source, self._agent, self._cell = source, agent, cell
        self._bus, self._clock = bus, clock
        self._readers: dict[_Log, _Reader] = {}
        self._sequence = 0
        self._wake = clock.waiter()
        self._running: asyncio.Task[None] | None = None
        self._boot = 0

    def begin(self, boot: int) -> None:
        """Start, as this boot of the agent; it takes part in the clock until `end`."""
        self._boot = boot
        self._clock.enter()
        self._running = asyncio.create_task(self._run(), name=f"logs of {self._agent}")
        # Not at the end of `_run`: a task that is cancelled before its first step never gets there.
        self._running.add_done_callback(lambda _: self._clock.leave())

    def end(self) -> None:
        """Send no more."""
        if self._running is not None:
            self._running.cancel()

    def ask(self, order: SendLog) -> None:
        """Take a command: for a new reader, or one who goes on."""
        # Another's job under the name of this reader is another reading: who may read the one
        # must not end or move the reading of the other.
        log = order.reader, order.job, order.rank
        known = self._readers.get(log)
        if known is None and len(self._readers) >= READERS_MAX:
            order = order.model_copy(update={"until_s": 0.0})
        if known is None:
            self._readers[log] = _Reader(order, order.from_byte, order.max_bytes)
        else:
            # A run is read to its end, though the job may have begun another one since.
            epoch = order.epoch if known.epoch < 0 else known.epoch
            known.order, known.left = order.model_copy(update={"epoch": epoch}), order.max_bytes
        self._wake.notify()

    # --- sending ---

    async def _run(self) -> None:
        try:
            while True:
                sent = 0
                for log, reader in tuple(self._readers.items()):
                    try:
                        sent += await self._serve(log, reader)
                    except Closed:
                        raise
                    except Exception:  # noqa: BLE001 - a log is no reason for an agent to end
                        _log.exception("the log of %s cannot be sent", reader.order.job)
                        self._readers.pop(log, None)
                now_s = self._clock.now_s()
                if not self._readers:
                    await self._wake.wait()
                elif sent:
                    await self._clock.sleep_until(now_s + sent / RATE_BYTES_PER_S)
                else:
                    await self._wake.wait(now_s + LOOK_S)
        except Closed:
            return

    async def _serve(self, log: _Log, reader: _Reader) -> int:
        """Send one piece to one reader; give how many bytes."""
        order, now_s = reader.order, self._clock.now_s()
        if order.until_s <= now_s:
            busy = order.until_s == 0.0
            why = f"{self._agent} sends {READERS_MAX} logs already; try again in a minute"
            await self._say(log, reader, "busy" if busy else "expired", why if busy else "")
            return 0
        size = min(CHUNK_BYTES, reader.left)
        place = order.job, order.epoch, order.rank, reader.offset, size, order.first_epoch
        try:
            found = await asyncio.to_thread(self._source.read, *place)
        except OSError as error:
            found = NoLog(f"{error.strerror or error}; see that the agent may read its own folder")
        if isinstance(found, NoLog):
            await self._say(log, reader, "missing", found.why)
            return 0
        after = found.offset + len(found.content)
        is_all = after >= found.end and (found.ended or not order.follow)
        end: LogEnd | None = "complete" if is_all else None
        if end is None and len(found.content) >= reader.left:
            end = "expired"
        # Of a run that is new to it a reader hears even if nothing has been written yet.
        is_new = found.epoch != reader.epoch
        if found.content or found.skipped or end is not None or is_new:
            if not await self._say(log, reader, end, found.note, found):
                return 0
        reader.offset, reader.epoch = after, found.epoch
        reader.left -= len(found.content)
        return len(found.content)

    async def _say(
        self,
        log: _Log,
        reader: _Reader,
        end: LogEnd | None,
        note: str,
        found: LogPiece | None = None,
    ) -> bool:
        """Publish a piece, or the last word; False if the bus does not take it now."""
        order = reader.order
        chunk = LogChunk(
            agent=self._agent,
            reader=order.reader,
            job=order.job,
            epoch=max(0, reader.epoch if found is None else found.epoch),
            rank=order.rank,
            offset=max(0, reader.offset) if found is None else found.offset,
            content="" if found is None else base64.b64encode(found.content).decode(),
            skipped=0 if found is None else found.skipped,
            end=end,
            note=note[:1000],
        )
        said = log_chunk(
            chunk,
            sequence=self._sequence,
            bootid=self._boot,
            time_s=self._clock.now_s(),
            cell=self._cell,
        )
        try:
            await self._bus.publish(Message(LOGS.name, order.job, encode(said)))
        except Closed:
            raise
        except BusError:
            if end is not None and found is None:
                self._readers.pop(log, None)  # whoever waits for it asks again
            return False
        self._sequence += 1
        if end is not None and self._readers.get(log) is reader and reader.order is order:
            del self._readers[log]
        return True
