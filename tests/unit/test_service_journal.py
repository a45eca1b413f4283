"""The record as it is read back: damage is named, never folded."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from bus.clock import PacedClock
from bus.contract import Message, Unreadable
from scheduler import journal
from scheduler.core.canonical import state_hash, state_to_json
from scheduler.core.engine import Engine
from scheduler.core.record import decision_to_dict, stimulus_to_dict
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import LeaderStarted, Stimulus
from scheduler.dedupe import Dedupe
from scheduler.journal import recover
from schemas.journal import (
    NO_DIGEST,
    JournalEntry,
    SnapshotTaken,
    chain,
    encode_entry,
    encode_snapshot,
)
from schemas.topics import JOURNAL, SNAPSHOTS
from tests.builders import START_S, Cell, node_born, submitted
from tests.memory_bus import MemoryBus


def entries() -> tuple[Cell, list[bytes]]:
    """A few decisions, chained."""
    cell = Cell()
    digest, written = NO_DIGEST, []
    cell.engine = Engine(ClusterState(), lambda _: cell.policy)
    start = LeaderStarted("x", 1, "scripted", cell.settings.to_dict())
    for data in (start, node_born("n0"), submitted("a"), submitted("b")):
        stimulus, number = Stimulus(START_S, data), cell.state.number
        what = (stimulus_to_dict(stimulus), decision_to_dict(cell.engine.handle(stimulus)))
        entry = chain(digest, number, START_S, *what, policy="scripted")
        digest = entry.digest
        written.append(encode_entry(entry))
    return cell, written


async def read_back(written: list[bytes], snapshot: bytes | None = None) -> Any:
    bus = MemoryBus(PacedClock(START_S, None))
    await bus.publish(*(Message(JOURNAL.name, "default", value) for value in written))
    if snapshot is not None:
        await bus.publish(Message(SNAPSHOTS.name, "default", snapshot))
    return await recover(bus, "default")


async def test_what_was_written_is_read_back() -> None:
    cell, written = entries()
    found = await read_back(written)
    assert (found.entries, state_hash(found.state)) == (4, state_hash(cell.state))


def test_a_decision_is_turned_into_json_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large cell it takes a tenth of a second: the digest is of the bytes of the entry."""
    cell, given = Cell().told(node_born("n0")), list[Any]()
    stimulus = Stimulus(START_S, submitted("a"))
    decision = cell.engine.handle(stimulus)
    what = (stimulus_to_dict(stimulus), decision_to_dict(decision))
    policy, number = cell.state.leader.policy, cell.state.number - 1
    plain = chain(NO_DIGEST, number, START_S, *what, policy=policy)

    def noted(*args: Any, **named: Any) -> JournalEntry:
        for document in args[3:]:
            given.extend(document.values())
        return chain(*args, **named)

    monkeypatch.setattr(journal, "chain", noted)
    value, digest = journal.write_entry(cell.state, stimulus, decision, NO_DIGEST)
    assert (value, digest) == (encode_entry(plain, cell.state.cell), plain.digest)
    assert len(given) == len(what[0]) + len(what[1])
    assert all(isinstance(part, orjson.Fragment) for part in given)


def changed(value: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    document = orjson.loads(value)
    change(document["data"])
    return orjson.dumps(document)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["stimulus"]["data"].update(priority=5), "changed after it was written"),
        (lambda data: data.update(number=9), "where 2 should be"),
        (lambda data: data.pop("digest"), "digest"),
    ],
)
async def test_a_damaged_entry_is_named(change: Any, said: str) -> None:
    _, written = entries()
    written[2] = changed(written[2], change)
    with pytest.raises(Unreadable, match=said) as found:
        await read_back(written)
    assert "restore the log from a copy" in str(found.value)


async def test_a_lost_entry_shows() -> None:
    _, written = entries()
    del written[1]
    with pytest.raises(Unreadable, match="entry 2 where 1 should be"):
        await read_back(written)


@pytest.mark.parametrize("good", [True, False])
async def test_a_snapshot_must_have_its_hash(good: bool) -> None:
    cell, written = entries()
    snapshot = SnapshotTaken(
        number=cell.state.number,
        at_s=START_S,
        digest="0" * 64,
        state_hash=state_hash(cell.state) if good else "f" * 64,
        state=orjson.loads(state_to_json(cell.state)),
        sources=Dedupe().to_dict(),
    )
    found = await read_back(written, encode_snapshot(snapshot))
    assert state_hash(found.state) == state_hash(cell.state)
    assert found.entries == (0 if good else cell.state.number), "else the journal tells it all"
    assert good or "does not have its hash" in found.snapshot_problem


async def test_entries_that_a_snapshot_has_are_passed_over_without_being_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell, written = entries()
    found = await read_back(written[:2])
    taken = SnapshotTaken(
        number=2,
        at_s=START_S,
        digest=found.digest,
        state_hash=state_hash(found.state),
        state=orjson.loads(state_to_json(found.state)),
        sources={},
    )
    parsed: list[bytes] = []
    monkeypatch.setattr(journal, "decode_entry", parsed.append)
    again = await read_back(written, encode_snapshot(taken))
    assert (again.entries, state_hash(again.state)) == (2, state_hash(cell.state))
    assert parsed == []
