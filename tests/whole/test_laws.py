"""What the laws take for explained: a message that the engine need not be told."""

from tests.chaos.ledger import Entry, Said
from tests.whole.laws import CANCELLED, _pointless

ACCEPTED = Entry(0, 1.0, "JobSubmitted", ("/tenants/t", 0, 1), {}, [("JobAccepted", {"job": "a"})])


def test_nobody_need_be_told_to_cancel_what_is_not_known() -> None:
    known = Said(("/tenants/t", 0, 2), CANCELLED, 2.0, {"job": "a"})
    unknown = Said(("/tenants/t", 0, 3), CANCELLED, 3.0, {"job": "b"})
    assert _pointless([known, unknown], [ACCEPTED]) == {unknown.cause}


def test_nobody_need_be_told_to_cancel_what_an_operator_had_cancelled() -> None:
    """Seed 980179: a tenant's word was read after the request of an operator for the same job."""
    one = Said(("/tenants/t", 0, 2), CANCELLED, 2.0, {"job": "a"})
    done = Said(("/agents/x", 0, 9), "tidegate.command.acknowledged.v1", 3.0, {})
    asked = Entry(1, 2.0, "Requested", None, {}, [("CancelRequested", {"job": "a"})])
    told = Entry(2, 3.0, "CommandAcknowledged", done.cause, {}, [])
    assert _pointless([one, done], [ACCEPTED, asked, told]) == {one.cause}
    assert _pointless([one, done], [ACCEPTED, told]) == set()
