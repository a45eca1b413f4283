"""The spool: messages that wait for the bus, in the order they were made, within bounds.

When it is full, the oldest message is dropped of the first of these kinds that has one to drop:

1. telemetry, and dead letters;
2. progress of a job, if a newer one of the same job waits;
3. checkpoints of a job and births of a node, if a newer one of the same waits.

Nothing else is ever dropped: acks, starts and ends of workers, the newest checkpoint of each job.
Without them the scheduler could not know what became of its work. They are few, because they answer
commands, and no command arrives while the link is down.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from operator import attrgetter
from typing import Self

import orjson
from pydantic.dataclasses import dataclass as checked

from bus.contract import Message
from schemas.options import CHECKED, Count

_ROW = attrgetter("row")


class DropPriority(IntEnum):
    """When a message may be dropped from a full spool; the numbers are in the agent's store."""

    NEVER = 0
    TELEMETRY = 1
    PROGRESS = 2  #: May be dropped once a newer message supersedes it.
    STANDING = 3  #: Likewise, after those.


@checked(frozen=True, slots=True, config=CHECKED)
class SpoolLimit:
    """How much may wait. Messages that must not be dropped may exceed it."""

    #: How many messages may wait.
    messages: Count = 100_000
    #: How many bytes of messages may wait.
    size_bytes: Count = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SpooledMessage:
    """A message that waits, under its position in the agent's store."""

    row: int
    message: Message
    #: Whether it may be dropped when the spool is full.
    loss: DropPriority = DropPriority.NEVER
    #: Its type and job or node, if a newer message of the same supersedes it.
    subject: str = ""

    @classmethod
    def of(cls, row: int, message: Message, loss: DropPriority) -> Self:
        """Make one; read its subject from the message, if it needs one."""
        if loss in (DropPriority.NEVER, DropPriority.TELEMETRY):
            return cls(row, message, loss)
        said = orjson.loads(message.value or b"{}")
        of_what = said["data"].get("job") or said["data"]["node"]
        return cls(row, message, loss, f"{said['type']}/{of_what}")

    @property
    def size_bytes(self) -> int:
        """What counts against the limit."""
        return len(self.message.value or b"")


class Spool:
    """The queue in memory; the store holds the same rows."""

    def __init__(
        self, limit: SpoolLimit | None = None, waiting: Iterable[SpooledMessage] = ()
    ) -> None:
        """Take over the rows of the last boot, in order."""
        self._limit = limit or SpoolLimit()
        self._lanes: dict[DropPriority, deque[SpooledMessage]] = {
            loss: deque() for loss in DropPriority
        }
        self._counts: Counter[str] = Counter()  # waiting messages by subject
        self._freed: list[int] = []
        self.size_bytes = 0
        #: Messages dropped since the agent began, because the spool was full.
        self.dropped = 0
        for message in waiting:
            self.add(message)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def add(self, waiting: SpooledMessage) -> None:
        """Put a message at the end; drop the least important ones if there is no room."""
        self._lanes[waiting.loss].append(waiting)
        self._counts[waiting.subject] += 1
        self.size_bytes += waiting.size_bytes
        while self._is_full and self._drop():
            self.dropped += 1

    def next(self, count: int) -> list[SpooledMessage]:
        """Give up to `count` messages to publish, oldest first; they stay until `sent`."""
        lanes = [lane for lane in self._lanes.values() if lane]
        if len(lanes) == 1:
            return list(islice(lanes[0], count))
        # Sorting goes by the runs that lanes are: many times as fast as merging them one by one.
        first = chain.from_iterable(islice(lane, count) for lane in lanes)
        return sorted(first, key=_ROW)[:count]

    def sent(self, up_to_row: int) -> None:
        """Remove everything up to a row: the bus has it."""
        for lane in self._lanes.values():
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

    @property
    def _is_full(self) -> bool:
        return len(self) > self._limit.messages or self.size_bytes > self._limit.size_bytes

    def _drop(self) -> bool:
        """Drop one message; False if none may go."""
        if lane := self._lanes[DropPriority.TELEMETRY]:
            self._free(lane.popleft())
            return True
        for loss in (DropPriority.PROGRESS, DropPriority.STANDING):
            lane = self._lanes[loss]
            # Those passed over are the newest of their subjects: no more than there are jobs.
            for index, waiting in enumerate(lane):
                if self._counts[waiting.subject] > 1:
                    del lane[index]
                    self._free(waiting)
                    return True
        return False

    def _free(self, waiting: SpooledMessage) -> None:
        self.size_bytes -= waiting.size_bytes
        self._counts[waiting.subject] -= 1
        if not self._counts[waiting.subject]:
            del self._counts[waiting.subject]
        self._freed.append(waiting.row)
