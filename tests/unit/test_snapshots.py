"""Snapshots of any size: in pieces, while others work; a restart folds little, whatever came."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from bus.contract import Message, Record
from scheduler import snapshots
from scheduler.core.canonical import state_hash
from scheduler.core.state import ClusterState
from scheduler.dedupe import Dedupe
from scheduler.journal import recover
from scheduler.replay import verify
from scheduler.service import SchedulerService
from scheduler.snapshots import Writing
from schemas.events import JobSubmitted
from schemas.programs import Program
from schemas.topics import JOURNAL, SNAPSHOTS
from tests.builders import node_born, submitted
from tests.desk import Desk, open_desk

PIECE = 3000


@pytest.fixture(params=["memory", "sqlite"])
async def desk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", PIECE)
    async with open_desk(request.param, tmp_path) as desk:
        yield desk


def job(name: str, size: int = 1000) -> JobSubmitted:
    program = Program(argv=["train", "x" * size])
    return submitted(name).model_copy(update={"program": program})


async def filled(desk: Desk, jobs: int = 20, **config: int) -> SchedulerService:
    service = desk.start(**config)
    await desk.hears(desk.say(node_born("n0")), *(desk.say(job(f"j{n}")) for n in range(jobs)))
    return service


async def is_recovered(desk: Desk, service: SchedulerService) -> int:
    """Assert that a restart finds the state; give how many entries it folds."""
    found = await recover(desk.bus, "default")
    assert found.snapshot_problem == ""
    assert state_hash(found.state) == state_hash(service.engine.state)
    assert found.dedupe.to_dict() == service.intake.dedupe.to_dict()
    return found.entries


async def verified(desk: Desk) -> None:
    journal, taken = await desk.records(JOURNAL.name), await desk.records(SNAPSHOTS.name)
    assert verify(journal, snapshots=taken).identical


async def test_a_state_of_any_size_is_written_in_pieces(desk: Desk) -> None:
    service = await filled(desk)
    await service.snapshot()
    records = await desk.records(SNAPSHOTS.name)
    assert len(records) > 5
    assert all(len(record.value or b"") < 2 * PIECE + 2000 for record in records)
    assert await is_recovered(desk, service) == 0
    await desk.hears(desk.say(job("late")))
    assert 0 < await is_recovered(desk, service) < 5
    await verified(desk)


async def test_a_small_state_is_one_record(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    service = await filled(desk, jobs=3)
    await service.snapshot()
    (record,) = await desk.records(SNAPSHOTS.name)
    assert record.key == "default"
    assert await is_recovered(desk, service) == 0


async def test_others_work_while_it_is_written(desk: Desk) -> None:
    service = await filled(desk, jobs=60)
    turns, ended = 0, False

    async def others() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    await service.snapshot()
    ended = True
    await working
    assert turns >= len(await desk.records(SNAPSHOTS.name)) > 10


async def test_one_that_was_not_finished_leaves_the_one_before_whole(desk: Desk) -> None:
    """The process died between pieces, and compaction came by."""
    service = await filled(desk)
    await service.snapshot()
    await desk.hears(desk.say(job("late")))
    end = await desk.bus.end(SNAPSHOTS.name)
    state, offsets = service.engine.state, {"pieces_offset": end}
    writing = Writing(state, "0" * 64, {}, newest={}, turn=service._snapshots._turn + 1, **offsets)
    *pieces, _ = [Message(SNAPSHOTS.name, key, value) for key, value in writing.pieces()]
    await desk.bus.publish(*pieces)
    await desk.bus.prune(desk.clock.now_s())
    assert 0 < await is_recovered(desk, service) < 5
    await desk.crash()
    again = desk.start()
    await desk.wait(1.0)
    for _ in range(3):
        await again.snapshot()
        await desk.bus.prune(desk.clock.now_s())
        assert await is_recovered(desk, again) == 0
    assert len({record.key for record in await desk.records(SNAPSHOTS.name)}) < 3 * len(pieces)
    await verified(desk)


@pytest.mark.parametrize("harm", ["changed", "lost"])
async def test_what_is_damaged_is_found_and_the_journal_serves(desk: Desk, harm: str) -> None:
    service = await filled(desk)
    await service.snapshot()
    taken = await desk.records(SNAPSHOTS.name)
    piece = taken[2]
    if harm == "changed":
        document = orjson.loads(piece.value or b"")
        document["data"]["state"]["jobs"].popitem()[1]["tenant"] = "mallory"
        changed = [Message(SNAPSHOTS.name, piece.key, orjson.dumps(document))]
    else:
        changed = []
    others = [Message(one.topic, one.key, one.value) for one in taken]
    await desk.bus.publish(*others[:2], *changed, *others[3:])
    found = await recover(desk.bus, "default")
    assert f"snapshot {service.engine.state.number}" in found.snapshot_problem
    assert found.entries == service.engine.state.number, "the journal holds all that it did"
    assert state_hash(found.state) == state_hash(service.engine.state)


async def test_a_restart_folds_little_whatever_entries_take(desk: Desk) -> None:
    service = desk.start(snapshot_entries=10**6, snapshot_bytes=40_000)
    await desk.hears(desk.say(node_born("n0")))
    for number in range(30):
        await desk.hears(desk.say(job(f"j{number}", size=5000)))
    written = sum(len(one.value or b"") for one in await desk.records(JOURNAL.name))
    assert written > 4 * 40_000
    found = await recover(desk.bus, "default")
    assert found.bytes < 60_000
    assert await is_recovered(desk, service) < 30


async def test_what_snapshots_cost_an_entry_does_not_grow_with_the_cell(desk: Desk) -> None:
    service = desk.start(snapshot_entries=10)
    await desk.hears(desk.say(node_born("n0")))
    for number in range(300):
        await desk.hears(desk.say(job(f"j{number}")))
    reading = snapshots.Reading("default")
    found = [reading.take(record) for record in await desk.records(SNAPSHOTS.name)]
    taken = [one for one in found if one is not None]
    written = sum(len(one.state["jobs"]) for one in taken)
    assert len(taken) > 3
    assert written < 3 * service.engine.state.number
    assert await is_recovered(desk, service) <= 151


def test_sources_are_in_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", PIECE)
    dedupe = Dedupe()
    for number in range(500):
        dedupe.take(f"/agents/a{number}", 1, 0, float(number))
    written = list(Writing(ClusterState(), "0" * 64, dedupe.to_dict()).pieces())
    assert len(written) > 3
    reading = snapshots.Reading("default")
    *pieces, last = [
        Record(SNAPSHOTS.name, n, key, value, {}, 0.0) for n, (key, value) in enumerate(written)
    ]
    assert [reading.take(piece) for piece in pieces] == [None] * len(pieces)
    taken = reading.take(last)
    assert taken is not None
    assert taken.sources == dedupe.to_dict()
