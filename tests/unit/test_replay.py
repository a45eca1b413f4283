"""The options of replay, and what `tidegate journal` shows of a log."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus.contract import Record, Unreadable
from bus.logfile import Head, write_log
from bus.reading import open_log
from scheduler.compare import Comparison
from scheduler.journal import JournalReader
from scheduler.policies.registry import make_policy
from scheduler.replay import verify
from schemas.journal import NO_DIGEST, chain, decode_entry, encode_entry, raw_entry
from schemas.parse import Rejected
from schemas.topics import JOURNAL
from tests.golden.alter import Capture, ran

FOLDER = Path(__file__).parent.parent / "golden"
LOG = FOLDER / "fifo.jsonl.zst"
START_S = 1_767_571_200.0

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: Capture) -> Run:
    return partial(ran, capsys)


def told(run: Run, *arguments: object) -> dict[str, Any]:
    """Run a command that ends well; give what it says as JSON."""
    code, shown, _ = run(*arguments, "--json", "-")
    assert code == 0
    document: dict[str, Any] = orjson.loads(shown)
    return document


@pytest.fixture(scope="module")
def journal() -> list[Record]:
    with open_log(LOG) as log:
        return list(log.records(JOURNAL.name))


@pytest.fixture(scope="module")
def newest() -> list[Record]:
    """Give a journal as this release writes it; `journal` is of an earlier one."""
    with open_log(FOLDER / "tide.jsonl.zst") as log:
        return list(log.records(JOURNAL.name))


@pytest.fixture(scope="module")
def failed_once(journal: list[Record]) -> str:
    """Give a job that failed once and then completed: which it is, the log decides."""
    entries = [decode_entry(record.value or b"") for record in journal]
    facts = [
        fact for one in entries if not isinstance(one, Rejected) for fact in one.decision["facts"]
    ]
    queued = Counter(data["job"] for name, data in facts if name == "JobQueued")
    completed: list[str] = [data["job"] for name, data in facts if name == "JobCompleted"]
    return next(job for job in completed if queued[job] == 1)


# --- entries -----------------------------------------------------------------------------------


def test_an_entry_is_taken_apart_as_it_was_written(newest: list[Record]) -> None:
    digest = NO_DIGEST
    for record in newest[:50]:
        value = record.value or b""
        raw, entry = raw_entry(value, digest), decode_entry(value)
        assert raw is not None
        assert not isinstance(entry, Rejected)
        assert (raw.number, raw.at_s, raw.policy) == (entry.number, entry.at_s, entry.policy)
        assert orjson.loads(raw.stimulus) == entry.stimulus
        assert orjson.loads(raw.decision) == entry.decision
        digest = raw.digest
        assert digest == entry.digest


def test_facts_of_an_earlier_release_have_the_names_of_now(journal: list[Record]) -> None:
    assert raw_entry(journal[0].value or b"", NO_DIGEST) is None
    reader = JournalReader()
    found = [entry for record in journal if (entry := reader.read(record)) is not None]
    facts = [fact for entry in found for fact in orjson.loads(entry.decision)["facts"]]
    assert not any("cells" in fields for _, fields in facts)
    assert {"GangStarting", "TargetSet"} <= {kind for kind, _ in facts}
    assert all(fields["allocation"] for kind, fields in facts if kind == "GangStarting")


@pytest.mark.parametrize(
    "decision", [{}, {"facts": 5}, {"facts": [["TargetSet"]]}, {"facts": [["TargetSet", 5]]}]
)
def test_an_entry_of_an_earlier_release_that_is_none_is_refused(decision: dict[str, Any]) -> None:
    entry = chain(NO_DIGEST, 0, 5.0, {"kind": "TimePassed"}, decision, policy="fifo", version=1)
    record = Record(JOURNAL.name, 0, "default", encode_entry(entry), {}, 5.0)
    with pytest.raises(Unreadable, match="cannot be brought up to date"):
        JournalReader().read(record)


@pytest.mark.parametrize("position", range(0, 1200, 37))
def test_a_changed_entry_is_not_taken_apart(position: int, newest: list[Record]) -> None:
    value = newest[0].value or b""
    at = position % len(value)
    changed = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
    raw = raw_entry(changed, NO_DIGEST)
    # Of the envelope, only what is used is looked at: the digest covers what was decided.
    if raw is not None:
        assert raw.digest == decode_entry_digest(value)
        assert at < value.index(b'"data":')


def decode_entry_digest(value: bytes) -> str:
    entry = decode_entry(value)
    assert not isinstance(entry, Rejected)
    return entry.digest


def test_an_entry_written_otherwise_is_read_all_the_same() -> None:
    """Another writer may order keys or put spaces; the digest is over what the entry means."""
    entry = chain(NO_DIGEST, 0, 5.0, {"kind": "TimePassed"}, {"facts": []}, policy="fifo")
    loose = orjson.dumps(orjson.loads(encode_entry(entry)), option=orjson.OPT_INDENT_2)
    assert raw_entry(loose, NO_DIGEST) is None
    read = JournalReader().read(Record(JOURNAL.name, 0, "default", loose, {}, 5.0))
    assert read is not None
    assert (read.digest, read.stimulus) == (entry.digest, b'{"kind":"TimePassed"}')


def test_cells_are_replayed_one_at_a_time(journal: list[Record]) -> None:
    def of(cell: str, record: Record) -> Record:
        return Record(record.topic, 0, cell, record.value, {}, record.time_s)

    mixed = [of(cell, record) for record in journal[:20] for cell in ("default", "west")]
    with pytest.raises(Unreadable, match="several cells, default and west among them"):
        verify(mixed)
    assert verify(mixed, cell="default").decisions == 20
    with pytest.raises(Unreadable, match="no journal of cell east"):
        verify(mixed, cell="east")
    with pytest.raises(Unreadable, match="no journal"):
        verify([])


def test_a_journal_of_an_unknown_policy_is_refused(journal: list[Record]) -> None:
    stimulus = {
        "kind": "LeaderStarted",
        "at_s": 1.0,
        "cause": ["scheduler", -1, -1],
        "data": {"leader": "s", "leader_epoch": 1, "policy": "none", "settings": {}},
    }
    entry = chain(NO_DIGEST, 0, 1.0, stimulus, {"facts": []}, policy="none")
    record = Record(JOURNAL.name, 0, "default", encode_entry(entry), {}, 1.0)
    with pytest.raises(Unreadable, match="policy 'none' is not known"):
        verify([record])


# --- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "end_s"),
    [
        ("3600", 3600.0),
        ("1h30m", 5400.0),
        ("2026-01-05T01:00:00", 3600.0),
        ("d0 01:30", 5400.0),  # as the replay itself shows moments
    ],
)
def test_until_stops_at_a_moment(until: str, end_s: float, run: Run, journal: list[Record]) -> None:
    before = sum(record.time_s <= START_S + end_s for record in journal)
    assert told(run, "replay", LOG, "--until", until)["decisions"] == before
    assert 0 < before < len(journal)


def test_a_cell_that_began_after_the_moment_keeps_no_other_from_being_replayed(
    run: Run, newest: list[Record], tmp_path: Path
) -> None:
    path = tmp_path / "two.jsonl"
    first = [replace(one, offset=offset) for offset, one in enumerate(newest[:40])]
    late = decode_entry(first[0].value or b"")
    assert not isinstance(late, Rejected)
    later_s = first[-1].time_s + 3600.0
    stimulus = {**late.stimulus, "at_s": later_s}
    entry = chain(NO_DIGEST, 0, later_s, stimulus, late.decision, policy=late.policy)
    west = replace(first[0], offset=40, key="west", value=encode_entry(entry), time_s=later_s)
    write_log(path, Head({JOURNAL.name: 41}), [*first, west])
    until = datetime.fromtimestamp(first[-1].time_s + 1.0, UTC).isoformat()
    assert told(run, "replay", path, "--until", until)["decisions"] == 40


def test_a_story_has_everything_about_a_job_in_order(run: Run, failed_once: str) -> None:
    story = told(run, "replay", LOG, "--job", failed_once)["story"]
    assert [line["at_s"] for line in story] == sorted(line["at_s"] for line in story)
    names = [line["name"] for line in story]
    life = ["JobAccepted", "GangStarting", "WorkerFailed", "JobQueued", "JobCompleted"]
    assert names.count("GangStarting") == 2
    assert sorted(life, key=names.index) == life
    assert {line["kind"] for line in story} == {"event", "fact", "command", "reason"}
    commands = [line["fields"]["command"] for line in story if line["kind"] == "command"]
    done = [line["fields"]["command"] for line in story if line["name"] == "CommandDone"]
    assert sorted(commands) == sorted(done)

    code, shown, _ = run("replay", LOG, "--job", failed_once)
    assert code == 0
    assert f"The story of {failed_once}" in shown
    assert "StartGang to train-agent" in shown
    assert "Identical" in shown


def test_step_shows_every_decision(run: Run) -> None:
    code, shown, _ = run("replay", LOG, "--until", "600", "--step")
    assert code == 0
    assert "0  +0:00:00  LeaderStarted" in shown
    assert "LeaderChanged" in shown
    assert "job-00 JobAccepted" in shown


def test_another_policy_is_compared_at_each_recorded_moment(run: Run) -> None:
    document = told(run, "replay", LOG, "--policy", "tide", "--diff", "--until", "2h")
    found = document["comparison"]
    assert document["identical"] is True
    assert found["policy"] == "tide"
    assert 0 < found["cycles_differing"] <= found["cycles"]
    assert found["first"]["jobs"] or found["first"]["nodes"]
    assert found["lend"]["only_recorded"] == 0  # fifo never lends
    _, shown, _ = run("replay", LOG, "--policy", "tide", "--diff", "--until", "1h")
    assert "would have decided at each recorded moment" in shown
    assert "what would have come of them is not" in " ".join(shown.split())
    assert "First at d0 00:01:" in shown, "as all commands write moments"
    assert START_S + 60 <= found["first"]["at_s"] < START_S + 120, "a program gets it in seconds"


def test_a_policy_does_not_differ_from_itself(journal: list[Record]) -> None:
    comparison = Comparison(make_policy, "fifo:backfill=easy")
    result = verify(journal, policies=comparison.policy)
    found = comparison.to_dict()
    assert result.identical
    assert found["cycles"] > 300
    assert found["policy"] == "fifo:backfill=easy", "two variants of a policy are told apart"
    assert (found["cycles_differing"], found["first"], found["jobs"]) == (0, None, [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--until", "soon"), "--until: 'soon' is no moment"),
        (("--policy", "tide"), "go together"),
        (("--diff",), "go together"),
        (("--policy", "none", "--diff"), "choose one of"),
        (("--job", "job-99"), "job-99 is nowhere in this log"),
        (("--step", "--json", "-"), "give --json a file"),
        (("--cell", "east"), "no journal of cell east"),
        (("--json", "/no/such/folder/x"), "cannot be written"),
        (("--frobnicate",), "frobnicate"),
    ],
)
def test_bad_usage_is_said_in_a_sentence(arguments: tuple[str, ...], says: str, run: Run) -> None:
    code, _, said = run("replay", LOG, *arguments)
    assert code == 2
    assert says in said


# --- tidegate journal --------------------------------------------------------------------------


def test_stats_count_what_is_there(run: Run, journal: list[Record]) -> None:
    document = told(run, "journal", "stats", "--log", LOG)
    assert document["topics"][JOURNAL.name]["records"] == len(journal)
    assert document["topics"][JOURNAL.name]["keys"] == 1
    assert document["dead_letters"] == {"message: malformed": 2}
    assert "/agents/train-agent" in document["sources"]
    assert document["begin_s"] >= START_S
    topics = document["topics"].values()
    assert document["records"] == sum(topic["records"] for topic in topics)
    code, shown, _ = run("journal", "stats", "--log", LOG)
    assert (code, "Dead letters: 1\n" in shown) == (0, True)
    assert run("log", "stats", "--log", LOG) == (0, shown, ""), "the name of an earlier release"


def test_tail_shows_the_newest(run: Run, journal: list[Record]) -> None:
    records = told(run, "journal", "tail", "-n", 3, "--topic", "journal", "--log", LOG)["records"]
    assert [record["offset"] for record in records] == [r.offset for r in journal[-3:]]
    assert records[-1]["value"]["data"]["number"] == len(journal) - 1
    code, shown, _ = run("journal", "tail", "-n", 7, "--log", LOG)
    assert (code, len(shown.splitlines())) == (0, 7)
    code, shown, _ = run("journal", "tail", "--topic", "events.dlq", "--log", LOG)
    assert (code, shown.count("malformed: is not JSON")) == (0, 2)
    code, _, said = run("journal", "tail", "--topic", "gossip", "--log", LOG)
    assert (code, "gossip is no topic" in said) == (2, True)
    code, _, said = run("journal", "tail", "--follow", "--log", LOG, "--json", "-")
    assert (code, "never ends" in said) == (2, True)


def test_export_and_import_say_what_they_made(tmp_path: Path, run: Run) -> None:
    database, copy = tmp_path / "a.db", tmp_path / "b.jsonl.zst"
    made = told(run, "journal", "import", LOG, "--log", database)
    assert made["bytes"] == database.stat().st_size
    code, shown, _ = run("journal", "export", copy, "--log", database)
    assert (code, f"Exported {made['records']:,} records" in shown) == (0, True)
    code, _, said = run("journal", "export", copy, "--log", database)
    assert (code, "exists already" in said) == (2, True)
    code, _, said = run("journal", "import", LOG, "--log", database)
    assert (code, "exists already" in said) == (2, True)
