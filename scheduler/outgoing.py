"""What a scheduler sends: commands to agents, signed, and who leads its cell."""

from collections.abc import Mapping
from typing import Protocol

from bus.contract import Message
from scheduler.celltime import CellTime
from scheduler.core.stimuli import Command
from schemas.codec import cell_state, command, encode
from schemas.commands import AnyCommand, RenewLease, SendLog
from schemas.journal import CellState
from schemas.topics import CELLS, COMMANDS


class Signs(Protocol):
    """Vouches for commands; `bus.signing.Signer` does."""

    def headers(self, value: bytes) -> Mapping[str, str]:
        """Give the headers that go with these bytes."""
        ...


class Outgoing:
    """Writes the messages of one leader of a cell."""

    def __init__(self, cell: str, leader: str, signer: Signs | None, time: CellTime) -> None:
        """Write in the name of this leader; agents are told times of the clock, not of the cell."""
        self._time = time
        self._cell, self._leader, self._signer = cell, leader, signer
        self.sequence = 0  #: Of the next command.

    def command(self, order: Command, at_s: float, epoch: int) -> Message:
        """Write a decision's command as the leader of this epoch."""
        return self.order(order.id, order.agent, order.data, order.expires_s, at_s, epoch)

    def order(
        self, id: str, agent: str, data: AnyCommand, expires_s: float, at_s: float, epoch: int
    ) -> Message:
        """Write what an agent is told, whether it was decided or is said in passing."""
        ahead_s = self._time.ahead_s
        if ahead_s and isinstance(data, RenewLease | SendLog):
            data = data.model_copy(update={"until_s": data.until_s - ahead_s})
        envelope = command(
            data,
            id=id,
            source=f"/schedulers/{self._cell}",
            sequence=self.sequence,
            bootid=epoch,
            time_s=at_s - ahead_s,
            subject=agent,
            cell=self._cell,
            expiry_s=expires_s - ahead_s,
        )
        self.sequence += 1
        value = encode(envelope)
        headers = {} if self._signer is None else self._signer.headers(value)
        return Message(COMMANDS.name, agent, value, headers)

    def cell_state(self, now_s: float, epoch: int, *, online: bool) -> Message:
        """Write whether it leads."""
        word = CellState(
            online=online, leader=self._leader, leader_epoch=epoch, at_s=now_s - self._time.ahead_s
        )
        return Message(CELLS.name, self._cell, encode(cell_state(word, cell=self._cell)))
