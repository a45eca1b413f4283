"""Cycles are looked for where nobody waits, and only if there is something to look through."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.contract import Fenced
from scheduler import garbage, snapshots
from scheduler.core import restore
from scheduler.core.facts import CycleRan, JobExplained
from scheduler.core.stimuli import Decision
from scheduler.intake import Intake
from scheduler.journal import recover
from scheduler.service import SchedulerService
from tests.builders import node_born, submitted
from tests.desk import Desk, open_desk


class _Ring:
    """Refers to itself: only a look for cycles ends it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    garbage.put_off()
    yield
    gc.set_threshold(*before)


@contextlib.contextmanager
def looks() -> Iterator[list[tuple[int, int]]]:
    """Give the looks meanwhile: at which objects, and at how many."""
    found: list[tuple[int, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            oldest = info["generation"]
            counts = [len(gc.get_objects(generation=one)) for one in range(oldest + 1)]
            found.append((oldest, sum(counts)))

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def many() -> list[list[int]]:
    return [[number] for number in range(60_000)]


def test_a_plan_s_records_are_not_looked_through_while_they_are_made() -> None:
    ring = weakref.ref(_Ring())
    kept = many()
    assert ring() is not None, len(kept)


def test_where_nobody_looks_only_the_newest_are_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "_AT_ONCE", 1000)
    garbage.put_off()
    with looks() as found:
        kept = [many() for _ in range(2)]
    assert len(found) > 50, len(kept)
    assert {oldest for oldest, _ in found} == {0}


def test_between_ticks_cycles_are_found_once_there_is_enough_to_look_through() -> None:
    ring = weakref.ref(_Ring())
    garbage.look()
    assert ring() is not None
    kept = many()
    garbage.look()
    assert ring() is None, len(kept)


def test_old_cycles_are_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_WORTH", 100)
    ring = _Ring()
    gc.collect(0)
    gc.collect(1)  # it is among the oldest now
    old = weakref.ref(ring)
    del ring
    kept, looks = [], 0
    while old() is not None:
        kept.append([[number] for number in range(200)])
        garbage.look()
        looks += 1
        assert looks < 1000
    assert looks > 20  # the older they are, the more rarely


def test_a_scheduler_looks_once_through_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look holds up the whole process, and the state of a large cell is a million objects."""
    monkeypatch.setattr(garbage, "_WORTH", 100)
    ring, kept = weakref.ref(_Ring()), []
    with looks() as found:
        for _ in range(1000):
            kept.append([[number] for number in range(200)])
            garbage.look_at_new()
    assert ring() is None
    assert len(found) == 1000
    assert max(count for _, count in found) < 1000


async def filled(desk: Desk, jobs: int) -> SchedulerService:
    service = desk.start()
    jobs_said = [desk.say(submitted(f"j{number}")) for number in range(jobs)]
    await desk.hears(desk.say(node_born("n0")), *jobs_said)
    return service


def test_a_scheduler_finds_old_cycles_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_RARELY", 3)
    old = _Ring()
    ring = weakref.ref(old)
    garbage.look_at_new(surely=True)  # it is old now
    del old
    with looks() as found:
        for _ in range(3):
            assert ring() is not None
            garbage.look_at_new(surely=True)
    assert ring() is None
    assert [oldest for oldest, _ in found] == [1, 1, 2]


async def test_a_leader_looks_at_nothing_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_WORTH", 1)
    monkeypatch.setattr(garbage, "_LOOKS", 0)
    async with open_desk("memory", tmp_path) as desk:
        with looks() as found:
            await filled(desk, 50)
            await desk.wait(600.0)
    assert {oldest for oldest, _ in found} == {1}


async def test_each_plan_is_followed_by_a_look(tmp_path: Path) -> None:
    """Though nothing was added: its reasons take the place of others."""
    async with open_desk("memory", tmp_path) as desk:
        await filled(desk, 5)
        desk.seen.clear()
        with looks() as found:
            await desk.wait(600.0)
        facts = [fact for _, decision in desk.seen for fact in decision.facts]
    cycles = sum(isinstance(fact, CycleRan) for fact in facts)
    assert 10 <= cycles < len(desk.seen)
    assert [oldest for oldest, _ in found] == [1] * cycles


async def test_what_a_tick_decided_is_gone_before_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is half of what a large cycle makes."""
    left: list[list[str]] = []

    def look(*, surely: bool) -> None:
        made = gc.get_objects(generation=0) + gc.get_objects(generation=1)
        kinds = [type(one) for one in made]  # the oldest may be another test's
        left.append([kind.__name__ for kind in kinds if kind in (Decision, JobExplained)])

    monkeypatch.setattr(garbage, "look_at_new", look)
    async with open_desk("memory", tmp_path) as desk:
        service = await filled(desk, 5)
        service._watch = None
        desk.seen.clear()
        left.clear()
        await desk.hears(*(desk.say(submitted(f"later{number}")) for number in range(5)))
        await desk.wait(100.0)
        assert service.engine.state.jobs["later4"].why is not None
    assert left
    assert left == [[]] * len(left)


async def test_a_recovery_looks_through_the_state_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(restore, "_STEP", 50)
    async with open_desk("memory", tmp_path) as desk:
        service = await filled(desk, 1000)
        await service.snapshot()
        monkeypatch.setattr(garbage, "_WORTH", 500)
        gc.collect()
        before = len(gc.get_objects())
        with looks() as found:
            recovered = await recover(desk.bus, "default")
        made = len(gc.get_objects()) - before
    assert len(recovered.state.jobs) == 1000
    assert max(count for _, count in found) < made / 3


@pytest.mark.parametrize("end", ["stopped", "cancelled", "fenced"])
async def test_nothing_is_left_of_a_leader_for_a_look_to_find(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_desk("memory", tmp_path) as desk:
        service = await filled(desk, 5)
        await desk.wait(100.0)
        estimator = service.learning._estimator
        assert estimator is not None
        left = [weakref.ref(one) for one in (service, service.engine, estimator)]
        if end == "stopped":
            service.stop()
        elif end == "cancelled":
            desk.tasks[-1].cancel()
        else:
            monkeypatch.setattr(Intake, "read", _fenced)
        await desk.bus.publish(desk.say(submitted("late")))
        await desk.clock.run_until(desk.clock.now_s() + 1.0)
        with contextlib.suppress(asyncio.CancelledError, Fenced):
            await desk.tasks.pop()
        desk.seen.clear()
        del service, estimator
        assert [one() for one in left] == [None, None, None]


def _fenced(*_: object) -> None:
    raise Fenced("another leads")
