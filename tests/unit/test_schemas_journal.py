"""Journal entries and snapshots: CloudEvents whose chain of digests shows any change."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from schemas.codec import MESSAGES, Rejected, cell_state, decode_cell, encode
from schemas.journal import (
    NO_DIGEST,
    CellState,
    JournalEntry,
    SnapshotTaken,
    chain,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    follows,
)

STIMULUS = {"kind": "tick"}
DECISION = {"events": [], "commands": [{"job": "j", "epoch": 2}], "reasons": [{"gain": 0.1}]}


def entries(count: int) -> list[JournalEntry]:
    found: list[JournalEntry] = []
    for number in range(count):
        previous = found[-1].digest if found else NO_DIGEST
        found.append(chain(previous, number, 5, STIMULUS, DECISION, policy="afs"))
    return found


def test_each_entry_follows_the_one_before() -> None:
    first, second, third = entries(3)
    assert follows(first, NO_DIGEST)
    assert follows(second, first.digest)
    assert not follows(third, first.digest)


@pytest.mark.parametrize(
    "change",
    [
        {"number": 1},
        {"at_s": 5.5},
        {"policy": "edf"},
        {"version": 1},
        {"stimulus": {"kind": "tock"}},
        {"decision": {}},
        {"digest": "0" * 64},
    ],
)
def test_a_changed_entry_shows(change: dict[str, Any]) -> None:
    (entry,) = entries(1)
    assert not follows(entry.model_copy(update=change), NO_DIGEST)


def test_an_entry_is_a_cloudevent() -> None:
    (entry,) = entries(1)
    value = encode_entry(entry, "west")
    raw = orjson.loads(value)
    assert (raw["id"], raw["source"], raw["sequence"]) == ("west-0", "/schedulers/west", "0")
    message: Any = MESSAGES[raw["type"]].model_validate_json(value)
    assert message.data == entry == decode_entry(value)


def test_a_snapshot_is_a_cloudevent() -> None:
    snapshot = SnapshotTaken(
        number=7,
        at_s=5.0,
        digest="ab" * 32,
        state_hash="cd" * 32,
        state={"jobs": {}},
        sources={"/agents/a": [3, 41]},
        newest={"/agents/a": [3, 40]},
    )
    value = encode_snapshot(snapshot)
    message: Any = MESSAGES[SnapshotTaken.TYPE].model_validate_json(value)
    assert message.data == snapshot == decode_snapshot(value)
    assert isinstance(decode_entry(value), Rejected)


def test_cell_states_ascend_with_time() -> None:
    earlier, later = (
        cell_state(CellState(online=True, leader="s-1", leader_epoch=4, at_s=at_s))
        for at_s in (1.76e9, 1.76e9 + 1)
    )
    assert decode_cell(encode(later)) == later
    assert int(earlier.sequence) < int(later.sequence)
    assert earlier.id != later.id


@pytest.mark.parametrize(
    ("change", "kind", "field"),
    [
        (lambda raw: raw["data"].update(number=-1), "invalid_field", "data.number"),
        (lambda raw: raw["data"].update(number=True), "invalid_field", "data.number"),
        (lambda raw: raw["data"].update(at_s="now"), "invalid_field", "data.at_s"),
        (lambda raw: raw["data"].update(digest="xy"), "invalid_field", "data.digest"),
        (lambda raw: raw["data"].update(stimulus=[]), "invalid_field", "data.stimulus"),
        (lambda raw: raw["data"].pop("decision"), "invalid_field", "data.decision"),
        (lambda raw: raw.update(data=[]), "invalid_field", "data"),
        (lambda raw: raw.pop("data"), "invalid_field", "data"),
        (lambda raw: raw.update(specversion="2"), "invalid_field", "specversion"),
        (lambda raw: raw.update(type=CellState.TYPE), "misplaced", "type"),
        (lambda raw: raw.update(type="tidegate.journal.entry.v2"), "newer_version", "type"),
        (lambda raw: raw.update(type={}), "invalid_field", "type"),
        (lambda raw: raw.update(type="x"), "unknown_type", "type"),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(
    change: Callable[[dict[str, Any]], object], kind: str, field: str
) -> None:
    raw = orjson.loads(encode_entry(entries(1)[0]))
    change(raw)
    read = decode_entry(orjson.dumps(raw))
    assert isinstance(read, Rejected)
    assert (read.kind, read.field) == (kind, field)
    assert read.reason


def test_what_json_cannot_say_is_refused_when_written() -> None:
    with pytest.raises(TypeError):
        chain(NO_DIGEST, 0, 0.0, {"gpus": {1, 2}}, {}, policy="afs")
