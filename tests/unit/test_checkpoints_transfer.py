"""The limit, the progress and the stop of transfers."""

import itertools
import threading
import time
from pathlib import Path

import pytest

from runtime.checkpoints.filesystem import PARTS_AT_ONCE, Filesystem
from runtime.checkpoints.store import CheckpointError, CheckpointStore, Transfer
from runtime.checkpoints.transfer import MIB, TokenBucket


class FakeTime:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits_s: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, stop: threading.Event, left_s: float) -> bool:
        self.waits_s.append(left_s)
        self.now_s += left_s
        return stop.is_set()


def test_the_limit_holds_over_all_who_share_it() -> None:
    clock, stop = FakeTime(), threading.Event()
    rate = TokenBucket(2.0, clock.monotonic_s, clock.wait)
    for _ in range(10):
        assert rate.take(4 * MIB, stop)
    assert clock.waits_s == [2.0] * 9  # the first goes at once
    clock.now_s += 60.0  # idle time is not saved up
    assert rate.take(4 * MIB, stop)
    assert rate.take(1 * MIB, stop)
    assert clock.waits_s == [2.0] * 10


def test_a_wait_that_ends_early_is_taken_up_again() -> None:
    clock, stop = FakeTime(), threading.Event()
    rate = TokenBucket(1.0, clock.monotonic_s, lambda stop, left_s: clock.wait(stop, left_s / 2))
    rate.take(1 * MIB, stop)
    assert rate.take(1 * MIB, stop)
    assert clock.now_s == pytest.approx(101.0)
    assert len(clock.waits_s) > 2


def test_no_limit_never_waits() -> None:
    clock, stop = FakeTime(), threading.Event()
    rate = TokenBucket(None, clock.monotonic_s, clock.wait)
    assert all(rate.take(2**40, stop) for _ in range(5))
    assert clock.waits_s == []


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(rate: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rate_mib_per_s"):
        CheckpointStore(f"file://{tmp_path}", rate_mib_per_s=rate)


@pytest.mark.parametrize(("rate", "part_mib"), [(0.1, 1), (0.5, 2), (2.0, 8), (100.0, 16)])
def test_a_limited_store_has_parts_of_a_few_seconds(
    rate: float, part_mib: int, tmp_path: Path
) -> None:
    slow = CheckpointStore(f"file://{tmp_path}/a", rate_mib_per_s=rate)
    assert slow.part_bytes == part_mib * MIB


def test_parts_that_are_alike_move_once(tmp_path: Path) -> None:
    source = tmp_path / "step-10"
    source.write_bytes(bytes(9 * 1000))
    told: list[Transfer] = []
    store = CheckpointStore(f"file://{tmp_path}/store", part_bytes=1000)
    checkpoint = store.commit("job-1", 1, 10, source, 1.0, told.append)
    assert told[-1] == Transfer(9000, 9000, "step-10", moved_bytes=1000)
    assert store.fetch(checkpoint, tmp_path / "into").read_bytes() == source.read_bytes()


def test_a_stop_ends_the_wait_at_once(tmp_path: Path) -> None:
    source = tmp_path / "step-10"
    source.write_bytes(bytes(range(256)) * 4096 * 4)
    store = CheckpointStore(f"file://{tmp_path}/store", rate_mib_per_s=1 / 3600)  # an hour a MiB
    stop, told = threading.Event(), threading.Event()
    errors: list[CheckpointError] = []

    def commit() -> None:
        try:
            store.commit("job-1", 1, 10, source, 1.0, lambda _: told.set(), stop)
        except CheckpointError as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    time.sleep(0.01)  # anywhere in the first hour will do
    stop.set()
    thread.join(60.0)
    assert not thread.is_alive()
    assert "stopped" in str(errors[0])
    with pytest.raises(CheckpointError, match="stopped"):
        store.commit("job-1", 1, 10, source, 1.0, None, stop)  # set from the beginning
    assert store.find("job-1", 10) is None


def test_a_stopped_fetch_goes_on_where_it_was(tmp_path: Path) -> None:
    source = tmp_path / "step-10"
    source.write_bytes(bytes(n % 251 for n in range(10_000)))
    store = CheckpointStore(f"file://{tmp_path}/store", part_bytes=1000)
    checkpoint = store.commit("job-1", 1, 10, source, 1.0)
    told: list[Transfer] = []
    stop = threading.Event()

    def tell(transfer: Transfer) -> None:
        told.append(transfer)
        if transfer.done_bytes == 4000:
            stop.set()

    with pytest.raises(CheckpointError, match="stopped"):
        store.fetch(checkpoint, tmp_path / "into", tell, stop)
    assert not (tmp_path / "into" / "1-10").exists()
    fetched = store.fetch(checkpoint, tmp_path / "into", told.append)
    assert fetched.read_bytes() == source.read_bytes()
    had = 10_000 - told[-1].moved_bytes
    assert told[-1] == Transfer(10_000, 10_000, "step-10", 10_000 - had)
    assert 4000 <= had < 4000 + PARTS_AT_ONCE * 1000, "no part begins after a stop"


def test_at_a_limit_parts_go_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transfer would else wait for the tokens of all of them."""
    source = tmp_path / "step-10"
    source.write_bytes(bytes(n % 251 for n in range(8000)))
    running, most, whole = [0], [0], Filesystem.write

    def write(self: Filesystem, path: str, data: bytes) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.01)
        whole(self, path, data)
        running[0] -= 1

    monkeypatch.setattr(Filesystem, "write", write)
    for name, rate, expected in (("a", 100.0, [1]), ("b", None, range(2, PARTS_AT_ONCE + 1))):
        store = CheckpointStore(f"file://{tmp_path}/{name}", part_bytes=1000, rate_mib_per_s=rate)
        store.commit("job-1", 1, 10, source, 1.0)
        assert most[0] in expected


def test_what_was_moved_before_a_part_failed_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "step-10"
    source.write_bytes(bytes(n % 251 for n in range(8000)))
    store = CheckpointStore(f"file://{tmp_path}/store", part_bytes=1000)
    whole, writes = Filesystem.write, itertools.count()

    def write(self: Filesystem, path: str, data: bytes) -> None:
        if next(writes) == 0:
            time.sleep(0.2)  # those behind it arrive first
            raise CheckpointError("the disk is full")
        whole(self, path, data)

    monkeypatch.setattr(Filesystem, "write", write)
    with pytest.raises(CheckpointError, match="the disk is full"):
        store.commit("job-1", 1, 10, source, 1.0)
    stored = sum(file.stat().st_size for file in (tmp_path / "store").rglob("*") if file.is_file())
    assert store.commits.moved_bytes == stored == (PARTS_AT_ONCE - 1) * 1000
