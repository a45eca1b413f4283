"""What the laws take for explained: a message that the engine need not be told, a dead letter."""

import orjson

from bus.contract import Record
from schemas.topics import JOURNAL, TELEMETRY, dead_letters
from tests.chaos.ledger import Entry, Said
from tests.whole.laws import CANCELLED, LOAD, _moved, _pointless

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


def test_a_load_of_a_pool_that_an_agent_was_moved_from_is_a_dead_letter_that_is_explained() -> None:
    def joined(time_s: float, agent: str, pool: str) -> Record:
        stimulus = {"kind": "NodeBorn", "cause": ["", -1, 0, 0.0], "data": {}}
        decision = {"facts": [["NodeJoined", {"agent": agent, "pool": pool}]]}
        written = {"number": 0, "at_s": 0.0, "stimulus": stimulus, "decision": decision}
        return Record(JOURNAL.name, 0, "", orjson.dumps({"data": written}), {}, time_s)

    def letter(agent: str, pool: str, time_s: float) -> Record:
        said = {"source": f"/agents/{agent}", "bootid": 0, "sequence": "1", "type": LOAD}
        value = orjson.dumps({**said, "time": "2026-01-05T00:00:00Z", "data": {"pool": pool}})
        return Record(dead_letters(TELEMETRY).name, 0, "", value, {}, time_s)

    journal = [joined(1.0, "a", "old"), joined(2.0, "b", "old"), joined(9.0, "a", "new")]
    for pool, time_s in (("old", 9.5), ("new", 9.0), ("new", 8.0)):
        assert len(_moved([letter("a", pool, time_s)], journal)) == 1
    others = letter("a", "old", 8.0), letter("a", "else", 9.5), letter("b", "old", 9.5)
    assert _moved(others, journal) == set()
