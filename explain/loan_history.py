"""Every loan of a log: when it began, when it was called back, and how late it was back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.journal import JournalEntry

#: Facts of a loan's life.
FACTS = ("LoanGranted", "ReclaimStarted", "LoanReturned", "LoanLost")
#: Bytes of which an entry that tells of a loan holds one.
WANTED = tuple(f'"{fact}"'.encode() for fact in FACTS)


@dataclass(slots=True)
class PastLoan:
    """A loan of a node; moments in seconds since the Unix epoch, None where it did not come."""

    node: str
    pool: str
    since_s: float
    called_s: float | None = None
    called_entry: int | None = None  #: The entry that called it back first.
    due_s: float | None = None  #: When its owner was expected to need it.
    back_s: float | None = None
    lost_s: float | None = None  #: It died on loan.

    late_s: float = 0.0  #: So much later than it was due it was back.


def loans_in(entries: Iterable[JournalEntry], pools: Mapping[str, str]) -> list[PastLoan]:
    """Tell all loans, in the order in which they began.

    Args:
        entries: Those of a cell that hold one of `WANTED`, in order; others change nothing.
        pools: By node its pool; a node that is not there any more has none.
    """
    found: list[PastLoan] = []
    on_loan: dict[str, PastLoan] = {}
    for entry in entries:
        for kind, fields in entry.decision.get("facts", ()):
            node, at_s = fields.get("node", ""), entry.at_s
            if kind == "LoanGranted":
                on_loan[node] = PastLoan(node, pools.get(node, ""), at_s)
                found.append(on_loan[node])
            elif (loan := on_loan.get(node)) is None:
                continue
            elif kind == "ReclaimStarted":
                if loan.called_s is None:
                    loan.called_s, loan.called_entry = at_s, entry.number
                loan.due_s = fields["due_s"]
            elif kind == "LoanReturned":
                loan.back_s = at_s
                loan.late_s = max(0.0, at_s - (at_s if loan.due_s is None else loan.due_s))
                del on_loan[node]
            elif kind == "LoanLost":
                loan.lost_s = at_s
                del on_loan[node]
    return found
