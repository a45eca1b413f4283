"""Stores the messages of one cell in Kafka: in batches, each retried until it is stored.

Each cell has its own lane, so that a partition that takes nothing delays no other cell.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bus.bridge_check import Place
from bus.bridge_limits import BridgeCounters, BridgeLimits
from bus.bridge_stop import Stop
from bus.clock import Clock, Waiter
from bus.contract import Bus, BusError, Message
from bus.wire import Incoming


@dataclass(slots=True, eq=False)
class PendingMessage:
    """A message of an agent that is not answered yet.

    Without `message` there is nothing to store, and it only waits for those before it.
    """

    incoming: Incoming
    at_s: float
    cell: str = ""
    message: Message | None = None
    letter: bool = False
    node: str = ""
    place: Place | None = None  #: None also if there is nothing to store.
    done: bool = False  #: It is stored, need not be, or was dropped.


class Lane:
    """Stores the messages for one cell."""

    def __init__(
        self,
        cell: str,
        bus: Bus,
        clock: Clock,
        limits: BridgeLimits,
        counters: BridgeCounters,
        stop: Stop,
    ) -> None:
        self.cell, self._bus, self._limits, self._counters = cell, bus, limits, counters
        self._clock, self._stop = clock, stop
        self.problem = ""
        self.waiting: deque[PendingMessage] = deque()
        self._storing: list[PendingMessage] = []
        #: It has taken nothing for `BridgeLimits.stuck_s`.
        self.stuck = False
        self._heard = clock.waiter()

    def hear(self, pending: PendingMessage) -> None:
        """Take a message in."""
        self.waiting.append(pending)
        self._heard.notify()

    def wake(self) -> None:
        """Let it see that it is time to stop."""
        self._heard.notify()

    def let_go(self) -> list[PendingMessage]:
        """Give up what waits. What is being stored is tried again, as a probe."""
        given = [*self._storing, *self.waiting]
        self.waiting.clear()
        return given

    async def run(
        self,
        stored: Callable[[Sequence[PendingMessage]], Awaitable[None]],
        stuck: Callable[["Lane"], None],
    ) -> None:
        """Store what comes until it is time to stop, then what came before.

        Args:
            stored: Is handed each batch that is durable.
            stuck: Is told when a batch has not been stored for long, and again as that goes on.
        """
        self._clock.enter()
        try:
            while True:
                count = min(len(self.waiting), self._limits.batch_max)
                batch = self._storing = [self.waiting.popleft() for _ in range(count)]
                if batch:
                    if not await self._store(batch, stuck):
                        return  # unanswered, so they come again
                    await stored(batch)
                    self._storing = []
                elif self._stop.come:
                    return
                else:
                    await self._heard.wait()
        finally:
            self._clock.leave()

    async def _store(
        self, batch: Sequence[PendingMessage], stuck: Callable[["Lane"], None]
    ) -> bool:
        """Return True when all are durable; False if it is time to stop and they are not."""
        messages = [pending.message for pending in batch if pending.message is not None]
        end_s = self._clock.now_s() + self._limits.stuck_s
        while True:
            ended = self._clock.waiter()
            publishing = asyncio.create_task(self._publish(messages, ended))
            try:
                while not await ended.wait(None if self.stuck else end_s):
                    self._late(stuck)
                publishing.result()
                break
            except BusError as error:
                self.problem = f"cell {self.cell} takes no messages: {error}"
            finally:
                publishing.cancel()
            if self._clock.now_s() >= end_s:
                self._late(stuck)
            self._counters.retries += 1
            if await self._stop.within(self._limits.retry_s):
                return False
        self.problem, self.stuck = "", False
        letters = sum(pending.letter for pending in batch)
        self._counters.dead_letters += letters
        self._counters.forwarded_up += len(messages) - letters
        return True

    async def _publish(self, messages: Sequence[Message], ended: Waiter) -> None:
        self._clock.enter()
        try:
            await self._bus.publish(*messages)
        finally:
            ended.notify()
            self._clock.leave()

    def _late(self, stuck: Callable[["Lane"], None]) -> None:
        self.stuck = True
        self.problem = self.problem or f"cell {self.cell} does not answer"
        stuck(self)
