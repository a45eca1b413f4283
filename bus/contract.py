"""The Bus contract: what every backend promises, and all that the rest of Tidegate may rely on.

- *Order*: records of one key are read in the order they were stored; offsets of a topic ascend.
- *Durable*: when `publish` returns, the record outlives a crash of any process.
- *Several topics*: a consumer reads them in the order given: a later one waits until those before
  it are read to their ends, or a backlog of telemetry would overtake the events beside it.
- *Groups*: each group has its own committed offset per topic; a new consumer starts there.
- *Transactions*: records sent and offsets committed in one take effect together or not at all;
  opening a producer id again fences whoever held it (`Fenced` at its next commit).
- *Tombstones*: a record without value; compaction removes its key.
- *Dead letters*: the original bytes, under `<topic>.dlq`, with the reason in headers.
- *Back-pressure*: at most `in_flight_max` publishes wait for storage; more callers wait their
  turn. Consumers take what they ask for and no more.
- *Drain*: `drain` returns when nothing published is on its way; `close` drains first.

Delivery is at least once: whoever reads must bear a record twice (see `sequence`, envelope).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self


class BusError(Exception):
    """Base of all that a bus raises."""


class Fenced(BusError):
    """Another process opened the same producer id; this one must stop."""


class Unfit(BusError):
    """A message that this bus will never take, however often it is tried; it says why."""


class Closed(BusError):
    """The bus is closed."""


class Unreadable(BusError):
    """What is stored is not a Tidegate log, or is damaged."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record to store. `value` None is a tombstone."""

    topic: str
    key: str
    value: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record."""

    topic: str
    offset: int
    key: str
    value: bytes | None
    headers: Mapping[str, str]
    #: When it was stored, by the bus's clock, in seconds since the Unix epoch.
    time_s: float


class Consumer(Protocol):
    """A member of a group, reading some topics from the group's committed offsets."""

    @property
    def positions(self) -> Mapping[str, int]:
        """By topic, the offset of the next record that `poll` would give."""
        ...

    @property
    def behind(self) -> bool:
        """Whether more may be stored already than `poll` gave last."""
        ...

    async def poll(self, max_records: int = 1000, timeout_s: float | None = None) -> list[Record]:
        """Give the next records; wait for the first one up to `timeout_s` (None: for ever)."""
        ...

    async def commit(self) -> None:
        """Commit the present positions outside a transaction."""
        ...

    async def lag(self) -> int:
        """How many stored records are after the present positions."""
        ...

    async def close(self) -> None:
        """Leave the group; uncommitted records are read again by the next member."""
        ...


class Transaction(Protocol):
    """Records and offsets that take effect together, on leaving `async with` without error."""

    def send(self, message: Message) -> None:
        """Add a record."""
        ...

    def commit_positions(self, consumer: Consumer) -> None:
        """Add the consumer's present positions."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: object, error: object, trace: object) -> None: ...


class Producer(Protocol):
    """Holder of a producer id; the newest holder fences the ones before."""

    def transaction(self) -> Transaction:
        """Begin a transaction; one at a time."""
        ...


class Link(Protocol):
    """What an agent needs of its bus: it speaks, hears its commands, and leaves in good order.

    An edge agent's link goes over MQTT, which has no offsets to read from; every `Bus` is a link.
    """

    async def publish(self, *messages: Message) -> None:
        """Store records, together; return when they are durable."""
        ...

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> Consumer:
        """Join a group. `keys` hands over only records of these keys (positions pass the rest)."""
        ...

    async def drain(self) -> None:
        """Return when nothing published is on its way."""
        ...

    async def close(self) -> None:
        """Drain, then let go of everything."""
        ...


class Bus(Link, Protocol):
    """A set of topics. See the module's text for what is promised."""

    async def producer(self, producer_id: str) -> Producer:
        """Open a producer id, fencing its former holder."""
        ...

    def read(self, topic: str, offset: int = 0, end: int | None = None) -> AsyncIterator[Record]:
        """Read what is stored now from `offset` on, before `end` if given, outside any group."""
        ...

    async def latest(self, topic: str, key: str) -> Record | None:
        """Give the newest record of a key, None if there is none or it is a tombstone."""
        ...

    async def last(self, topic: str) -> Record | None:
        """Give the newest record of a topic, None if it holds none."""
        ...

    async def end(self, topic: str) -> int:
        """Give an offset that no stored record has reached; the next one gets it or a later one."""
        ...

    async def prune(self, now_s: float) -> int:
        """Remove what retention and compaction allow; give the number of records removed."""
        ...
