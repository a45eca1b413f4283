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
        entry(5, "ReclaimStarted", due_s=70.0),
        entry(9, "LoanReturned"),
        entry(10, "LoanGranted"),
        entry(11, "LoanLost", "other"),
    ]
    assert loans_in(told, {"n": "serve"}, 120.0) == [
        PastLoan("n", "serve", 10.0, "back", 50.0, 5, 70.0, 90.0, 9, late_s=20.0),
        PastLoan("other", None, 20.0, "lost", end_s=110.0, end_entry=11),
        PastLoan("n", "serve", 100.0),
    ]


def test_what_is_overdue_and_still_out_is_late_so_far() -> None:
    told = [entry(1, "LoanGranted"), entry(2, "ReclaimStarted", due_s=30.0)]
    for now_s, late_s in ((25.0, 0.0), (45.0, 15.0)):
        (loan,) = loans_in(told, {}, now_s)
        assert (loan.state, loan.late_s, loan.end_s) == ("going", late_s, None)


def test_what_was_lent_before_the_entries_begin_is_told_once_it_is_called_back() -> None:
    told = [
        entry(1, "LoanReturned", "other"),
        entry(2, "ReclaimStarted", due_s=20.0),
        entry(3, "LoanReturned"),
        Entry(4, 40.0),
    ]
    assert loans_in(told, {}, 40.0) == [
        PastLoan("n", None, None, "back", 20.0, 2, 20.0, 30.0, 3, late_s=10.0)
    ]


def test_in_time_is_not_late() -> None:
    told = [
        entry(1, "LoanGranted"),
        entry(2, "ReclaimStarted", due_s=30.0),
        entry(3, "LoanReturned"),
    ]
    (loan,) = loans_in(told, {}, 100.0)
    assert (loan.end_s, loan.late_s) == (30.0, 0.0)
