"""The gate: accepts only records that are commands of the agent's scheduler to this agent.

Any record from a broker may be forged. The signature is checked first, over the bytes as they came,
so that nothing else of a forgery is parsed. A record that is refused here is no command to this
agent: it becomes a dead letter, without an ack. A command that the core refuses (`runtime.core`)
gets an ack.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from bus.contract import Record
from schemas.codec import CommandEnvelope, Rejected, decode_command

#: Why a record is no command to this agent.
Kind = Literal["unsigned", "forged", "unknown_key", "unreadable", "misaddressed", "other_cell"]

#: Those of what no trusted key has signed. One is enough for an alert, so they are shown at 0.
UNVOUCHED: tuple[Kind, ...] = ("unsigned", "unknown_key", "forged")

#: The most dead letters in a minute. A flood of forgeries is counted; only the first are kept.
LETTERS_PER_MINUTE = 10

#: An ack names the command by a `schemas.values.Name`, which allows less than an envelope's id.
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}").fullmatch


class Verifier(Protocol):
    """Checks the signature of commands; `bus.signing.Verifier` is the real one."""

    def problem(self, value: bytes, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Give the header and the reason why these bytes are refused; None if they are good."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record is refused: what is counted, and what the dead letter says."""

    kind: Kind
    field: str
    reason: str


class Gate:
    """Reads the records of one agent."""

    def __init__(self, agent: str, cell: str, verifier: Verifier | None) -> None:
        """Without a verifier, commands of whoever can write to the bus are accepted."""
        self._agent, self._cell, self._verifier = agent, cell, verifier
        self._minute, self._letters = -1, 0

    def read(self, record: Record) -> CommandEnvelope | Refusal:
        """Give the command, or why the record is refused."""
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
    """Give the counter for what the verifier names by header."""
    if header == "kid":
        return "unknown_key"
    return "unsigned" if header == "sig" and "sig" not in headers else "forged"
