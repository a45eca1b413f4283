"""States that share what is alike are as if each were alone, and take no more than is said."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus.logfile import FileLog
from gateway.forks import Apart, fork, kept
from gateway.index import Place
from gateway.kept_states import Family, KeptStates
from gateway.past import Past
from scheduler.core.canonical import state_hash, state_to_json
from scheduler.core.state import ClusterState, Job
from scheduler.journal import JournalReader, fold
from schemas.journal import RawEntry
from schemas.topics import JOURNAL
from tests.composed import ROOT
from tests.gateway.conftest import Serving

GOLDEN = ROOT / "tests" / "golden"


def entries(log: Path) -> list[RawEntry]:
    reader = JournalReader()
    with FileLog(log) as file:
        read = [reader.read(record) for record in file.records(JOURNAL.name)]
    return [entry for entry in read if entry is not None]


@pytest.mark.parametrize("name", ["verbs", "brokers", "tide"])
def test_a_kept_state_stays_as_it_was_while_forks_of_it_go_on(name: str) -> None:
    found = entries(GOLDEN / f"{name}.jsonl.zst")
    alone = ClusterState(cell=found[0].cell)
    going = fork(ClusterState(cell=found[0].cell))
    states: list[tuple[int, str, ClusterState]] = []
    for number, entry in enumerate(found):
        if number % 7 == 0:
            states.append((number, state_hash(alone), kept(going).state))
        fold(alone, entry)
        fold(going, entry)
    assert len(states) > 50
    # Other forks go on from some of them, in any order, and leave all as they were.
    for number, _, state in random.Random(3).sample(states, 12):
        other = fork(state)
        for entry in found[number : number + 200]:
            fold(other, entry)
        if number + 200 >= len(found):
            assert state_hash(other) == state_hash(alone)
    assert [state_hash(state) for _, _, state in states] == [told for _, told, _ in states]
    assert state_hash(going) == state_hash(alone)


def test_what_did_not_change_is_shared() -> None:
    found = entries(GOLDEN / "tide.jsonl.zst")
    going = fork(ClusterState(cell=found[0].cell))
    for entry in found[:300]:
        fold(going, entry)
    before = kept(going)
    fold(going, found[300])
    after = kept(going)
    shared = [name for name, job in before.state.jobs.items() if after.state.jobs.get(name) is job]
    assert len(shared) >= len(before.state.jobs) - 5 > 0
    assert after.bytes < before.bytes


def table() -> tuple[dict[str, Job], Apart]:
    jobs = {
        name: Job(name, "team", "m", 1, 1, 1, 1.0, [[1, 1.0]], None, 0, 0, 0.0, 0.0, 0, False, 0.0)
        for name in "abc"
    }
    return jobs, Apart(dict(jobs))


WAYS: tuple[Callable[[Apart], list[Any]], ...] = (
    lambda apart: [apart["a"], apart["b"], apart["c"]],
    lambda apart: [apart.get(name) for name in "abc"],
    lambda apart: [apart.setdefault(name) for name in "abc"],
    lambda apart: [*apart.values()],
    lambda apart: [job for _, job in apart.items()],
    lambda apart: [apart.pop(name) for name in "abc"],
    lambda apart: [apart.popitem()[1] for _ in "abc"],
)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_a_record_gives_one_to_change(way: Callable[[Apart], list[Any]]) -> None:
    jobs, apart = table()
    for job in way(apart):
        job.step = 7
        job.agents.append("x")
    assert [(job.step, job.agents) for job in jobs.values()] == [(0, [])] * 3


def test_a_table_knows_which_records_are_its_own() -> None:
    jobs, apart = table()
    assert apart["a"] is apart["a"]
    del apart["a"]
    apart.update(b=jobs["c"])
    assert [*apart] == ["b", "c"]
    assert apart.own == {"b"}
    assert apart.get("a") is None
    assert apart.pop("a", 5) == 5
    with pytest.raises(KeyError):
        apart.pop("a")


async def test_moments_sought_in_any_order_are_what_each_is_alone(
    log: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        past, last = Past(), served.feed.entries
        chance = random.Random(8)
        numbers = [chance.randrange(last) for _ in range(25)]
        # As one looks: a step back, and on, from each.
        numbers += [step for number in numbers for step in (number - 1, number + 1) if step >= 0]
        told = {number: await past.state(served.feed, number) for number in numbers}
        for number, state in told.items():
            assert type(state.jobs) is dict
            alone = await Past().state(served.feed, number)
            assert state_to_json(state) == state_to_json(alone)
        assert orjson.dumps(await past.state(served.feed, numbers[0])) == orjson.dumps(
            told[numbers[0]]
        )


def test_a_family_is_counted_as_long_as_one_of_it_is_kept() -> None:
    mib = 2**20
    states, state, place = KeptStates(19 * mib), ClusterState(), Place()
    old, young = Family(10 * mib), Family(8 * mib)
    states.add(("cell", 0, 1), state, place, mib, old)
    states.add(("cell", 0, 5), state, place, mib, old)
    assert states.bytes == 12 * mib
    found = states.nearest("cell", 0, 4)
    assert found is not None
    assert states.nearest("cell", 0, 9) is not found
    assert states.nearest("cell", 0, 0) is None
    assert states.nearest("cell", 1, 9) is None
    states.add(("cell", 0, 7), state, place, mib, young)
    # The old one's states go both: one of them alone frees little.
    assert states.get(("cell", 0, 1)) is None
    assert states.get(("cell", 0, 5)) is None
    assert states.get(("cell", 0, 7)) is state
    assert states.bytes == 9 * mib
    states.add(("cell", 0, 7), state, place, 2 * mib, young)
    assert states.bytes == 10 * mib
