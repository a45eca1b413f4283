"""The limit, the progress and the stop of transfers."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from runtime.checkpoints.store import CheckpointError, CheckpointStore, Transfer
from runtime.checkpoints.transfer import MIB, PARTS_AT_ONCE, TokenBucket, side_by_side


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


def test_calls_side_by_side_come_in_order_and_not_all_at_once() -> None:
    running, most, begun, lock = 0, 0, list[int](), threading.Lock()

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02 * (number % 3))
        with lock:
            running -= 1
        if number == 12:
            raise CheckpointError("the twelfth")
        return number

    def calls() -> Iterator[Callable[[], int]]:
        for number in range(40):
            begun.append(number)
            yield partial(call, number)

    found: list[int] = []
    with pytest.raises(CheckpointError, match="the twelfth"):
        found.extend(side_by_side(calls()))
    assert found == list(range(12))
    assert most == PARTS_AT_ONCE
    assert len(begun) == 12 + PARTS_AT_ONCE, "no call begins after one that failed"
    assert running == 0


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
