"""A producer that has one transaction at most, and a transaction that keeps all until its end."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

from bus.contract import BusError, Consumer, Message

#: (group, topic) -> offset of the next record to read.
Positions = Mapping[tuple[str, str], int]


class KeptTransaction:
    """A `Transaction`: nothing is stored before it ends without error."""

    def __init__(self, producer: "SingleProducer") -> None:
        self._producer = producer
        self._messages: list[Message] = []
        self._positions: dict[tuple[str, str], int] = {}

    def send(self, message: Message) -> None:
        self._messages.append(message)

    def commit_positions(self, consumer: Consumer) -> None:
        positions = self._producer.positions_of(consumer)
        if positions is None:
            raise BusError("the consumer belongs to another bus; use one of the same bus")
        self._positions.update(positions)

    async def __aenter__(self) -> Self:
        self._producer.begin()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                await self._producer.commit(self._messages, self._positions)
        finally:
            self._producer.end()


class SingleProducer(ABC):
    """A `Producer` of one open transaction."""

    def __init__(self, producer_id: str) -> None:
        self._id = producer_id
        self._busy = False

    def transaction(self) -> KeptTransaction:
        return KeptTransaction(self)

    def begin(self) -> None:
        """Enter the one transaction that may be open."""
        if self._busy:
            raise BusError(f"producer {self._id!r} is in a transaction already; end that one first")
        self._busy = True

    def end(self) -> None:
        """Leave the transaction."""
        self._busy = False

    @abstractmethod
    def positions_of(self, consumer: Consumer) -> Positions | None:
        """Give the positions of a consumer; None: it is another bus's."""

    @abstractmethod
    async def commit(self, messages: Sequence[Message], positions: Positions) -> None:
        """Let records and positions take effect together."""
