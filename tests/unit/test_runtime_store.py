"""The agent's file and its spool: whole turns survive, telemetry gives way, boots count."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bus.contract import Message
from runtime.spool import DropPriority, Spool, SpooledMessage, SpoolLimit
from runtime.store import AgentStore, StoreError, held_gangs


def waiting(row: int, *, telemetry: bool = False, size: int = 10) -> SpooledMessage:
    loss = DropPriority.TELEMETRY if telemetry else DropPriority.NEVER
    return SpooledMessage(row, Message("t", "k", b"x" * size), loss)


def rows(batch: list[SpooledMessage]) -> list[int]:
    return [message.row for message in batch]


# --- spool ---------------------------------------------------------------------------------------


def test_the_spool_gives_messages_in_order_until_sent() -> None:
    spool = Spool()
    for row in range(6):
        spool.add(waiting(row, telemetry=row % 2 == 0))
    assert rows(spool.next(4)) == [0, 1, 2, 3]
    assert rows(spool.next(4)) == [0, 1, 2, 3]
    spool.sent(3)
    assert spool.take_freed() == [1, 3, 0, 2]
    assert rows(spool.next(9)) == [4, 5]
    assert spool.size_bytes == 20


@pytest.mark.parametrize("limit", [SpoolLimit(messages=4), SpoolLimit(size_bytes=40)])
def test_a_full_spool_drops_the_oldest_telemetry_and_nothing_else(limit: SpoolLimit) -> None:
    spool = Spool(limit)
    for row in range(4):
        spool.add(waiting(row, telemetry=row in (1, 2)))
    spool.add(waiting(4, telemetry=True))
    assert rows(spool.next(9)) == [0, 2, 3, 4]
    for row in range(5, 9):
        spool.add(waiting(row))
    assert rows(spool.next(9)) == [0, 3, 5, 6, 7, 8], "what must not be dropped may exceed it"
    assert spool.dropped == 3
    assert sorted(spool.take_freed()) == [1, 2, 4]


# --- store ---------------------------------------------------------------------------------------


def test_turns_come_back_in_the_next_boot(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    store = AgentStore.open(path)
    assert (store.bootid, store.next_sequence(), store.next_sequence()) == (0, 0, 1)
    message = Message("t", "k", b"v", {"h": "1"})
    row = store.next_row()
    assert path.stat().st_mode & 0o077 == 0, "for its owner alone"
    store.write(
        {"lease": 5.0, "gang/j": {"epoch": 1}},
        [SpooledMessage(row, message, DropPriority.TELEMETRY)],
        [],
    )
    store.write({"gang/j": None, "epoch/j": [1, 2.0]}, [], [])
    store.close()

    store = AgentStore.open(path, "power_loss")
    assert store.bootid == 1
    assert store.next_sequence() == 0
    assert store.load_state() == {"lease": 5.0, "epoch/j": [1, 2.0]}
    assert store.load_spool() == [SpooledMessage(row, message, DropPriority.TELEMETRY)]
    assert store.next_row() == row + 1
    store.write({}, [], [row])
    assert store.load_spool() == []
    store.close()


def test_a_turn_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    store = AgentStore.open(tmp_path / "agent.db")
    store.write({"lease": 1.0}, [waiting(0)], [])
    with pytest.raises(sqlite3.IntegrityError):
        store.write({"lease": 2.0}, [waiting(1), waiting(0)], [])
    assert store.load_state() == {"lease": 1.0}
    assert rows(store.load_spool()) == [0]
    store.close()


def test_a_full_disk_is_told_in_a_sentence_and_what_was_stored_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = AgentStore.open(path)
    store.write({"gang/j": {"epoch": 1}}, [waiting(store.next_row())], [])
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError, match="make room on the disk"):
        store.write({"gang/j": {"epoch": 2}}, [waiting(store.next_row(), size=100_000)], [])
    store.close()
    again = AgentStore.open(path)
    assert again.load_state() == {"gang/j": {"epoch": 1}}
    assert len(again.load_spool()) == 1
    again.close()


def test_a_file_that_was_damaged_while_it_was_open_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = AgentStore.open(path)
    store.write({f"gang/{number}": {"epoch": 1} for number in range(500)}, [], [])
    store.close()
    store = AgentStore.open(path)
    (page,) = store._connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(3 * page)
        file.write(b"\xff" * (size - 3 * page))
    with pytest.raises(StoreError, match="malformed; move it away"):
        store.write({f"gang/{number}": None for number in range(500)}, [], [])
    store.close()


def test_a_second_agent_on_the_file_is_refused(tmp_path: Path) -> None:
    store = AgentStore.open(tmp_path / "agent.db")
    with pytest.raises(StoreError, match="stop the other agent"):
        AgentStore.open(tmp_path / "agent.db")
    store.close()


def test_files_of_others_are_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(StoreError, match="no agent's state file"):
        AgentStore.open(other)
    assert other.read_bytes() == before
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be mistaken for one" * 50)
    with pytest.raises(StoreError, match="move it away"):
        AgentStore.open(text)
    with pytest.raises(StoreError, match=r"check that the folder exists.* has room"):
        AgentStore.open(tmp_path / "nowhere" / "agent.db")


_WRITER = """
import sys
from bus.contract import Message
from runtime.spool import SpooledMessage
from runtime.store import AgentStore

store = AgentStore.open(sys.argv[1])
turn = 0
while True:
    turn += 1
    message = Message("t", "k", str(turn).encode())
    store.write({"lease": float(turn)}, [SpooledMessage(store.next_row(), message)], [])
    print(turn, flush=True)
"""


@pytest.mark.process
def test_the_store_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert writer.stdout is not None
    confirmed = 0
    for line in writer.stdout:
        confirmed = int(line)
        if confirmed == 200:
            break
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()

    store = AgentStore.open(path)
    written = len(store.load_spool())
    assert written >= confirmed
    assert store.load_state() == {"lease": float(written)}, "state and spool are of one turn"
    assert store.bootid == 1
    store.close()


def test_a_new_file_begins_above_what_a_lost_one_had(tmp_path: Path) -> None:
    store = AgentStore.open(tmp_path / "agent.db", first_boot=500)
    assert store.bootid == 500
    store.close()
    store = AgentStore.open(tmp_path / "agent.db", first_boot=900)
    assert store.bootid == 900
    store.close()
    store = AgentStore.open(tmp_path / "agent.db", first_boot=900)
    assert store.bootid == 901
    store.close()


def test_what_an_agent_held_can_be_asked_before_its_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    assert held_gangs(path) == {}
    assert not path.exists()
    store = AgentStore.open(path)
    store.write({"gang/j": {"epoch": 4}, "gang/k": {"epoch": 2}, "epoch/j": [4, 0.0]}, [], [])
    with pytest.raises(StoreError, match="stop the other agent"):
        held_gangs(path)
    store.write({"gang/k": None}, [], [])
    store.close()
    assert held_gangs(path) == {"j": 4}
    again = AgentStore.open(path)
    assert again.bootid == store.bootid + 1, "to be asked is no boot"
    again.close()
    path.write_text("no such file")
    with pytest.raises(StoreError, match="move it away"):
        held_gangs(path)
    with pytest.raises(StoreError, match="can be read and written"):
        held_gangs(tmp_path)


def test_a_file_that_was_restored_from_a_copy_begins_above_what_was_said_since(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    AgentStore.open(path, first_boot=1000).close()
    shutil.copy(path, copy)
    AgentStore.open(path, first_boot=1000).close()
    (said := AgentStore.open(path, first_boot=1000)).close()
    assert said.bootid == 1002, "however often in a minute"
    shutil.move(copy, path)
    (restored := AgentStore.open(path, first_boot=1060)).close()
    assert restored.bootid == 1060
