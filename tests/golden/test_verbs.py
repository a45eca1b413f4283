"""A golden log has every verb of people in it; that it replays identically `test_golden` says."""

from collections import defaultdict
from pathlib import Path

from bus.reading import open_log
from bus.signing import Verifier
from scheduler.audit import Audit
from schemas.journal import JournalEntry, decode_entry
from schemas.requests import VERB_NAMES
from schemas.topics import JOURNAL
from tests.golden.make_verbs import KEY

LOG = Path(__file__).parent / "verbs.jsonl.zst"


def test_every_verb_was_asked_for_and_done() -> None:
    """One that is added gets a line in `make_verbs.ASKED`; then make the log anew, by that."""
    answers: dict[str, set[str]] = defaultdict(set)
    with open_log(LOG) as log:
        for record in log.records():
            entry = decode_entry(record.value or b"") if record.topic == JOURNAL.name else None
            if isinstance(entry, JournalEntry) and entry.stimulus["kind"] == "Requested":
                verb = entry.stimulus["data"]["request"]["args"]["verb"]
                answers[verb] |= {name for name, _ in entry.decision["facts"]}
    assert {verb for verb, facts in answers.items() if "RequestDone" in facts} == set(VERB_NAMES)
    assert any("RequestRefused" in facts for facts in answers.values())


def test_what_was_asked_is_proved() -> None:
    audit = Audit(Verifier.of({KEY.key_id: KEY.public()}))
    with open_log(LOG) as log:
        audit.read(record for record in log.records() if record.topic == JOURNAL.name)
    assert audit.requests > len(VERB_NAMES)
    assert audit.findings == []
