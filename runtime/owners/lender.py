"""The Lender: whatever makes an owner leave a node and return to it, and confirms both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

#: What a lender can be asked to do with a node.
Deed = Literal["drain", "hand_back"]

#: While something is under way, lenders want to be asked this often.
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """A deed has ended: it is confirmed if `error` is empty, else it failed for that reason."""

    node: str
    deed: Deed
    error: str = ""


class Lender(Protocol):
    """Frees nodes of their owner and gives them back. No call waits; `poll` says what came of it.

    Each deed ends in one `Outcome`, within the lender's own time limit. Beginning one abandons
    what is under way on that node, which then has no outcome; beginning the same one again while
    it is under way changes nothing. Both bear repetition after they are done, and after a crash
    in the middle.
    """

    def begin_drain(self, node: str, now_s: float) -> None:
        """Begin to take the owner off the node; done when nothing of it is left there."""
        ...

    def begin_hand_back(self, node: str, now_s: float) -> None:
        """Begin to bring the owner back to the node; done when it serves there."""
        ...

    def poll(self, now_s: float) -> Sequence[Outcome]:
        """Carry on with what is under way; give what has ended since the last call, in order."""
        ...

    def next_due_s(self) -> float | None:
        """When to poll next; None if nothing is under way."""
        ...

    def problems(self) -> list[str]:
        """Say what is wrong that is not the outcome of a deed; empty if nothing is."""
        ...


def filled(argv: Sequence[str], **values: str) -> list[str]:
    """Give a command with each `{name}` replaced by its value; other braces stay as they are."""
    return [filled_text(part, **values) for part in argv]


def filled_text(text: str, **values: str) -> str:
    """Give the text with each `{name}` replaced by its value."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
