"""The simulated disk keeps what a disk keeps; an agent's file on it stays whole."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from bus.clock import PacedClock
from bus.contract import Message
from runtime import build
from runtime.spool import SpooledMessage
from runtime.store import AgentStore, Durability, StoreError, held_gangs
from tests.whole.disks import FLUSH_S, Disk
from tests.whole.storm import Blow, Job, Storm
from tests.whole.world import START_S, run

TURNS = 20


class Machine:
    """A disk with one file, and the agents' stores on it, one after another."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.clock = PacedClock(START_S, None)
        self.disk = Disk(self.clock, np.random.default_rng(seed))
        self.folder, self.lives = folder, 0
        self.open_stores: list[AgentStore] = []

    @property
    def file(self) -> Path:
        return self.folder / f"{self.lives}.db"

    def store(self, durability: Durability = "process_crash") -> AgentStore:
        """Open what the disk has; the dead hold theirs locked."""
        before = self.file
        self.lives += 1
        for end in ("", "-wal"):
            if (source := Path(f"{before}{end}")).exists():
                shutil.copyfile(source, f"{self.file}{end}")
        with patch("sqlite3.connect", self.disk.connect):
            store = AgentStore.open(self.file, durability)
        self.open_stores.append(store)
        return store

    def lose_power(self) -> None:
        self.disk.lose_power(Path(f"{self.file}-wal"))

    async def after(self, seconds: float) -> None:
        await self.clock.run_until(self.clock.now_s() + seconds)


@contextmanager
def machine(folder: Path, seed: int = 1) -> Iterator[Machine]:
    folder.mkdir(exist_ok=True)
    made = Machine(folder, seed)
    yield made
    for store in made.open_stores:
        store.close()


def write(store: AgentStore, turn: int) -> None:
    store.write({"lease": turn}, [SpooledMessage(store.next_row(), Message("t", "k", b"v"))], [])


def write_on(store: AgentStore) -> None:
    for turn in range(2, 100):
        write(store, turn)


def turns(store: AgentStore) -> int:
    """Say how many turns are stored; each is there whole, and all before it."""
    count = len(store.load_spool())
    assert store.load_state().get("lease", 0) == count
    return count


def test_a_loss_of_power_takes_a_tail_of_what_was_not_synced(tmp_path: Path) -> None:
    kept = []
    for seed in range(20):
        with machine(tmp_path / f"{seed}", seed) as one:
            store = one.store()
            for turn in range(TURNS):
                write(store, turn + 1)
            one.lose_power()
            kept.append(turns(one.store()))
    assert len(set(kept)) > 5, "as much as Linux had written"
    assert max(kept) <= TURNS


async def test_what_was_synced_or_is_old_outlives_a_loss_of_power(tmp_path: Path) -> None:
    for seed in range(5):
        with machine(tmp_path / f"synced-{seed}", seed) as one:
            store = one.store("power_loss")
            for turn in range(TURNS):
                write(store, turn + 1)
            one.lose_power()
            assert turns(one.store()) == TURNS
        with machine(tmp_path / f"old-{seed}", seed) as one:
            store = one.store()
            write(store, 1)
            write(store, 2)
            await one.after(FLUSH_S + 1.0)
            write(store, 3)
            one.lose_power()
            assert turns(one.store()) in (2, 3)


def test_no_boot_is_given_twice_whenever_power_is_lost(tmp_path: Path) -> None:
    for seed in range(20):
        with machine(tmp_path / f"{seed}", seed) as one:
            given = []
            for _ in range(4):
                given.append(one.store().bootid)
                one.lose_power()
            assert given == sorted(set(given)), "a message of the second would be taken for a copy"


def test_a_failed_write_ends_in_a_sentence_and_its_turn_is_whole_or_absent(tmp_path: Path) -> None:
    found = set()
    for seed in range(60):
        with machine(tmp_path / f"{seed}", seed) as one:
            store = one.store()
            write(store, 1)
            one.disk.errs = 0.5
            with pytest.raises(StoreError, match="disk I/O error; make room on the disk, or"):
                write_on(store)
            one.disk.errs = 0.0
            found.add(store.next_row() - turns(one.store()))
    assert found == {0, 1}, "nobody knows whether a failed commit counts"


ASK: dict[str, Callable[[Machine, AgentStore], object]] = {
    "open": lambda one, store: one.store(),
    "state": lambda one, store: store.load_state(),
    "spool": lambda one, store: store.load_spool(),
    "held": lambda one, store: held_gangs(one.file),
}


@pytest.mark.parametrize("what", ASK)
def test_a_disk_that_cannot_be_read_is_told_in_a_sentence(what: str, tmp_path: Path) -> None:
    with machine(tmp_path) as one, patch("sqlite3.connect", one.disk.connect):
        store = one.store()
        write(store, 1)
        one.disk.unreadable_until_s = one.clock.now_s() + 10.0
        with pytest.raises(StoreError, match=f"{one.folder}.*its disk has room and does not fail"):
            ASK[what](one, store)


def test_an_agent_that_lost_power_twice_in_a_minute_is_heard() -> None:
    crashed = Blow(600.0, "agent_crash", 0, 0.5)
    jobs = (Job(60.0, "j0", 1, 4, 15_000, "t0"), Job(90.0, "j1", 1, 4, 500, "t0"))
    for later_s in (71.0, 83.0):  # it has started again less than a minute before
        torn = Blow(600.0 + later_s, "agent_torn", 0, 0.5)
        # Of a clock that is set back, too, starts have one number but for what is on the disk.
        with patch.object(build, "BOOT_STEP_S", 60.0):
            assert run(Storm(2, 1.0, (crashed, torn), jobs)).broken == []
