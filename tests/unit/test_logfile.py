"""Log files and any-log reading: whole or refused, and never changed by being read."""

import asyncio
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.contract import BusError, Message, Record, Unreadable
from bus.logfile import Head, write_log
from bus.reading import import_log, open_log
from bus.sqlite import SqliteBus
from console.verbs import run
from schemas.topics import CELLS, COMMANDS, EVENTS

ROOT = Path(__file__).parent.parent.parent
RECORDS = [
    Record(EVENTS.name, 3, "default", b'{"a": "\xc3\xa9 \\" \\n"}', {"h": "1"}, 10.5),
    Record(EVENTS.name, 4, "default", b"\xff\x00 no text", {}, 11.0),
    Record(EVENTS.name, 5, "default", b"", {}, 12.0),
    Record(CELLS.name, 0, "west", None, {}, 12.0),
    Record(COMMANDS.name, 7, "agent-1", b"{}", {}, 13.0),
]
HEAD = Head(
    {EVENTS.name: 6, CELLS.name: 2, COMMANDS.name: 8, "empty": 4},
    [("scheduler", EVENTS.name, 5)],
    {"scheduler-west": 3},
)


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.zst"])
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert write_log(path, HEAD, RECORDS) == 5
    with open_log(path) as log:
        assert log.verify() == 5
        assert list(log.records()) == RECORDS
        assert log.head == HEAD
        assert list(log.records(CELLS.name)) == [RECORDS[3]]
        assert log.last(EVENTS.name, 2) == RECORDS[1:3]
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_kind_of_file_is_found_by_content_not_by_name(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl.zst", HEAD, RECORDS)
    odd = (tmp_path / "log.jsonl.zst").rename(tmp_path / "run.db")
    with open_log(f"sqlite:{odd}") as log:
        assert list(log.records()) == RECORDS


def test_import_keeps_offsets_ends_and_positions(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", HEAD, RECORDS)
    with open_log(tmp_path / "log.jsonl") as log:
        import_log(log, tmp_path / "new.db")
    with open_log(tmp_path / "new.db") as copy:
        assert copy.head == HEAD
        assert list(copy.records()) == RECORDS
        assert copy.verify() == 5

    async def go_on() -> tuple[int, list[int]]:
        bus = SqliteBus.open(tmp_path / "new.db", SystemClock())
        await bus.publish(Message(EVENTS.name, "default", b"more"))
        consumer = await bus.consumer("scheduler", [EVENTS.name])
        offsets = [record.offset for record in await consumer.poll(10, 0.0)]
        await bus.close()
        return await _latest_is(bus), offsets

    async def _latest_is(_: SqliteBus) -> int:
        again = SqliteBus.open_readonly(tmp_path / "new.db", SystemClock())
        record = await again.latest(COMMANDS.name, "agent-1")
        await again.close()
        return -1 if record is None else record.offset

    assert asyncio.run(go_on()) == (7, [5, 6])


def test_gaps_in_offsets_are_kept_and_are_no_damage(tmp_path: Path) -> None:
    """As Kafka has them, where transactions ended."""
    sparse = [Record(EVENTS.name, at, "default", b"{}", {}, 1.0) for at in (0, 2, 3, 6)]
    write_log(tmp_path / "log.jsonl", Head({EVENTS.name: 8}), sparse)
    with open_log(tmp_path / "log.jsonl") as log:
        import_log(log, tmp_path / "new.db")
    with open_log(tmp_path / "new.db") as copy:
        assert copy.verify() == 4
        assert list(copy.records()) == sparse
        assert copy.head.topics == {EVENTS.name: 8}


def test_an_import_replaces_no_log(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", HEAD, RECORDS)
    (tmp_path / "there.db").write_bytes(b"precious")
    with open_log(tmp_path / "log.jsonl") as log:
        with pytest.raises(BusError, match="exists already; name a new file"):
            import_log(log, tmp_path / "there.db")
        with pytest.raises(BusError, match="make it first"):
            import_log(log, tmp_path / "no" / "there.db")
        (tmp_path / "empty.db").touch()
        assert import_log(log, tmp_path / "empty.db") == 5
    assert (tmp_path / "there.db").read_bytes() == b"precious"
    with pytest.raises(BusError, match="exists already"):
        write_log(tmp_path / "log.jsonl", HEAD, RECORDS)
    with pytest.raises(BusError, match=r"NAME\.jsonl"):
        write_log(tmp_path / "log.csv", HEAD, RECORDS)


def test_a_damaged_log_leaves_nothing_behind(tmp_path: Path) -> None:
    beyond = Head({EVENTS.name: 4, CELLS.name: 2, COMMANDS.name: 8})
    write_log(tmp_path / "log.jsonl", beyond, RECORDS)
    with open_log(tmp_path / "log.jsonl") as log, pytest.raises(Unreadable, match="offset 4"):
        import_log(log, tmp_path / "new.db")
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize(
    "head",
    [
        Head({EVENTS.name: 2**63}),
        Head({EVENTS.name: -1}),
        Head({EVENTS.name: 6}, [("scheduler", EVENTS.name, 2**63)]),
        Head({EVENTS.name: 6}, [], {"scheduler-west": 2**63}),
    ],
)
def test_a_number_that_no_database_holds_is_damage(tmp_path: Path, head: Head) -> None:
    write_log(tmp_path / "log.jsonl", head, RECORDS[:3])
    with pytest.raises(Unreadable, match=r"is damaged .*a number that none of its kind can be"):
        open_log(tmp_path / "log.jsonl")


@pytest.mark.parametrize("verb", ["stats", "tail"])
def test_a_moment_that_no_calendar_has_is_shown_as_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    record = Record(EVENTS.name, 0, "default", b"x", {}, -1e20)
    write_log(tmp_path / "log.jsonl", Head({EVENTS.name: 1}), [record])
    assert run(["journal", verb, str(tmp_path / "log.jsonl")]) == 0
    assert "-1e+20 s" in capsys.readouterr().out


def test_records_out_of_order_are_damage(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", HEAD, [RECORDS[1], RECORDS[0]])
    with open_log(tmp_path / "log.jsonl") as log, pytest.raises(Unreadable, match="line 3 is out"):
        list(log.records())


def test_progress_is_told(tmp_path: Path) -> None:
    records = (Record(EVENTS.name, n, "default", b"x", {}, 1.0) for n in range(2500))
    told: list[int] = []
    write_log(tmp_path / "log.jsonl", Head({EVENTS.name: 2500}), records, told.append)
    with open_log(tmp_path / "log.jsonl") as log:
        import_log(log, tmp_path / "new.db", told.append)
    assert told == [1000, 2000, 1000, 2000]


@pytest.mark.process
def test_the_log_of_a_killed_writer_is_read_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    script = f"""
import asyncio, os
from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus

async def write():
    bus = SqliteBus.open({str(path)!r}, SystemClock())
    for n in range(50):
        await bus.publish(Message({EVENTS.name!r}, "default", b"%d" % n))
    os._exit(9)

asyncio.run(write())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == 9
    wal = path.with_name("log.db-wal")
    before = path.read_bytes(), wal.read_bytes()
    assert before[1]
    with open_log(path) as log:
        assert log.verify() == 50
        values = [record.value for record in log.records(EVENTS.name)]
    assert values == [b"%d" % n for n in range(50)]
    assert (path.read_bytes(), wal.read_bytes()) == before


def test_a_log_is_read_while_it_is_written(tmp_path: Path) -> None:
    async def both() -> list[int]:
        bus = SqliteBus.open(tmp_path / "log.db", SystemClock())
        await bus.publish(Message(EVENTS.name, "default", b"1"))
        with open_log(tmp_path / "log.db") as log:
            await bus.publish(Message(EVENTS.name, "default", b"2"))
            counts = [len(list(log.records())), log.verify()]
        with open_log(tmp_path / "log.db") as log:
            counts.append(log.verify())
        await bus.publish(Message(EVENTS.name, "default", b"3"))
        await bus.close()
        return counts

    assert asyncio.run(both()) == [1, 1, 2]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("kafka:broker:9092", "is no Kafka address"),
        ("mqtt:broker", "MQTT stores no log"),
        ("memory:", "ends with its process"),
        ("sqlite:none.db", "does not exist"),
    ],
)
def test_an_address_of_no_file_is_named(address: str, says: str) -> None:
    with pytest.raises(BusError, match=says):
        open_log(address)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", HEAD, RECORDS)
    (tmp_path / "log.jsonl").chmod(0)
    with pytest.raises(BusError):
        open_log(tmp_path / "log.jsonl")


def test_a_packed_log_without_its_very_end_is_cut_short(tmp_path: Path) -> None:
    whole = tmp_path / "log.jsonl.zst"
    write_log(whole, HEAD, RECORDS)
    for missing in (1, 3, 4, 5):
        cut = tmp_path / f"cut-{missing}.jsonl.zst"
        cut.write_bytes(whole.read_bytes()[:-missing])
        with pytest.raises(Unreadable, match=r"cut short|not a Tidegate"), open_log(cut) as log:
            log.verify()


def test_a_small_file_that_unpacks_to_much_is_checked_in_little_memory(tmp_path: Path) -> None:
    size = 16 * 2**20
    long = [Record(EVENTS.name, number, "default", b"0" * size, {}, 1.0) for number in range(8)]
    path = tmp_path / "log.jsonl.zst"
    write_log(path, HEAD, long)
    assert path.stat().st_size < 32 * 2**10
    tracemalloc.start()
    with open_log(path) as log:
        assert log.verify() == 8
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * size, "neither the file nor one of its lines was held whole"
