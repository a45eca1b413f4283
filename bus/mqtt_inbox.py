"""The commands that came for an edge agent, until it has taken them; and the one who reads them.

The broker keeps a command until it is acknowledged, and that is at `commit`. So what an agent had
not committed comes again when it is back, in the same process or another.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bus.clock import Clock
from bus.contract import Closed, Record
from bus.wire import Client, Incoming
from schemas.topics import COMMANDS

#: Commands held for a slow agent. More are left to the broker until these are committed.
HELD_MAX = 2000


@dataclass(slots=True, eq=False)
class _Command:
    """A command, as often as it came and was not acknowledged."""

    incoming: list[Incoming]
    time_s: float


class Inbox:
    """Commands in the order they came, each once however often it comes again meanwhile."""

    def __init__(self, client: Client, clock: Clock, agent: str) -> None:
        #: How many commands were committed.
        self.committed = 0
        #: How often a command came that there was no room for.
        self.overflowed = 0
        self._client, self._clock, self._agent = client, clock, agent
        self._buffered: deque[_Command] = deque()
        self._handed: deque[_Command] = deque()
        self._held: dict[bytes, _Command] = {}
        self._short = False
        self._waiter = clock.waiter()

    def __len__(self) -> int:
        return len(self._buffered)

    @property
    def position(self) -> int:
        """How many commands were handed over, committed or not."""
        return self.committed + len(self._handed)

    def hear(self, incoming: Incoming) -> None:
        """Take a command in."""
        command = self._held.get(incoming.value)
        if command is not None:
            command.incoming.append(incoming)  # by a new connection, or sent twice
        elif len(self._held) >= HELD_MAX:
            self.overflowed += 1
            self._short = True
        else:
            command = _Command([incoming], self._clock.now_s())
            self._held[incoming.value] = command
            self._buffered.append(command)
            self._waiter.notify()

    async def wait(self, until_s: float | None) -> bool:
        """Wait for a command, as a `Waiter` does."""
        return await self._waiter.wait(until_s)

    def wake(self) -> None:
        """End the wait: there is nothing more to wait for."""
        self._waiter.notify()

    def take(self, max_records: int) -> list[Record]:
        """Hand the next ones over."""
        records: list[Record] = []
        while self._buffered and len(records) < max_records:
            command = self._buffered.popleft()
            first = command.incoming[0]
            records.append(
                Record(
                    topic=COMMANDS.name,
                    offset=self.position,
                    key=self._agent,
                    value=first.value,
                    headers=first.properties,
                    time_s=command.time_s,
                )
            )
            self._handed.append(command)
        return records

    def commit(self) -> None:
        """Acknowledge what was handed over."""
        for command in self._handed:
            del self._held[command.incoming[0].value]
            for incoming in command.incoming:
                self._client.ack(incoming)
        self.committed += len(self._handed)
        self._handed.clear()
        if self._short and not self._buffered and self._client.connected:
            self._short = False
            self._client.renew()  # what there was no room for comes again

    def take_back(self) -> None:
        """Hand over again, to the next reader, what was not committed."""
        while self._handed:
            self._buffered.appendleft(self._handed.pop())


class MqttConsumer:
    """The one `Consumer` of an edge agent's commands."""

    def __init__(self, inbox: Inbox, clock: Clock, left: Callable[[], None]) -> None:
        """Read from `inbox`; `left` is called on close."""
        self._inbox, self._clock, self._left = inbox, clock, left
        self._closed = False

    @property
    def positions(self) -> Mapping[str, int]:
        return {COMMANDS.name: self._inbox.position}

    @property
    def behind(self) -> bool:
        return len(self._inbox) > 0

    async def poll(self, max_records: int = 1000, timeout_s: float | None = None) -> list[Record]:
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}; ask for at least one")
        until_s = None if timeout_s is None else self._clock.now_s() + timeout_s
        await asyncio.sleep(0)  # a reader with a long backlog must not keep others from running
        while True:
            self._check_open()
            if records := self._inbox.take(max_records):
                return records
            if not await self._inbox.wait(until_s):
                self._check_open()
                return self._inbox.take(max_records)

    async def commit(self) -> None:
        self._check_open()
        self._inbox.commit()

    async def lag(self) -> int:
        self._check_open()
        return len(self._inbox)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbox.take_back()
            self._inbox.wake()
            self._left()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer of the agent's commands is closed; open another")
