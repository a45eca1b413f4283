"""A replay in several processes gives the answer of one process, whatever is wrong with the log."""

import contextlib
import hashlib
import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from bus.contract import Record, Unreadable
from bus.logfile import Head, write_log
from bus.reading import import_log, open_log
from scheduler import stretches
from scheduler.core.canonical import canonical, state_hash, state_to_json
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader, fold
from scheduler.replay import Result, entries, verify
from scheduler.snapshots import Snapshots
from scheduler.stretches import verify_aside
from schemas.journal import SnapshotTaken, encode_snapshot
from schemas.topics import JOURNAL, SNAPSHOTS
from tests.golden.alter import altered, rechained

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "fifo.jsonl.zst"
EVERY = 150  # entries from snapshot to snapshot


def written(path: Path, count: int | None, every: int) -> Path:
    """Write so many entries of the golden log, with four snapshots, as this version writes them."""
    with open_log(GOLDEN) as golden:
        journal = list(golden.records(JOURNAL.name))[:count]
    reader, state, snapshots = JournalReader(), ClusterState(), list[Record]()
    for record in journal:
        entry = reader.read(record)
        assert entry is not None
        fold(state, entry)
        if state.number % every == 0 and len(snapshots) < 4:
            taken = SnapshotTaken(
                number=state.number,
                at_s=state.now_s,
                digest=entry.digest,
                state_hash=state_hash(state),
                state=orjson.loads(state_to_json(state)),
                sources={},
            )
            offset, value = len(snapshots), encode_snapshot(taken)
            snapshots.append(Record(SNAPSHOTS.name, offset, record.key, value, {}, entry.at_s))
    assert len(snapshots) == 4
    head = Head({JOURNAL.name: len(journal), SNAPSHOTS.name: len(snapshots)})
    write_log(path, head, [*journal, *snapshots])
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole golden log."""
    return written(tmp_path_factory.mktemp("stretches") / "run.jsonl.zst", None, EVERY)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its beginning, with a snapshot every 50 entries."""
    return written(tmp_path_factory.mktemp("short") / "run.jsonl.zst", 220, 50)


def answer(path: Path, processes: int, **limits: Any) -> Result | str:
    with open_log(path) as opened:
        opened.verify()
        journal = opened.records(JOURNAL.name)
        limits["snapshots"] = opened.records(SNAPSHOTS.name)
        try:
            if processes == 1:
                return verify(journal, **limits)
            return verify_aside(journal, processes, **limits)
        except Unreadable as error:
            return str(error)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[list[Connection]]:
    """Do without processes, which take a second to start."""
    pairs = [multiprocessing.Pipe() for _ in range(count)]
    for _, theirs in pairs:
        threading.Thread(target=stretches._answer, args=(theirs,), daemon=True).start()
    try:
        yield [ours for ours, _ in pairs]
    finally:
        for ours, _ in pairs:
            ours.close()


def same(path: Path, **limits: Any) -> Result | str:
    """Replay alone and in stretches; give the one answer."""
    alone = answer(path, 1, **limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "_started", _threads)
        for workers in (2, 3):
            assert answer(path, workers, **limits) == alone
    return alone


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_answer(log: Path, tmp_path: Path) -> None:
    with open_log(log) as opened:
        journal = opened.records(JOURNAL.name)
        snapshots = Snapshots(opened.records(SNAPSHOTS.name))
        reader = JournalReader()
        found = entries(journal, reader, None, None)
        parts = [len(part.entries) for part in stretches._cut(found, reader, snapshots)]
    assert parts[:4] == [EVERY] * 4
    alone = answer(log, 1)
    assert isinstance(alone, Result)
    assert (alone.decisions, alone.first_difference) == (sum(parts), None)
    assert alone.state_hash == GOLDEN.with_name("fifo.hash").read_text().strip()
    database = tmp_path / "run.db"
    with open_log(log) as opened:
        import_log(opened, database)
    for path, processes in ((log, 3), (database, 2)):
        assert answer(path, processes) == alone
    hour = same(log, length_s=3600.0)
    assert isinstance(hour, Result)
    assert 0 < hour.end_s - hour.begin_s <= 3600.0
    early = same(log, until_s=1.0)
    assert isinstance(early, Result)
    assert early.decisions == 0


# --- what differs, and what is damaged ---------------------------------------------------------


def wakes_later(decision: dict[str, Any]) -> None:
    decision["wake_s"] += 1.0


def ends_an_unknown_job(decision: dict[str, Any]) -> None:
    decision["facts"].append(["JobCompleted", {"job": "nobody"}])


@pytest.mark.parametrize("change", [wakes_later, ends_an_unknown_job])
def test_the_first_difference_is_told(change: Any, short: Path, tmp_path: Path) -> None:
    def twice(number: int, _: dict[str, Any], decision: dict[str, Any]) -> None:
        if number in (120, 160):
            change(decision)

    found = same(rechained(short, tmp_path / "other.jsonl", twice))
    assert isinstance(found, Result)
    assert found.first_difference is not None
    assert (found.first_difference.number, found.decisions) == (120, 121)


def entry(change: Callable[[bytes], bytes | None]) -> Callable[[Record], Record | None]:
    """Change the value of entry 160, or leave it out."""

    def changed(record: Record) -> Record | None:
        if (record.topic, record.offset) != (JOURNAL.name, 160):
            return record
        value = change(record.value or b"")
        return None if value is None else replace(record, value=value)

    return changed


def snapshot(change: Callable[[dict[str, Any]], object]) -> Callable[[Record], Record]:
    """Change the third snapshot, of 150 entries."""

    def changed(record: Record) -> Record:
        if (record.topic, record.offset) != (SNAPSHOTS.name, 2):
            return record
        document = orjson.loads(record.value or b"")
        change(document["data"])
        return replace(record, value=orjson.dumps(document))

    return changed


def hashed(change: Callable[[dict[str, Any]], object]) -> Callable[[Record], Record]:
    """Change the state in it, and give it the hash of what the state is then."""

    def changed(data: dict[str, Any]) -> None:
        change(data["state"])
        data["state_hash"] = hashlib.sha256(canonical(data["state"])).hexdigest()

    return snapshot(changed)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (entry(lambda _: None), "entry 161 where 160 should be"),
        (entry(lambda value: value.replace(b'"wake_s":', b'"wake_s":1')), "entry 160 was changed"),
        (snapshot(lambda data: data["state"].update(loans=7)), "150: its state does not have its"),
        (snapshot(lambda data: data.update(digest="0" * 64)), "150: it does not hold the state"),
        (snapshot(lambda data: data.update(number="x")), "snapshot: data.number"),
        (hashed(lambda state: state.update(loans=7)), "150: it does not hold the state"),
        # An older release had no such field, and nobody can tell what it would be.
        (hashed(lambda state: state.pop("loans")), ""),
    ],
)
def test_damage_is_told_in_its_place(change: Any, says: str, short: Path, tmp_path: Path) -> None:
    found = same(altered(short, tmp_path / "bad.jsonl", change))
    assert says in found if isinstance(found, str) else found == answer(short, 1)
    if not says or "number" in says:
        return

    def before(number: int, _: dict[str, Any], decision: dict[str, Any]) -> None:
        if number == 140:
            wakes_later(decision)

    # What differs before it is told instead.
    other = rechained(short, tmp_path / "other.jsonl", before)
    difference = same(altered(other, tmp_path / "both.jsonl", change))
    assert isinstance(difference, Result)
    assert difference.decisions == 141


def test_one_of_several_cells_is_replayed(short: Path, tmp_path: Path) -> None:
    with open_log(short) as opened:
        records = [
            replace(record, key=cell, offset=2 * record.offset + at)
            for record in opened.records()
            for at, cell in enumerate(("default", "west"))
        ]
        head = Head({name: 2 * end for name, end in opened.head.topics.items()})
    path = tmp_path / "two.jsonl"
    write_log(path, head, records)
    assert same(path, cell="default") == answer(short, 1)
    assert "several cells" in str(same(path))
    assert "no journal of cell east" in str(same(path, cell="east"))


@pytest.mark.process
def test_a_killed_process_is_told(log: Path) -> None:
    command = [sys.executable, "-m", "console.main", "replay", str(log), "--jobs", "2"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        workers: list[psutil.Process] = []
        while not workers:
            assert run.poll() is None
            time.sleep(0.01)
            children = psutil.Process(run.pid).children()
            workers = [one for one in children if "spawn_main" in " ".join(one.cmdline())]
        workers[-1].send_signal(signal.SIGKILL)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 2
    assert said.startswith("a process that replayed a part of the log was killed")
    assert len(said.strip().splitlines()) == 1
    assert not any(one.is_running() for one in workers)
