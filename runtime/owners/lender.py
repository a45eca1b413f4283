"""The interface of lenders, which make an owner leave a node and return to it, and confirm both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

#: What a lender can be asked to do with a node.
Operation = Literal["drain", "hand_back"]

#: While an operation is under way, lenders are polled this often.
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an operation: confirmed if `error` is empty, else failed for that reason."""

    node: str
    operation: Operation
    error: str = ""


class Lender(Protocol):
    """Frees nodes of their owner and gives them back. No call blocks; `poll` gives the outcomes.

    Each operation ends in one `Outcome`, within the lender's own time limit. Beginning one abandons
    another that is under way on that node, which then has no outcome; beginning the same one again
    while it is under way changes nothing. Operations are idempotent, also after a crash in the
    middle of one.
    """

    def begin(self, node: str, operation: Operation, now_s: float) -> None:
        """Begin to take the owner off the node, or to bring it back.

        Done when nothing of it is left there, or when it serves there.
        """
        ...

    def poll(self, now_s: float) -> Sequence[Outcome]:
        """Continue operations; give the outcomes since the last call, in order."""
        ...

    def next_due_s(self) -> float | None:
        """When to poll next; None if nothing is under way."""
        ...

    def problems(self) -> list[str]:
        """Give problems that are not the outcome of an operation."""
        ...


def filled(argv: Sequence[str], **values: str) -> list[str]:
    """Give a command with each `{name}` replaced by its value; other braces stay as they are."""
    return [filled_text(part, **values) for part in argv]


def filled_text(text: str, **values: str) -> str:
    """Give the text with each `{name}` replaced by its value."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
