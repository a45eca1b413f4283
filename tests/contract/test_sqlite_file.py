"""SQLite alone: kills, damage, foreign files, reading only, several processes, the file left."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bus.clock import PacedClock, SystemClock
from bus.contract import BusError, Message, Unreadable
from bus.sqlite import WATCH_S, SqliteBus
from bus.sqlite_file import errors_named
from schemas.topics import COMMANDS, EVENTS, JOURNAL
from tests.patience import PATIENCE_S, take_part

CLOCK = SystemClock()
ROOT = Path(__file__).resolve().parents[2]

#: Consumes, decides, produces for ever; prints each number once it is acknowledged.
WORKER = """
import asyncio, sys
from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from schemas.topics import COMMANDS, EVENTS, JOURNAL

async def main():
    bus = SqliteBus.open(sys.argv[1], SystemClock(), durability=sys.argv[2])
    producer = await bus.producer("p")
    consumer = await bus.consumer("g", [EVENTS.name])
    for number in range(1_000_000):
        word = str(number).encode()
        await bus.publish(Message(EVENTS.name, "k", word))
        await consumer.poll()
        async with producer.transaction() as transaction:
            transaction.send(Message(JOURNAL.name, "k", word * 100))
            transaction.send(Message(COMMANDS.name, "k", word))
            transaction.commit_positions(consumer)
        print(number, flush=True)

asyncio.run(main())
"""


async def filled(path: Path, number: int = 3) -> None:
    bus = SqliteBus.open(path, CLOCK)
    await bus.publish(
        *(Message(EVENTS.name, f"k{i}", f"value {i}".encode(), {"n": "1"}) for i in range(number))
    )
    await bus.close()


@pytest.mark.parametrize("durability", ["power_loss", "process_crash"])
async def test_kill_loses_nothing_acknowledged_and_tears_nothing(
    tmp_path: Path, durability: str
) -> None:
    path = tmp_path / "log.db"
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), durability],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as worker:
        assert worker.stdout is not None
        acknowledged = -1
        for line in worker.stdout:
            acknowledged = int(line)
            if acknowledged == 150:
                worker.send_signal(signal.SIGKILL)
                break
        rest = worker.stdout.read().split(b"\n")[:-1]
    acknowledged = int(rest[-1]) if rest else acknowledged
    assert worker.returncode == -signal.SIGKILL

    bus = SqliteBus.open(path, CLOCK)
    bus.verify()
    events = await bus.end(EVENTS.name)
    decided = [record.value async for record in bus.read(JOURNAL.name)]
    assert events - 1 >= acknowledged
    assert len(decided) - 1 >= acknowledged
    assert decided == [str(i).encode() * 100 for i in range(len(decided))]
    # Journal, commands and offsets moved as one.
    assert await bus.end(COMMANDS.name) == len(decided)
    assert (await bus.consumer("g", [EVENTS.name])).positions == {EVENTS.name: len(decided)}
    await bus.close()


async def test_clean_close_leaves_one_file(tmp_path: Path) -> None:
    await filled(tmp_path / "log.db")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["log.db"]


async def test_reading_only_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    before, stat = path.read_bytes(), path.stat()
    tmp_path.chmod(0o500)
    try:
        bus = SqliteBus.open_readonly(path, CLOCK)
        assert bus.verify() == 3
        consumer = await bus.consumer("anyone", [EVENTS.name])
        assert len(await consumer.poll()) == 3
        for refused in (
            bus.publish(Message(EVENTS.name, "k", b"")),
            bus.producer("p"),
            bus.prune(0.0),
            consumer.commit(),
        ):
            with pytest.raises(BusError, match="reading only"):
                await refused
        await bus.close()
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert list(tmp_path.iterdir()) == [path]


async def test_reading_only_beside_a_writer_sees_its_records(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    writer = SqliteBus.open(path, CLOCK)
    await writer.publish(Message(EVENTS.name, "k", b"0"))
    reader = SqliteBus.open_readonly(path, CLOCK)
    consumer = await reader.consumer("watcher", [EVENTS.name])
    assert [r.value for r in await consumer.poll()] == [b"0"]
    waiting = asyncio.create_task(consumer.poll())
    await asyncio.sleep(0)
    await writer.publish(Message(EVENTS.name, "k", b"1"))
    assert [r.value for r in await asyncio.wait_for(waiting, PATIENCE_S)] == [b"1"]
    await reader.close()
    await writer.close()


async def test_log_left_by_a_kill_can_be_read_only(tmp_path: Path) -> None:
    bus = SqliteBus.open(tmp_path / "log.db", CLOCK)
    await bus.publish(Message(EVENTS.name, "k", b"0"))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("log.db", "log.db-wal"):
        shutil.copy(tmp_path / name, copy / name)
    await bus.close()
    before = (copy / "log.db").read_bytes()
    reader = SqliteBus.open_readonly(copy / "log.db", CLOCK)
    assert reader.verify() == 1
    await reader.close()
    assert (copy / "log.db").read_bytes() == before


def damage(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("value", "x'00'"),
        ("value", "NULL"),
        ("value", "7"),
        ("key", "'k2'"),
        ("key", "CAST(x'ff' AS TEXT)"),
        ("headers", "x''"),
        ("time_s", "time_s + 1"),
        ("crc", "crc + 1"),
        ("offset", "77"),
    ],
)
async def test_damaged_record_is_named_when_read(tmp_path: Path, column: str, value: str) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    damage(path, f"UPDATE records SET {column} = {value} WHERE offset = 1")
    bus = SqliteBus.open_readonly(path, CLOCK)
    if column != "offset":
        with pytest.raises(Unreadable, match=rf"{EVENTS.name} offset 1: the record is damaged"):
            await (await bus.consumer("g", [EVENTS.name])).poll()
        with pytest.raises(Unreadable, match="offset 1"):
            [record async for record in bus.read(EVENTS.name)]
    with pytest.raises(Unreadable, match=r"offset (1|77)"):
        bus.verify()
    await bus.close()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("DELETE FROM records WHERE offset = 1", "offset 1: the record is missing"),
        ("DELETE FROM records WHERE offset = 2", "ends at offset 2 instead of 3"),
        ("DELETE FROM topics", "3 records of no known topic"),
    ],
)
async def test_verify_finds_what_is_gone(tmp_path: Path, sql: str, words: str) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    damage(path, sql)
    bus = SqliteBus.open_readonly(path, CLOCK)
    with pytest.raises(Unreadable, match=words):
        bus.verify()
    await bus.close()


async def test_a_copy_beside_the_log_of_writes_of_the_file_before_says_so(tmp_path: Path) -> None:
    """Who restores a copy as the error says would be told to restore it from a copy again."""
    before, path = tmp_path / "before.db", tmp_path / "log.db"
    await filled(before, 5000)
    await filled(path, 1000)
    bus = SqliteBus.open(path, CLOCK)
    await bus.publish(Message(EVENTS.name, "k", b"x"))
    shutil.copy(f"{path}-wal", tmp_path / "wal")
    await bus.close()
    shutil.copy(before, path)
    shutil.copy(tmp_path / "wal", f"{path}-wal")
    with pytest.raises(Unreadable, match=r"log.db-wal is of the file before: move it away"):
        await _whole(path)
    Path(f"{path}-wal").unlink()
    await _whole(path)


async def _whole(path: Path) -> None:
    bus = SqliteBus.open_readonly(path, CLOCK)
    try:
        bus.verify()
    finally:
        await bus.close()


@pytest.mark.parametrize("how", ["open", "open_readonly"])
@pytest.mark.parametrize("kind", ["empty", "text", "foreign", "newer", "cut", "stub", "meta"])
async def test_unfit_file_is_refused_with_one_sentence(tmp_path: Path, how: str, kind: str) -> None:
    path = tmp_path / "log.db"
    await filled(path, 500)
    whole = path.read_bytes()
    words = "is not a Tidegate log"
    if kind == "empty":
        path.write_bytes(b"")
        words = "is empty"
    elif kind == "text":
        path.write_bytes(b"job,start,end\n" * 1000)
    elif kind == "foreign":
        path.unlink()
        damage(path, "CREATE TABLE t (a)")
    elif kind == "newer":
        damage(path, "PRAGMA user_version = 2")
        words = "has format 2 and this release reads up to 1"
    elif kind == "cut":
        path.write_bytes(whole[: len(whole) // 2])
        words = "damaged or cut short"
    elif kind == "stub":
        path.write_bytes(whole[:300])
        words = "damaged or cut short|not a Tidegate log"
    else:
        damage(path, "DELETE FROM meta")
        words = "meta table is wrong"
    before = path.read_bytes()
    with pytest.raises(Unreadable, match=words) as caught:
        getattr(SqliteBus, how)(path, CLOCK)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="does not exist"):
        SqliteBus.open_readonly(tmp_path / "none.db", CLOCK)
    with pytest.raises(BusError, match=r"folder .* does not exist"):
        SqliteBus.open(tmp_path / "none" / "log.db", CLOCK)
    with pytest.raises(BusError, match="durability"):
        SqliteBus.open(tmp_path / "log.db", CLOCK, durability="hope")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


async def test_a_log_that_can_only_be_read_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await SqliteBus.open(path, CLOCK).close()
    with (
        pytest.raises(BusError, match=r"log\.db can only be read; write to it as somebody who may"),
        errors_named(path),
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection,
    ):
        connection.execute("DELETE FROM meta")


async def test_writer_that_never_gets_its_turn_says_so_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    bus = SqliteBus.open(path, CLOCK, busy_timeout_s=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusError, match="another process kept it locked"):
            await bus.publish(Message(EVENTS.name, "k", b"lost"))
    await bus.publish(Message(EVENTS.name, "k", b"kept"))
    assert [r.value async for r in bus.read(EVENTS.name)] == [b"kept"]
    await bus.close()


async def test_polls_by_key_do_not_scan_others_records(tmp_path: Path) -> None:
    bus = SqliteBus.open(tmp_path / "log.db", CLOCK)
    await bus.publish(Message(COMMANDS.name, "n", b""))
    consumer = await bus.consumer("n", [COMMANDS.name], keys=["n"])
    asked: list[str] = []
    bus._reader.set_trace_callback(asked.append)
    assert await consumer.lag() == 1
    assert len(await consumer.poll()) == 1
    assert await bus.latest(COMMANDS.name, "n") is not None
    bus._reader.set_trace_callback(None)
    asked = [sql for sql in asked if "FROM records" in sql]
    assert len(asked) == 3
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        for sql in asked:
            ((*_, plan),) = connection.execute(f"EXPLAIN QUERY PLAN {sql}")  # one row: no sorting
            assert "by_key (topic=? AND key=?" in plan
    await bus.close()


async def test_time_does_not_pass_between_publish_and_the_readers_waking(tmp_path: Path) -> None:
    clock = PacedClock(1000.0, None)
    bus = SqliteBus.open(tmp_path / "log.db", clock, durability="process_crash")
    consumer = await bus.consumer("g", [EVENTS.name])
    woken: list[float] = []

    async def reader() -> None:
        while len(woken) < 20:
            woken.extend(clock.now_s() for _ in await consumer.poll())

    async def writer() -> None:
        for number in range(20):
            await clock.sleep_until(1001.0 + number)
            await bus.publish(Message(EVENTS.name, "k", b""))

    await take_part(clock, reader, writer, until_s=2000.0)
    assert woken == [1001.0 + number for number in range(20)]
    assert [r.time_s async for r in bus.read(EVENTS.name)] == woken
    await bus.close()


async def test_a_read_that_fails_once_makes_nobody_deaf(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    here, there = SqliteBus.open(path, CLOCK), SqliteBus.open(path, CLOCK)
    consumer = await here.consumer("g", [EVENTS.name])
    waiting = asyncio.create_task(consumer.poll())
    await asyncio.sleep(2 * WATCH_S)
    here._reader.set_progress_handler(lambda: 1, 1)  # SQLite breaks each query off
    with pytest.raises(BusError, match="interrupted"):
        async with asyncio.timeout(PATIENCE_S):
            await waiting
    here._reader.set_progress_handler(None, 1)
    await there.publish(Message(EVENTS.name, "k", b"heard"))
    async with asyncio.timeout(PATIENCE_S):
        assert [record.value for record in await consumer.poll()] == [b"heard"]
    await here.close()
    await there.close()
