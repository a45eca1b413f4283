"""Round trips of every type, and hostile bytes: reading gives a message or says why not."""

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from schemas.codec import (
    Rejected,
    cell_state,
    command,
    decode_cell,
    decode_command,
    decode_event,
    encode,
    event,
)
from schemas.commands import COMMANDS
from schemas.events import EVENTS
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
from tests.effort import examples
from tests.strategies import json_values, payloads

DECODERS = (decode_event, decode_command, decode_cell, decode_entry, decode_snapshot)
moments_s = st.floats(0, 4e9)
sequences = st.integers(0, 10**18)


@st.composite
def events(draw: st.DrawFn) -> Any:
    return event(
        draw(st.sampled_from(EVENTS).flatmap(payloads)),
        source="/agents/a-1",
        sequence=draw(sequences),
        bootid=draw(st.integers(0, 2**31 - 1)),
        time_s=draw(moments_s),
        subject=draw(st.none() | st.just("something")),
        causation=draw(st.none() | st.just("a-0-1")),
    )


@st.composite
def commands(draw: st.DrawFn) -> Any:
    return command(
        draw(st.sampled_from(COMMANDS).flatmap(payloads)),
        id="default-7-0",
        source="/schedulers/default",
        sequence=draw(sequences),
        bootid=1,
        time_s=draw(moments_s),
        subject="something",
        expiry_s=draw(st.none() | moments_s),
    )


@given(events())
def test_events_survive_the_wire(sent: Any) -> None:
    value = encode(sent)
    read = decode_event(value)
    assert read == sent
    assert encode(sent) == value
    assert isinstance(decode_command(value), Rejected)


@given(commands())
def test_commands_survive_the_wire(sent: Any) -> None:
    value = encode(sent)
    assert decode_command(value) == sent
    refused = decode_event(value)
    assert isinstance(refused, Rejected)
    assert (refused.kind, refused.field) == ("misplaced", "type")


@given(payloads(CellState).filter(lambda state: state.leader_epoch < 2**31 and state.at_s < 4e9))
def test_cell_states_survive_the_wire(state: CellState) -> None:
    sent = cell_state(state, cell="west")
    assert decode_cell(encode(sent)) == sent


@given(payloads(JournalEntry), st.dictionaries(st.text(max_size=5), json_values(), max_size=3))
def test_journal_survives_the_wire(drawn: JournalEntry, stimulus: dict[str, Any]) -> None:
    entry = chain(
        NO_DIGEST, drawn.number, drawn.at_s, stimulus, drawn.decision, policy=drawn.policy
    )
    read = decode_entry(encode_entry(entry, "west"))
    assert read == entry
    assert isinstance(read, JournalEntry)
    assert follows(read, NO_DIGEST)
    assert not follows(read, entry.digest)


@given(payloads(SnapshotTaken))
def test_snapshots_survive_the_wire(snapshot: SnapshotTaken) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(value: bytes) -> None:
    for decode in DECODERS:
        assert isinstance(decode(value), Rejected)


@given(json_values())
def test_arbitrary_json_never_raises(value: object) -> None:
    for decode in DECODERS:
        assert isinstance(decode(orjson.dumps(value)), Rejected)


@given(events() | commands(), st.data())
def test_mutated_bytes_never_raise(sent: Any, data: st.DataObject) -> None:
    value = bytearray(encode(sent))
    for _ in range(data.draw(st.integers(1, 3))):
        if not value:
            break
        at = data.draw(st.integers(0, len(value) - 1))
        match data.draw(st.sampled_from(("flip", "delete", "insert", "cut"))):
            case "flip":
                value[at] ^= 1 << data.draw(st.integers(0, 7))
            case "delete":
                del value[at]
            case "insert":
                value.insert(at, data.draw(st.sampled_from(b'{}[]",:\\0-9eE. \xff\x00')))
            case _:
                del value[at + 1 :]
    for decode in (decode_event, decode_command):
        read = decode(bytes(value))
        if not isinstance(read, Rejected):
            # What was accepted is sound: it can be written, and reads the same again.
            assert decode(encode(read)) == read
            assert math.isfinite(read.time_s)


def paths(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every field and list entry of a parsed message."""
    children: list[tuple[str | int, object]] = []
    if isinstance(node, dict):
        children = list(node.items())
    elif isinstance(node, list):
        children = list(enumerate(node))
    return [
        found for key, child in children for found in ((*path, key), *paths(child, (*path, key)))
    ]


def dotted(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


#: Right nowhere: numbers out of every range, a string too long for any field, other types.
BAD: list[object] = [-1e300, "x" * 2000, {"a": 1}, [[]], -(2**63), True, None]


@given(events() | commands(), st.data())
def test_one_bad_field_is_named(sent: Any, data: st.DataObject) -> None:
    raw = orjson.loads(encode(sent))
    path = data.draw(st.sampled_from(paths(raw)))
    parent = raw
    for key in path[:-1]:
        parent = parent[key]
    bad = data.draw(st.sampled_from(BAD))
    decode = decode_event if isinstance(sent.data, EVENTS) else decode_command
    before = parent[path[-1]]
    parent[path[-1]] = bad
    read = decode(orjson.dumps(raw))
    if isinstance(read, Rejected):
        assert read.kind in ("invalid_field", "unknown_type")
        named = dotted(path)
        # A list or object in a field's place may be searched for its own first fault.
        assert read.field == named or (
            isinstance(bad, list | dict) and read.field.startswith(named)
        ), (read, before)
    else:
        # Only null where null is meant, and true where a yes or no is.
        assert bad is None or (bad is True and isinstance(before, bool))


@given(events(), st.text(min_size=1, max_size=9), json_values())
def test_unknown_fields_are_ignored(sent: Any, name: str, extra: object) -> None:
    raw = orjson.loads(encode(sent))
    raw.setdefault(f"x{name}", extra)
    raw["data"].setdefault(f"x{name}", extra)
    assert decode_event(orjson.dumps(raw)) == sent


@given(events(), st.integers(2, 10**6))
def test_newer_versions_ask_for_an_upgrade(sent: Any, version: int) -> None:
    raw = orjson.loads(encode(sent))
    raw["type"] = raw["type"].removesuffix("v1") + f"v{version}"
    read = decode_event(orjson.dumps(raw))
    assert isinstance(read, Rejected)
    assert (read.kind, read.field) == ("newer_version", "type")


@pytest.mark.parametrize("payload", [*EVENTS, *COMMANDS], ids=lambda p: p.TYPE)
@settings(max_examples=examples(20))
@given(data=st.data())
def test_every_type_has_valid_examples(payload: Any, data: st.DataObject) -> None:
    drawn = data.draw(payloads(payload))
    assert payload.model_validate_json(drawn.model_dump_json()) == drawn
