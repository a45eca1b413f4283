"""What an entry tells of a loan, and how late a node was back."""

from dataclasses import dataclass, field
from typing import Any

from explain.loan_history import PastLoan, loans_in


@dataclass
class Entry:
    """What is read of an entry of the journal."""

    number: int
    at_s: float
    decision: dict[str, Any] = field(default_factory=dict)


def entry(number: int, kind: str, node: str = "n", **fields: Any) -> Any:
    return Entry(number, number * 10.0, {"facts": [[kind, {"node": node, **fields}]]})


def test_a_loan_from_beginning_to_end() -> None:
    told = [
        entry(1, "LoanGranted"),
        entry(2, "LoanGranted", "other"),
        entry(5, "ReclaimStarted", due_s=80.0),
        entry(6, "ReclaimStarted", due_s=70.0),  # the owner needs it sooner than it said
        entry(9, "LoanReturned"),
        entry(10, "LoanGranted"),
        entry(11, "LoanLost", "other"),
    ]
    assert loans_in(told, {"n": "serve"}) == [
        PastLoan("n", "serve", 10.0, 50.0, 5, 70.0, 90.0, late_s=20.0),
        PastLoan("other", "", 20.0, lost_s=110.0),
        PastLoan("n", "serve", 100.0),
    ]


def test_what_was_lent_before_the_entries_begin_is_left_out() -> None:
    told = [
        entry(1, "ReclaimStarted", due_s=20.0),
        entry(2, "LoanReturned"),
        Entry(3, 30.0),
    ]
    assert loans_in(told, {}) == []


def test_in_time_is_not_late() -> None:
    told = [
        entry(1, "LoanGranted"),
        entry(2, "ReclaimStarted", due_s=30.0),
        entry(3, "LoanReturned"),
    ]
    (loan,) = loans_in(told, {})
    assert (loan.back_s, loan.late_s) == (30.0, 0.0)
