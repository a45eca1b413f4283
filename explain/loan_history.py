"""Every loan of a log: when it began, when it was called back, and how late it was back.

What is told of a loan is found out here alone: lists of loans and of reclaims say the same of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

#: Facts of a loan's life.
FACTS = ("LoanGranted", "ReclaimStarted", "LoanReturned", "LoanLost")
#: Bytes of which an entry that tells of a loan holds one.
WANTED = tuple(f'"{fact}"'.encode() for fact in FACTS)
#: How far a loan has come; of one that is lost, the node died on loan.
Progress = Literal["lent", "going", "back", "lost"]


class Told(Protocol):
    """What is read of an entry of the journal."""

    @property
    def number(self) -> int:
        """Its number."""

    @property
    def at_s(self) -> float:
        """When it was decided."""

    @property
    def decision(self) -> Mapping[str, Any]:
        """What was decided."""


@dataclass(slots=True)
class PastLoan:
    """A loan of a node; moments in seconds since the Unix epoch, None where it did not come."""

    node: str
    pool: str | None  #: None: the state does not know the node any more.
    since_s: float | None  #: None: before the log begins.
    state: Progress = "lent"
    called_s: float | None = None
    called_entry: int | None = None  #: The entry that called it back.
    due_s: float | None = None  #: When its owner was expected to need it.
    end_s: float | None = None  #: When it was back or lost.
    end_entry: int | None = None
    late_s: float = 0.0  #: So much later than due it ended; so far, if it goes still.


def late_by(due_s: float | None, end_s: float | None, now_s: float) -> float:
    """Say by how much a node was late, or is so far if it is not back, in seconds."""
    return 0.0 if due_s is None else max(0.0, (now_s if end_s is None else end_s) - due_s)


def loans_in(entries: Iterable[Told], pools: Mapping[str, str], now_s: float) -> list[PastLoan]:
    """Tell all loans, in the order in which they are first told of.

    A loan from before the entries is told of once it is called back.

    Args:
        entries: Those of a cell that hold one of `WANTED`, in order; others change nothing.
        pools: By node its pool; a node that is not there any more has none.
        now_s: The moment up to which they are told: what is overdue then is late so far.
    """
    found: list[PastLoan] = []
    on_loan: dict[str, PastLoan] = {}
    for entry in entries:
        for kind, fields in entry.decision.get("facts", ()):
            if kind not in FACTS:
                continue
            node, loan = fields["node"], on_loan.get(fields["node"])
            if kind == "LoanGranted" or (loan is None and kind == "ReclaimStarted"):
                since_s = entry.at_s if kind == "LoanGranted" else None
                loan = on_loan[node] = PastLoan(node, pools.get(node), since_s)
                found.append(loan)
            if loan is None:
                continue
            if kind == "ReclaimStarted":
                loan.state, loan.called_s, loan.called_entry = "going", entry.at_s, entry.number
                loan.due_s = fields["due_s"]
            elif kind != "LoanGranted":
                loan.state = "back" if kind == "LoanReturned" else "lost"
                loan.end_s, loan.end_entry = entry.at_s, entry.number
                del on_loan[node]
    for loan in found:
        loan.late_s = late_by(loan.due_s, loan.end_s, now_s)
    return found
