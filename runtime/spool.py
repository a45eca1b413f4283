"""The spool: messages on their way to the bus, in the order they were said, within bounds.

When it is full, the oldest telemetry goes first. Acks, worker and life-cycle events are never
dropped: without them the scheduler could not know what became of its work.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from bus.contract import Message


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may wait. What must not be dropped may exceed it."""

    #: So many messages.
    messages: int = 100_000
    #: So many bytes of them.
    size_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.messages < 1 or self.size_bytes < 1:
            raise ValueError("messages, size_bytes: must be positive")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits, under its position in the agent's store."""

    row: int
    message: Message
    #: Whether it may be dropped when the spool is full.
    telemetry: bool

    @property
    def size_bytes(self) -> int:
        """What counts against the limit."""
        return len(self.message.value or b"")


class Spool:
    """The queue in memory; the store holds the same rows."""

    def __init__(self, limit: Limit | None = None, waiting: Iterable[Waiting] = ()) -> None:
        """Take over the rows of the last boot, in order."""
        self._limit = limit or Limit()
        self._kept: deque[Waiting] = deque()
        self._telemetry: deque[Waiting] = deque()
        self._freed: list[int] = []
        self.size_bytes = 0
        #: Telemetry dropped for want of room since the agent began.
        self.dropped = 0
        for message in waiting:
            self.add(message)

    def __len__(self) -> int:
        return len(self._kept) + len(self._telemetry)

    def add(self, waiting: Waiting) -> None:
        """Put a message at the end; drop the oldest telemetry if there is no room."""
        (self._telemetry if waiting.telemetry else self._kept).append(waiting)
        self.size_bytes += waiting.size_bytes
        while self._telemetry and (
            len(self) > self._limit.messages or self.size_bytes > self._limit.size_bytes
        ):
            self._free(self._telemetry.popleft())
            self.dropped += 1

    def next(self, count: int) -> list[Waiting]:
        """Give up to `count` messages to publish, oldest first; they stay until `sent`."""
        kept, telemetry = iter(self._kept), iter(self._telemetry)
        one, other = next(kept, None), next(telemetry, None)
        batch: list[Waiting] = []
        while len(batch) < count:
            if one is not None and (other is None or one.row < other.row):
                batch.append(one)
                one = next(kept, None)
            elif other is not None:
                batch.append(other)
                other = next(telemetry, None)
            else:
                break
        return batch

    def sent(self, up_to_row: int) -> None:
        """Let go of everything up to a row: the bus has it."""
        for lane in (self._kept, self._telemetry):
            while lane and lane[0].row <= up_to_row:
                self._free(lane.popleft())

    @property
    def freed(self) -> int:
        """How many rows the store may delete."""
        return len(self._freed)

    def take_freed(self) -> list[int]:
        """Give the rows that the store may delete now."""
        freed, self._freed = self._freed, []
        return freed

    def _free(self, waiting: Waiting) -> None:
        self.size_bytes -= waiting.size_bytes
        self._freed.append(waiting.row)
