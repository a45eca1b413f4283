"""The publisher: publishes the spool to the bus, concurrently with the agent's turns."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from bus.clock import Clock
from bus.contract import BusError, Closed, Link, Message, Record, Unfit
from bus.letters import KEPT_BYTES, dead_letter
from runtime.spool import Spool, SpooledMessage

#: Messages published together. A scheduler remembers half as many pieces as missing
#: (`scheduler.dedupe.PIECES_MAX`): of more, late ones would look like copies.
_BATCH = 500
#: One failure may be that of a broker that is started anew.
_IN_A_ROW = 3

_log = logging.getLogger(__name__)


class Publisher:
    """Publishes a spool in order. What the bus did not confirm is published again."""

    def __init__(self, spool: Spool, bus: Link, clock: Clock, retry_s: float) -> None:
        self.published = 0
        self.failures = 0
        #: Why it fails, once it has failed several times in a row; empty: it does not.
        self.problem = ""
        #: Messages that the bus will never take; they would block all later ones.
        self.unfit = 0
        self._spool = spool
        self._bus = bus
        self._clock = clock
        self._retry_s = retry_s
        self._wake = clock.waiter()
        self._last = False
        self._name = ""
        self._in_a_row = 0
        self._running: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended: the bus is closed, or there is a bug."""
        return self._running is not None and self._running.done()

    def begin(self, name: str) -> None:
        """Start publishing; it takes part in the clock until it ends."""
        self._clock.enter()
        self._name = name
        self._running = asyncio.create_task(self._run(), name=f"publish {name}")

    def notify(self) -> None:
        """Say that there is something new in the spool."""
        self._wake.notify()

    async def finish(self, drain_s: float) -> None:
        """Try to publish all that is left, for at most `drain_s` seconds of the clock, and end.

        Raises:
            Exception: what ended the publishing, if that was a bug.
        """
        if self._running is None:
            return
        self._last = True
        self.notify()
        over = self._clock.waiter()
        self._running.add_done_callback(lambda _: over.notify())
        if not self._running.done():
            await over.wait(self._clock.now_s() + drain_s)
        if not self._running.done():
            self._running.cancel()
            await asyncio.wait({self._running})
        if not self._running.cancelled():
            self._running.result()

    def abandon(self) -> None:
        """End at once; what was not confirmed is published by the next boot."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        try:
            while await self._step():
                pass
        finally:
            self._clock.leave()

    async def _step(self) -> bool:
        """Publish one batch or wait for one; False when there is no more to do."""
        batch = self._spool.next(_BATCH)
        if not batch:
            if self._last:
                return False
            await self._wake.wait()
            return True
        try:
            await self._publish(batch)
        except Closed:
            return False
        except BusError as error:
            self._failed(error)
            if self._last:
                return False  # the next boot publishes it
            await self._wake.wait(self._clock.now_s() + self._retry_s)
            return True
        self._in_a_row, self.problem = 0, ""
        return True

    def _failed(self, error: BusError) -> None:
        self.failures, self._in_a_row = self.failures + 1, self._in_a_row + 1
        self.problem = str(error) if self._in_a_row >= _IN_A_ROW else ""

    async def _publish(self, batch: Sequence[SpooledMessage]) -> None:
        """Publish all together, or one by one without what the bus will never take.

        Raises:
            BusError: it takes nothing now; what it has taken is no longer in the spool.
        """
        try:
            await self._bus.publish(*[waiting.message for waiting in batch])
        except Unfit:
            for waiting in batch:
                try:
                    await self._bus.publish(waiting.message)
                    self.published += 1
                except Unfit as error:
                    await self._set_aside(waiting.message, str(error))
                self._spool.sent(waiting.row)
        else:
            self.published += len(batch)
            self._spool.sent(batch[-1].row)

    async def _set_aside(self, message: Message, why: str) -> None:
        """Make a message that the bus will never take a dead letter, of its beginning.

        The whole of it may be what the bus does not take. One that is a dead letter already, of a
        command, says what it is of.
        """
        letter = message
        if not message.topic.endswith(".dlq"):
            said = Record(message.topic, -1, message.key, message.value, {}, self._clock.now_s())
            letter = dead_letter(said, "", why, f"agent-{self._name}")
        with contextlib.suppress(Unfit):
            await self._bus.publish(replace(letter, value=(message.value or b"")[:KEPT_BYTES]))
        self.unfit += 1
        _log.warning("gives up a message to %s: %s", message.topic, why)
