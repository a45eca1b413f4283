"""Recorded logs replay identically, in every form; what is wrong with one is said in a sentence."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus.clock import SystemClock
from bus.contract import Record
from bus.logfile import VERSION
from bus.sqlite import SqliteBus
from explain.moments import DEMO_START_S, day_clock
from scheduler.core.canonical import state_hash
from scheduler.journal import recover
from scheduler.policies.registry import POLICIES
from schemas.topics import JOURNAL
from tests.golden.alter import Capture, altered, ran, rechained, unpacked

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
LOGS = sorted(FOLDER.glob("*.jsonl.zst"))
LOG = FOLDER / "fifo.jsonl.zst"
KEYS = ["log", "decisions", "identical", "first_difference", "state_hash"]
KEYS += ["stimuli_per_s", "processes"]


def refused(capsys: Capture, path: Path) -> str:
    """Replay what cannot be; give the one sentence that says why."""
    code, shown, said = ran(capsys, "replay", path)
    assert (code, shown) == (2, "")
    assert len(said.strip().splitlines()) == 1
    return said


def replayed(capsys: Capture, *arguments: object) -> dict[str, Any]:
    code, shown, said = ran(capsys, "replay", *arguments, "--json", "-")
    assert (code, said) == (0, "")
    document: dict[str, Any] = orjson.loads(shown)
    return document


def recorded_hash(log: Path) -> str:
    """Give the hash of the state that a golden log ended with."""
    return (FOLDER / f"{log.name.removesuffix('.jsonl.zst')}.hash").read_text().strip()


def test_every_policy_the_brokers_and_people_have_a_golden_log() -> None:
    assert {log.name.removesuffix(".jsonl.zst") for log in LOGS} == {*POLICIES, "brokers", "verbs"}


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.name))
def test_a_golden_log_replays_identically(log: Path, capsys: Capture) -> None:
    document = replayed(capsys, log)
    assert document["identical"] is True
    assert document["first_difference"] is None
    assert document["decisions"] > 400
    assert document["state_hash"] == recorded_hash(log)


@pytest.mark.parametrize("policy", ["fifo", "tide"])
@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_order_of_hashes_changes_no_decision(policy: str, seed: str) -> None:
    log = FOLDER / f"{policy}.jsonl.zst"
    done = subprocess.run(
        [sys.executable, "-m", "console.main", "replay", str(log), "--json", "-"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    document = orjson.loads(done.stdout)
    assert list(document) == KEYS
    assert document["state_hash"] == recorded_hash(log)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.name))
async def test_a_scheduler_goes_on_from_the_state_of_a_golden_log(
    log: Path, tmp_path: Path, capsys: Capture
) -> None:
    database = tmp_path / "run.db"
    assert ran(capsys, "journal", "import", log, "--log", database)[0] == 0
    bus = SqliteBus.open(database, SystemClock())
    try:
        found = await recover(bus, "default")
    finally:
        await bus.close()
    assert found.snapshot_problem == ""
    assert found.entries < found.state.number, "it began from a snapshot"
    assert state_hash(found.state) == recorded_hash(log)


def test_the_log_is_the_same_in_every_form(tmp_path: Path, capsys: Capture) -> None:
    plain, database, again = tmp_path / "a.jsonl", tmp_path / "b.db", tmp_path / "c.jsonl"
    unpacked(LOG, plain)
    assert ran(capsys, "journal", "import", plain, "--log", database)[0] == 0
    assert ran(capsys, "journal", "export", again, "--log", database)[0] == 0
    assert again.read_bytes() == plain.read_bytes()
    hashes = {replayed(capsys, path)["state_hash"] for path in (LOG, plain, database, again)}
    assert len(hashes) == 1


# --- a different decision ----------------------------------------------------------------------


def _start_elsewhere(_: int, __: dict[str, Any], decision: dict[str, Any]) -> None:
    for name, fields in decision["facts"]:
        if name == "GangStarting" and fields["job"] == "job-02":
            fields["allocation"] = {"train-2": [0, 1]}


def test_a_different_decision_is_told_with_the_story_of_its_job(
    tmp_path: Path, capsys: Capture
) -> None:
    log = rechained(LOG, tmp_path / "other.jsonl.zst", _start_elsewhere)
    code, shown, _ = ran(capsys, "replay", log, "--json", "-")
    assert code == 1
    document = orjson.loads(shown)
    first = document["first_difference"]
    assert document["identical"] is False
    assert first["job"] == "job-02"
    assert document["decisions"] == first["number"] + 1
    starts = {
        side: [line for line in first["story"][side] if line["name"] == "GangStarting"][-1]
        for side in ("recorded", "replayed")
    }
    assert starts["recorded"]["fields"]["allocation"] == {"train-2": [0, 1]}
    assert starts["replayed"]["fields"]["allocation"] != {"train-2": [0, 1]}
    assert first["story"]["recorded"][0] == first["story"]["replayed"][0]

    code, shown, _ = ran(capsys, "replay", log)
    assert code == 1
    at = day_clock(first["at_s"], DEMO_START_S)
    assert at.startswith("d0 ")
    assert f"Different: decision {first['number']}, {at}, on\n" in shown
    assert shown.count("The story of job-02") == 2
    recorded, again = shown.split("Replayed")
    assert "train-2[0,1]" in recorded
    assert "train-2[0,1]" not in again


def test_other_settings_than_recorded_are_a_difference(tmp_path: Path, capsys: Capture) -> None:
    def other(number: int, stimulus: dict[str, Any], _: dict[str, Any]) -> None:
        if stimulus["kind"] == "LeaderStarted" and number == 0:
            stimulus["data"]["settings"]["cycle_s"] = 61.0

    log = rechained(LOG, tmp_path / "other.jsonl", other)
    code, shown, _ = ran(capsys, "replay", log, "--json", "-")
    assert code == 1
    assert orjson.loads(shown)["first_difference"]["number"] == 0


# --- damage ------------------------------------------------------------------------------------


def test_a_changed_byte_is_found_wherever_it_is(tmp_path: Path, capsys: Capture) -> None:
    data = unpacked(LOG, tmp_path / "good.jsonl")
    path = tmp_path / "bad.jsonl"
    positions = [*range(0, len(data), len(data) // 40), len(data) - 2, len(data) - 40]
    for position in positions:
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        refused(capsys, path)


def test_a_changed_byte_of_a_packed_log_is_found(tmp_path: Path, capsys: Capture) -> None:
    data = LOG.read_bytes()
    path = tmp_path / "bad.jsonl.zst"
    for position in [*range(12, len(data), len(data) // 20), len(data) - 1]:
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        assert "damaged" in refused(capsys, path)


def test_a_changed_byte_of_a_record_in_sqlite_is_found(tmp_path: Path, capsys: Capture) -> None:
    database = tmp_path / "log.db"
    assert ran(capsys, "journal", "import", LOG, "--log", database)[0] == 0
    data = database.read_bytes()
    spots = [found.start() for found in re.finditer(rb'"digest":"[0-9a-f]{64}"}}', data)]
    for spot in spots[:: len(spots) // 5]:
        position = spot + 15
        bad = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        database.write_bytes(bad)
        assert "tidegate.journal.v1 offset" in refused(capsys, database)


def test_a_cut_log_is_told_from_a_damaged_one(tmp_path: Path, capsys: Capture) -> None:
    data = unpacked(LOG, tmp_path / "good.jsonl")
    lines = data.splitlines(keepends=True)
    path = tmp_path / "bad.jsonl"
    for content, says in (
        (data[:-30], "cut short: its last line"),
        (b"".join(lines[:-1]), "without its closing line"),
        (lines[0], "without its closing line"),
        (lines[0][:40], "cut short in its first line"),
        (b"".join([*lines[:50], *lines[51:]]), "damaged"),
    ):
        path.write_bytes(content)
        assert says in refused(capsys, path)
    packed = tmp_path / "cut.jsonl.zst"
    packed.write_bytes(LOG.read_bytes()[:-2000])
    assert "cut short" in refused(capsys, packed)
    packed.write_bytes(packed.read_bytes()[:100])
    assert "cut short before its first line" in refused(capsys, packed)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"job,gpus\n1,2\n", "is not a Tidegate log"),
        (b'{"format":"other"}\n', "is not a Tidegate log"),
        (b"[1]\n", "is not a Tidegate log"),
        (bytes(range(1, 256)) * 20, "is not a Tidegate log"),
        (b"SQLite format 3\0" + b"\1" * 2000, "is not a Tidegate log"),
        (b"\x28\xb5\x2f\xfd" + b"\1" * 200, "damaged"),
        (b'{"format":"tidegate log","version":1}\n', "damaged"),
        (b'{"format":"tidegate log","vers', "cut short"),
    ],
)
def test_a_foreign_or_empty_file_is_named(
    content: bytes, says: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert says in refused(capsys, path)


def test_what_is_no_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    assert "does not exist" in refused(capsys, tmp_path / "none.db")
    assert "no file" in refused(capsys, tmp_path)
    code, _, said = ran(capsys, "replay", "kafka:broker:9092")
    assert (code, "is no Kafka address" in said) == (2, True)


# --- newer versions ----------------------------------------------------------------------------


def test_a_newer_log_file_is_refused(tmp_path: Path, capsys: Capture) -> None:
    data = unpacked(LOG, tmp_path / "good.jsonl")
    path = tmp_path / "newer.jsonl"
    path.write_bytes(data.replace(b'"version":%d' % VERSION, b'"version":%d' % (VERSION + 1), 1))
    assert "use a newer release" in refused(capsys, path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"journal.entry.v1", b"journal.entry.v2", "written by a newer Tidegate"),
        (b'"version":1,', b'"version":3,', "use a newer release"),
        (b'"specversion":"1.0"', b'"specversion":"2.0"', "specversion should be"),
        (b'"kind":"LeaderStarted"', b'"kind":"LeaderVoted"', "changed after it was written"),
    ],
)
def test_a_newer_or_changed_entry_is_refused(
    old: bytes, new: bytes, says: str, tmp_path: Path, capsys: Capture
) -> None:
    def change(record: Record) -> Record:
        if record.topic != JOURNAL.name or record.offset:
            return record
        value = (record.value or b"").replace(old, new, 1)
        return Record(JOURNAL.name, 0, record.key, value, record.headers, record.time_s)

    assert says in refused(capsys, altered(LOG, tmp_path / "newer.jsonl", change))


def test_an_unknown_kind_of_stimulus_or_fact_is_refused(tmp_path: Path, capsys: Capture) -> None:
    def stimulus(number: int, stimulus: dict[str, Any], _: dict[str, Any]) -> None:
        if number == 40:
            stimulus["kind"] = "QuotaChanged"

    def fact(number: int, _: dict[str, Any], decision: dict[str, Any]) -> None:
        if number == 40:
            decision["facts"].append(["QuotaMoved", {}])

    said = refused(capsys, rechained(LOG, tmp_path / "a.jsonl", stimulus))
    assert "entry 40: stimulus 'QuotaChanged' was written by a newer Tidegate" in said
    said = refused(capsys, rechained(LOG, tmp_path / "b.jsonl", fact))
    assert "entry 40: fact 'QuotaMoved' was written by a newer Tidegate" in said


@pytest.mark.parametrize("dropped", [0, 100])
def test_a_journal_with_a_gap_is_refused(dropped: int, tmp_path: Path, capsys: Capture) -> None:
    def change(record: Record) -> Record | None:
        gone = record.topic == JOURNAL.name and record.offset == dropped
        return None if gone else record

    said = refused(capsys, altered(LOG, tmp_path / "gap.jsonl", change))
    says = "begins at entry 1: what came before was pruned" if dropped == 0 else "entry 101 where"
    assert says in said
