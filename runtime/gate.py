"""The gate: which of the records that reach an agent are commands for it, from its scheduler.

Whatever a broker hands over may be forged. The signature is checked first, over the bytes as they
came, so that nothing else of a forgery is ever read. What is refused here was no command to us:
it becomes a dead letter, and no ack. What the core refuses (`runtime.core`) was one, and gets an
ack.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from bus.contract import Record
from schemas.codec import CommandEnvelope, Rejected, decode_command

#: Why a record is no command to this agent.
Kind = Literal["unsigned", "forged", "unknown_key", "unreadable", "misaddressed", "other_cell"]

#: Dead letters in one minute. A flood of forgeries is counted whole, and its first ones are kept.
LETTERS_PER_MINUTE = 10

#: An ack names the command by `schemas.values.Name`, which is narrower than an envelope's id.
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}").fullmatch


class Verifier(Protocol):
    """Knows whose commands are obeyed; `bus.signing.Verifier` is the real one."""

    def problem(self, value: bytes, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Find why these bytes are not to be obeyed: header and reason; None if they are."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record is no command to us: what is counted, and what the dead letter says."""

    kind: Kind
    field: str
    reason: str


class Gate:
    """Reads the records of one agent."""

    def __init__(self, agent: str, cell: str, verifier: Verifier | None) -> None:
        """Without a verifier, whoever can write to the bus is obeyed: the embedded default."""
        self._agent, self._cell, self._verifier = agent, cell, verifier
        self._minute, self._letters = -1, 0

    def read(self, record: Record) -> CommandEnvelope | Refusal:
        """Give the command, or why it is none to us."""
        value = record.value or b""
        if self._verifier is not None:
            problem = self._verifier.problem(value, record.headers)
            if problem is not None:
                return Refusal(_kind(problem[0], record.headers), *problem)
        decoded = decode_command(value)
        if isinstance(decoded, Rejected):
            return Refusal("unreadable", decoded.field, decoded.reason)
        if decoded.subject != self._agent:
            reason = f"is {decoded.subject}, this is {self._agent}"
            return Refusal("misaddressed", "subject", reason)
        if decoded.cell != self._cell:
            reason = f"is {decoded.cell}, this agent belongs to {self._cell}"
            return Refusal("other_cell", "cell", reason)
        if not _is_name(decoded.id):
            reason = "a command's id has letters, digits and ._:- only"
            return Refusal("unreadable", "id", reason)
        return decoded

    def keeps_letter(self, now_s: float) -> bool:
        """Whether there is room for one more dead letter in this minute; takes it."""
        minute = int(now_s // 60)
        if minute != self._minute:
            self._minute, self._letters = minute, 0
        self._letters += 1
        return self._letters <= LETTERS_PER_MINUTE


def _kind(header: str, headers: Mapping[str, str]) -> Kind:
    """Tell apart, for the counters, what the verifier names by header."""
    if header == "kid":
        return "unknown_key"
    return "unsigned" if header == "sig" and "sig" not in headers else "forged"
