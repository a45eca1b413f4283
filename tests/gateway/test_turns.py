"""Large cells: others have their turns while a state is marked, and while an entry is folded."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest

from bus.contract import Record
from gateway import index as indexing
from gateway.feed import Fold
from gateway.index import Place, open_index, written
from gateway.log import ServedLog
from scheduler.core.canonical import state_to_json
from scheduler.core.state import ClusterState
from schemas.journal import NO_DIGEST, chain, encode_entry
from schemas.topics import JOURNAL
from tests.builders import START_S, Cell, node_born


def large() -> ClusterState:
    state = Cell().told(node_born("n0")).state
    (node,) = state.nodes.values()
    state.nodes |= {f"n{number}": replace(node, id=f"n{number}") for number in range(1, 2000)}
    return state


async def turns_during(work: Any) -> int:
    """Count the turns that others have until something is done."""
    turns = 0
    doing = asyncio.ensure_future(work)
    while not doing.done():
        await asyncio.sleep(0)
        turns += 1
    await doing
    return turns


def test_a_state_in_parts_is_the_state() -> None:
    for state in (ClusterState(), large()):
        assert orjson.loads(b"".join(written(state))) == orjson.loads(orjson.dumps(state))
    sizes = [len(part) for part in written(large())]
    assert max(sizes) < sum(sizes) / 3


async def test_a_mark_leaves_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    pack = indexing._packed

    def packed(text: bytes) -> bytes:
        threads.append(threading.current_thread())
        return pack(text)

    monkeypatch.setattr(indexing, "_packed", packed)
    index, state = open_index(None), large()
    place = Place(state.number, 1, NO_DIGEST)
    assert await turns_during(index.begin(state, place, START_S)) > len(list(written(state)))
    assert threads != [threading.main_thread()]
    mark = index.mark_before(state.number)
    assert mark is not None
    *_, restored = mark.restored()
    assert restored is not None
    assert state_to_json(restored) == state_to_json(state)
    index.close()


class _OneEntry:
    """A log of one entry with thousands of facts."""

    def __init__(self, number: int) -> None:
        silent = ["NodeSilenced", {"node": "n0", "lease_end_s": 1.0}]
        facts = [silent, ["NodeReturned", {"node": "n0"}]]
        decision = {"facts": facts * 2500}
        entry = chain(NO_DIGEST, number, START_S, {"kind": "x"}, decision, policy="fifo")
        self._record = Record(JOURNAL.name, 0, "default", encode_entry(entry), {}, START_S)

    async def read(self, *_: object) -> AsyncIterator[Record]:
        yield self._record


@pytest.mark.parametrize("shown", [False, True])
async def test_a_large_entry_is_folded_in_steps_unless_others_see_the_state(shown: bool) -> None:
    state = Cell().told(node_born("n0")).state
    fold = Fold("default", state, NO_DIGEST, 0)
    log = cast("ServedLog", _OneEntry(state.number))
    turns = await turns_during(fold.go_on(log, 1, shown=shown))
    assert turns <= 2 if shown else turns >= 5
    assert fold.offset == 1
