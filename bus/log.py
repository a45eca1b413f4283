"""What the in-process backends share: consumers, producers, transactions, and who is woken."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from bus.clock import Clock, Waiter
from bus.contract import Closed, Consumer, Message, Record, Unfit
from bus.transactions import Positions, SingleProducer

#: How long a tombstone stays after it was stored, so that slow readers learn of it.
TOMBSTONE_S = 24 * 3600.0


def expired(times_s: Iterable[float], before_s: float, now_s: float) -> tuple[int, bool]:
    """Count the records, given by when they were stored, that retention removes from the front.

    Give also whether one that is not too old was met. What was stored by a clock that was ahead
    is as old as what comes after it: else it would keep all that until its own time has come.
    """
    count = 0
    for seen, time_s in enumerate(times_s, 1):
        if time_s < before_s:
            count = seen
        elif time_s <= now_s:
            return count, True
    return count, False


class Log(Protocol):
    """What a backend must offer for the consumers and producers below to work on it."""

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        ...

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        ...

    def fetch(
        self, topic: str, start: int, keys: Sequence[str] | None, limit: int
    ) -> tuple[list[Record], int]:
        """Give up to `limit` records from `start` on, and where to go on afterwards."""
        ...

    def count(self, topic: str, start: int, keys: Sequence[str] | None) -> int:
        """Count the records from `start` on."""
        ...

    def next_due_s(self) -> float | None:
        """When more may become readable without anybody publishing; None if never."""
        ...

    async def append(
        self, messages: Sequence[Message], positions: Positions, producer: tuple[str, int] | None
    ) -> None:
        """Store records and positions together; `producer` is (id, epoch) and may be fenced."""
        ...


class Doorbell:
    """Wakes the consumers that a new record concerns, in the order in which they joined."""

    def __init__(self) -> None:
        # Dicts as ordered sets.
        self._every: dict[str, dict[Waiter, None]] = {}
        self._keyed: dict[tuple[str, str], dict[Waiter, None]] = {}

    def add(self, waiter: Waiter, topics: Sequence[str], keys: Sequence[str] | None) -> None:
        """Ring `waiter` for these topics, if `keys` is given only for these keys."""
        for topic in topics:
            if keys is None:
                self._every.setdefault(topic, {})[waiter] = None
            else:
                for key in keys:
                    self._keyed.setdefault((topic, key), {})[waiter] = None

    def remove(self, waiter: Waiter, topics: Sequence[str], keys: Sequence[str] | None) -> None:
        """Undo `add`."""
        for topic in topics:
            if keys is None:
                self._every.get(topic, {}).pop(waiter, None)
                continue
            for key in keys:
                listeners = self._keyed.get((topic, key), {})
                listeners.pop(waiter, None)
                if not listeners:
                    self._keyed.pop((topic, key), None)

    @property
    def wants_keys(self) -> bool:
        """True if some consumer listens to single keys."""
        return bool(self._keyed)

    def ring(self, topic: str, keys: Iterable[str]) -> None:
        """Wake whoever listens to the topic or to one of the keys."""
        for waiter in self._every.get(topic, ()):
            waiter.notify()
        if self._keyed:
            for key in keys:
                for waiter in self._keyed.get((topic, key), ()):
                    waiter.notify()

    def ring_all(self) -> None:
        """Wake everybody."""
        for listeners in (*self._every.values(), *self._keyed.values()):
            for waiter in listeners:
                waiter.notify()


class LogConsumer:
    """A `Consumer` on a `Log`."""

    def __init__(
        self,
        log: Log,
        doorbell: Doorbell,
        group: str,
        committed: Mapping[str, int],
        keys: Sequence[str] | None,
    ) -> None:
        self.log = log
        self.group = group
        self._doorbell = doorbell
        self._positions = dict(committed)
        self._topics = list(committed)
        self._keys = None if keys is None else sorted(set(keys))
        self._waiter = log.clock.waiter()
        self._closed = False
        self.behind = True  #: No end was reached yet.
        doorbell.add(self._waiter, self._topics, self._keys)

    @property
    def positions(self) -> Mapping[str, int]:
        return dict(self._positions)

    async def poll(self, max_records: int = 1000, timeout_s: float | None = None) -> list[Record]:
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}; ask for at least one")
        clock = self.log.clock
        deadline_s = None if timeout_s is None else clock.now_s() + timeout_s
        await asyncio.sleep(0)  # a reader with a long backlog must not keep others from running
        while True:
            if records := self._take(max_records):
                return records
            moments = [m for m in (deadline_s, self.log.next_due_s()) if m is not None]
            until_s = min(moments, default=None)
            if await self._waiter.wait(until_s):
                continue
            if deadline_s is not None and clock.now_s() >= deadline_s:
                return self._take(max_records)

    def _take(self, max_records: int) -> list[Record]:
        self._check_open()
        found: list[Record] = []
        for topic in self._topics:
            if len(found) == max_records:
                break
            records, position = self.log.fetch(
                topic, self._positions[topic], self._keys, max_records - len(found)
            )
            found += records
            self._positions[topic] = position
        self.behind = len(found) == max_records
        return found

    async def commit(self) -> None:
        self._check_open()
        await self.log.append((), self.group_positions(), None)

    def group_positions(self) -> dict[tuple[str, str], int]:
        """The present positions, as a backend stores them."""
        return {(self.group, topic): position for topic, position in self._positions.items()}

    async def lag(self) -> int:
        self._check_open()
        return sum(
            self.log.count(topic, position, self._keys)
            for topic, position in self._positions.items()
        )

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._waiter.notify()
            self._doorbell.remove(self._waiter, self._topics, self._keys)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of group {self.group!r} is closed; open another")
        if self.log.closed:
            raise Closed("the bus is closed; open it again")


class LogProducer(SingleProducer):
    """A `Producer` on a `Log`."""

    def __init__(self, log: Log, producer_id: str, epoch: int) -> None:
        super().__init__(producer_id)
        self._log, self._epoch = log, epoch

    def positions_of(self, consumer: Consumer) -> Positions | None:
        if not isinstance(consumer, LogConsumer) or consumer.log is not self._log:
            return None
        return consumer.group_positions()

    async def commit(self, messages: Sequence[Message], positions: Positions) -> None:
        await self._log.append(messages, positions, (self._id, self._epoch))


class Pending:
    """Counts what is under way, within `with` or between `begin` and `end`."""

    def __init__(self) -> None:
        self._count, self._idle = 0, asyncio.Event()

    def begin(self) -> None:
        self._count += 1

    def end(self) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    async def drained(self) -> None:
        """Return when nothing is under way."""
        while self._count:
            self._idle.clear()
            await self._idle.wait()


def check_message(message: Message) -> None:
    """Refuse what no backend could give back as it was.

    Raises:
        Unfit: a field has the wrong type, naming it.
    """
    if not message.topic:
        raise Unfit("a message has an empty topic; name one of schemas.topics")
    where = f"message to {message.topic}"
    if message.value is not None and not isinstance(message.value, bytes):
        kind = type(message.value).__name__
        raise Unfit(f"{where}: value must be bytes or None, not {kind}")
    _check_text(f"{where}: key", message.key)
    for name, value in message.headers.items():
        _check_text(f"{where}: the name of a header", name)
        _check_text(f"{where}: header {name!r}", value)


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise Unfit(f"{what} must be text, not {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Unfit(f"{what} is no valid Unicode ({error.reason}); repair it") from error
    if "\0" in text:
        raise Unfit(f"{what} holds a zero character; remove it")
