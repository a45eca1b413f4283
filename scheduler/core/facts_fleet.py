"""What the engine decided about loans, commands and cycles: facts, as in `facts`, which has all."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class LenderRenamed:
    """A lender has another name, since an agent came to share its pool, or shares it no more."""

    lender: str
    to: str


@dataclass(slots=True)
class LoanRequested:
    """An owner was asked for a node; or was, in what the log has lost, and its agent says so."""

    loan: str
    node: str


@dataclass(slots=True)
class LoanGranted:
    """The node is training's, until reclaimed."""

    node: str


@dataclass(slots=True)
class LoanRefused:
    """The owner keeps the node."""

    node: str
    reason: str


@dataclass(slots=True)
class ReclaimStarted:
    """The node goes back; the owner is expected to need it at `due_s`."""

    node: str
    due_s: float


@dataclass(slots=True)
class ReturnOrdered:
    """The node is empty; its agent was told to hand it back."""

    node: str


@dataclass(slots=True)
class LoanReturned:
    """The owner has the node again."""

    node: str


@dataclass(slots=True)
class LoanLost:
    """The node died on loan."""

    node: str


@dataclass(slots=True)
class CommandIssued:
    """A command is on its way and awaits its acknowledgement.

    `data` is what it says, but of a start not the `spec`: that is made of the job, whose program
    may be long (`orders.reissue`).
    """

    command: str
    kind: str
    agent: str
    subject: str
    data: dict[str, Any]
    expires_s: float


@dataclass(slots=True)
class CommandRepeated:
    """A command was sent once more, with the same id."""

    command: str


@dataclass(slots=True)
class CommandDone:
    """The agent carried it out, or durably took it on."""

    command: str


@dataclass(slots=True)
class CommandRefused:
    """The agent refused it."""

    command: str
    reason: str


@dataclass(slots=True)
class CommandExpired:
    """Nobody acknowledged it in time."""

    command: str


@dataclass(slots=True)
class CycleRan:
    """The policy was asked; it will be asked again at `next_s` at the latest."""

    policy: str
    next_s: float


@dataclass(slots=True)
class PolicyFailed:
    """The policy raised instead of giving a plan; all stays as it is until the next cycle."""

    policy: str
    error: str
