"""A journal that was forged and chained anew: each verb that reads it names the entry, and why."""

import re
from pathlib import Path
from typing import Any

import pytest

from bus.contract import Record
from schemas.topics import SNAPSHOTS
from tests.golden.alter import Capture, Change, altered, ran, rechained

LOG = Path(__file__).parent / "verbs.jsonl.zst"
JOB = "job-01"


def in_entry(number: int, change: Change) -> Change:
    """Change one entry alone."""

    def only(at: int, stimulus: dict[str, Any], decision: dict[str, Any]) -> None:
        if at == number:
            change(at, stimulus, decision)

    return only


def _nobody_asks(_: int, stimulus: dict[str, Any], __: dict[str, Any]) -> None:
    del stimulus["data"]["request"]["tenant"]


def _a_fact_is_a_number(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    decision["facts"][0][1] = 7


def _a_fact_is_a_text(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    decision["facts"][0][1] = ""


def _a_fact_is_another(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    fields = next(one for one in decision["facts"] if one[1].get("job") == JOB)[1]
    decision["facts"].append(["CommandIssued", fields])


def _reasons_are_lists(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    decision["reasons"] = [[1]]


def _reasons_are_an_object(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    decision["reasons"] = {JOB: 1}


def _a_job_nobody_knows(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    next(one for one in decision["facts"] if one[1].get("job") == JOB)[1]["job"] = "job-77"


def _a_job_ends_twice(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    decision["facts"] += [["JobCompleted", {"job": JOB}]] * 2


#: By name: the entry, what is done to it.
FORGERIES: dict[str, tuple[int, Change]] = {
    "a request without a tenant": (66, _nobody_asks),
    "a fact that is a number": (231, _a_fact_is_a_number),
    "a fact that is a text": (266, _a_fact_is_a_text),
    "a fact of another kind": (63, _a_fact_is_another),
    "reasons that are lists": (201, _reasons_are_lists),
    "reasons that are an object": (62, _reasons_are_an_object),
    "a job that nobody knows": (63, _a_job_nobody_knows),
    "a job that ends twice": (63, _a_job_ends_twice),
}
READERS = {
    "perfetto": ("journal", "perfetto", "LOG", "trace.json"),
    "replay": ("replay", "LOG"),
    "replay --job": ("replay", "LOG", "--job", JOB),
    "replay --step": ("replay", "LOG", "--step"),
    "branch": ("branch", "LOG", "--entry", "300", "--hours", "0.1"),
    "why": ("why", JOB, "--log", "DATABASE"),
    "timeline": ("timeline", JOB, "--log", "DATABASE"),
    "audit": ("audit", "--log", "DATABASE"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_a_journal_cannot_hold_is_said_of_its_entry(
    forgery: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    number, change = FORGERIES[forgery]
    log = rechained(LOG, tmp_path / "forged.jsonl", in_entry(number, change))
    database = tmp_path / "forged.db"
    assert ran(capsys, "journal", "import", log, "--log", database)[0] == 0
    places = {"LOG": log, "DATABASE": database}
    noticed = 0
    for reader, words in READERS.items():
        code, shown, said = ran(capsys, *(places.get(word, word) for word in words))
        assert code in (0, 1, 2), reader
        if code == 1:
            assert f"Different: decision {number}," in shown, reader
        elif code == 2:
            assert f"entry {number}" in said, reader
            assert len(said.strip().splitlines()) == 1, reader
        noticed += code > 0
    assert noticed


def test_what_was_asked_with_a_key_before_is_said_of_its_entry(
    tmp_path: Path, capsys: Capture
) -> None:
    def says_little(_: int, stimulus: dict[str, Any], __: dict[str, Any]) -> None:
        stimulus["data"]["request"] = {"id": "r7"}

    log = rechained(LOG, tmp_path / "forged.jsonl", in_entry(66, says_little))
    database = tmp_path / "forged.db"
    assert ran(capsys, "journal", "import", log, "--log", database)[0] == 0
    submit = ("submit", "--gpus", "1", "--key", "r7", "--log", database, "--", "true")
    code, shown, said = ran(capsys, *submit)
    assert (code, shown) == (2, "")
    assert said.startswith("journal entry 66 holds what no scheduler of this release writes: ")


@pytest.mark.parametrize(
    "forgery", [name for name in FORGERIES if name.startswith(("a fact", "a job"))]
)
def test_whoever_reads_the_state_alone_names_the_entry_too(
    forgery: str, tmp_path: Path, capsys: Capture
) -> None:
    number, change = FORGERIES[forgery]
    whole = altered(LOG, tmp_path / "whole.jsonl", lambda one: one if _is_kept(one) else None)
    log = rechained(whole, tmp_path / "forged.jsonl", in_entry(number, change))
    database = tmp_path / "forged.db"
    assert ran(capsys, "journal", "import", log, "--log", database)[0] == 0
    code, shown, said = ran(capsys, "nodes", "--log", database)
    assert (code, shown) == (2, "")
    named = re.match(r"journal entry (\d+) (holds|does not follow)", said)
    assert named is not None
    assert int(named[1]) >= number, "or one that does not follow from it"


def _is_kept(record: Record) -> bool:
    """Leave snapshots out: who has them need not read what is before."""
    return record.topic != SNAPSHOTS.name


@pytest.mark.parametrize(
    "words",
    [
        ("branch", "LOG", "--hours", "0.1"),
        ("replay", "LOG", "--jobs", "1"),
        ("replay", "LOG", "--jobs", "2"),
    ],
)
def test_a_state_that_cannot_be_written_is_of_the_entry_that_it_is_after(
    tmp_path: Path, capsys: Capture, words: tuple[str, ...]
) -> None:
    def no_pool(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
        for name, fields in decision["facts"]:
            if name == "NodeJoined":
                fields["pool"] = None

    # Without snapshots, or these would be found to hold another state first.
    whole = altered(LOG, tmp_path / "whole.jsonl", lambda one: one if _is_kept(one) else None)
    log = rechained(whole, tmp_path / "forged.jsonl", no_pool)
    code, shown, said = ran(capsys, *(log if word == "LOG" else word for word in words))
    if words[0] == "branch":
        assert (code, shown) == (2, "")
        assert "journal entry 434 holds what no scheduler of this release writes" in said
    else:
        assert code == 1
        assert "Different: decision " in shown


def test_a_branch_from_a_state_that_no_scheduler_makes_says_so(
    tmp_path: Path, capsys: Capture
) -> None:
    def unknown_kind(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
        for name, fields in decision["facts"]:
            if name == "NodeJoined":
                fields["pool_kind"] = ""

    log = rechained(LOG, tmp_path / "forged.jsonl", unknown_kind)
    code, shown, said = ran(capsys, "branch", log, "--entry", "100", "--hours", "0.1")
    assert (code, shown) == (2, "")
    assert said.startswith("what follows entry 100 cannot be worked out: KeyError: ''; `tidegate ")
    assert len(said.strip().splitlines()) == 1
