"""A golden log has every verb of people in it; that it replays identically `test_golden` says."""

from collections import defaultdict
from pathlib import Path

import pytest

from bus.reading import open_log
from bus.signing import Verifier
from scheduler.audit import Audit
from schemas.journal import JournalEntry, decode_entry
from schemas.requests import VERB_NAMES
from schemas.topics import JOURNAL
from tests.golden.alter import ran
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


def test_a_narrow_terminal_shows_each_moment_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    moment = "2026-11-27 09:15:02"  # as of a log that is no demo's
    monkeypatch.setattr("console.audit.day_clock", lambda *_: moment)
    assert ran(capsys, "journal", "import", LOG, "--log", tmp_path / "run.db")[0] == 0
    code, shown, _ = ran(capsys, "audit", "--log", tmp_path / "run.db")
    assert code == 0
    assert shown.count(moment) > len(VERB_NAMES)
    assert "…" not in shown
