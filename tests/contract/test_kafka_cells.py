"""Cells are shared by the members of a group: joining, leaving, dying, failing runs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from bus import kafka_cells, kafka_client
from bus.clock import Clock, SystemClock
from bus.contract import BusError, Fenced, Unreadable
from bus.kafka import KafkaBus
from bus.kafka_cells import KafkaCells
from bus.kafka_sharing import UNABLE_S, share
from bus.kafka_topics import make_topics
from bus.options import KafkaOptions
from schemas.topics import EVENTS, Topic
from tests.brokers import fresh_namespace
from tests.patience import PATIENCE_S, until

#: What another process runs: a member that serves whatever it is given, until it is killed.
MEMBER = """
import asyncio, sys
from bus.clock import SystemClock
from bus.kafka_cells import KafkaCells
from bus.options import KafkaOptions

class Serving:
    def __init__(self, cell):
        self.cell, self.over = cell, asyncio.Event()
    async def run(self):
        print(f"serves {self.cell}", flush=True)
        await self.over.wait()
    def stop(self):
        self.over.set()

options = KafkaOptions(sys.argv[1], sys.argv[2], cells=("a", "b"), replication=1)
asyncio.run(KafkaCells(options, SystemClock(), group="g", member="far").run(Serving))
"""


def test_shares_are_even_and_claims_are_kept() -> None:
    assert share(range(4), {"x": {}, "y": {}}) == {"x": [0, 2], "y": [1, 3]}
    assert share(range(2), {"x": {0: 1.0, 1: 1.0}, "new": {}}) == {"new": [1], "x": [0]}
    assert share(range(2), {"x": {1: 1.0}, "y": {0: 1.0}}) == {"x": [1], "y": [0]}
    assert share(range(1), {"a": {}, "y": {0: 1.0}, "z": {}}) == {"a": [], "y": [0], "z": []}
    crowded = {"x": {0: 1.0, 1: 1.0}, "y": {2: 1.0, 3: 1.0}, "z": {}}
    assert share(range(4), crowded) == {"x": [0, 1], "y": [2], "z": [3]}
    # One that slept through a takeover claims what another has got since.
    assert share(range(2), {"slept": {0: 1.0, 1: 1.0}, "y": {0: 5.0}}) == {"slept": [1], "y": [0]}


def test_who_cannot_serve_a_cell_has_it_only_if_nobody_can() -> None:
    cannot = {0: UNABLE_S}
    assert share(range(1), {"x": cannot, "y": {}}) == {"x": [], "y": [0]}
    assert share(range(2), {"x": {**cannot, 1: 1.0}, "y": {}}) == {"x": [1], "y": [0]}
    assert share(range(2), {"x": {0: UNABLE_S, 1: UNABLE_S}, "y": {}}) == {"x": [], "y": [0, 1]}
    assert share(range(1), {"x": cannot, "y": cannot}) == {"x": [0], "y": []}


@dataclass
class Member:
    """A member of the group, and what it ran."""

    options: KafkaOptions
    name: str
    fails: list[Exception] = field(default_factory=list)
    cannot: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = KafkaCells(
            self.options, SystemClock(), group="g", member=self.name, pause_s=0.1
        )
        self.task = asyncio.create_task(self.cells.run(lambda cell: Serving(self, cell)))

    async def owns(self, *cells: str) -> None:
        await until(lambda: self.cells.owned == cells or self.task.done())
        assert not self.task.done()

    async def logged(self, *lines: str) -> None:
        await until(lambda: self.log == list(lines))


class Serving:
    def __init__(self, member: Member, cell: str) -> None:
        self._member, self._cell, self._over = member, cell, asyncio.Event()

    async def run(self) -> None:
        self._member.log.append(f"start {self._cell}")
        if self._cell in self._member.cannot:
            raise Unreadable("journal entry 7 has version 9")
        if self._member.fails:
            raise self._member.fails.pop()
        await self._over.wait()
        self._member.log.append(f"stop {self._cell}")

    def stop(self) -> None:
        self._over.set()


Joiner = Callable[..., Member]


@pytest.fixture
def options(kafka_bootstrap: str) -> KafkaOptions:
    return KafkaOptions(kafka_bootstrap, fresh_namespace(), cells=("a", "b"), replication=1)


@pytest.fixture
async def join(options: KafkaOptions) -> AsyncIterator[Joiner]:
    members: list[Member] = []

    def make(
        name: str,
        of: KafkaOptions = options,
        fails: tuple[Exception, ...] = (),
        cannot: tuple[str, ...] = (),
    ) -> Member:
        members.append(Member(of, name, list(fails), cannot))
        return members[-1]

    yield make
    for member in members:
        member.cells.stop()
    await asyncio.wait([member.task for member in members])


@pytest.mark.broker
async def test_members_share_and_those_who_keep_a_cell_are_not_disturbed(
    join: Joiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_cells, "SESSION_S", 3 * PATIENCE_S)  # nobody is missed for silence
    one = join("one")
    await one.owns("a", "b")
    await one.logged("start a", "start b")
    two = join("two")
    await until(lambda: len(one.cells.owned) == len(two.cells.owned) == 1)
    (kept,), (moved,) = one.cells.owned, two.cells.owned
    assert {kept, moved} == {"a", "b"}
    await one.logged("start a", "start b", f"stop {moved}")
    await two.logged(f"start {moved}")

    two.cells.stop()  # it says goodbye
    await two.task
    assert two.log == [f"start {moved}", f"stop {moved}"]
    assert two.cells.owned == ()
    await one.owns("a", "b")
    await one.logged("start a", "start b", f"stop {moved}", f"start {moved}")


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_silent_member_is_replaced_and_may_come_back(
    join: Joiner, options: KafkaOptions, number: signal.Signals
) -> None:
    far = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        MEMBER,
        options.bootstrap,
        options.namespace,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert far.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert {await far.stdout.readline(), await far.stdout.readline()} == {
                b"serves a\n",
                b"serves b\n",
            }
        near = join("near")
        await until(lambda: near.cells.owned)
        os.kill(far.pid, number)
        await near.owns("a", "b")
        if number == signal.SIGSTOP:
            os.kill(far.pid, signal.SIGCONT)
            await until(lambda: len(near.cells.owned) == 1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            far.kill()
        await far.wait()


@pytest.mark.broker
async def test_failed_run_is_made_anew_while_the_cell_is_ours(join: Joiner) -> None:
    member = join("one", fails=(Fenced("opened elsewhere"), BusError("away")))
    await member.owns("a", "b")
    await until(lambda: sorted(member.log) == ["start a"] * 2 + ["start b"] * 2)
    assert member.cells.remade == 2
    assert "opened elsewhere" in str(member.cells.trouble)


@pytest.mark.broker
async def test_who_cannot_read_a_cell_yields_it_to_one_that_can(join: Joiner) -> None:
    able = join("able")
    await able.owns("a", "b")
    old = join("old", cannot=("a", "b"))
    await until(lambda: old.log != [])
    await able.owns("a", "b")
    await old.owns()
    (tried,) = {line.removeprefix("start ") for line in old.log}
    kept = "b" if tried == "a" else "a"
    assert able.log.count(f"start {kept}") == 1, "what was served well is not disturbed"
    await until(lambda: able.log[-2:] == [f"stop {tried}", f"start {tried}"])
    able.cells.stop()
    await able.task
    await old.owns("a", "b")
    assert "version 9" in str(old.cells.trouble), "nobody else can, so it tries again"


@pytest.mark.broker
async def test_a_cell_that_was_added_stays_with_who_knows_of_it(
    join: Joiner, options: KafkaOptions
) -> None:
    more = replace(options, cells=("a", "b", "c"))
    new = join("new", of=more)
    await new.owns("a", "b", "c")
    old = join("old")  # it is restarted with the new configuration later
    await until(lambda: old.cells.trouble or old.log)
    assert "kafka.cells names 2" in str(old.cells.trouble)
    await until(lambda: new.log.count("start c") == 2)
    await new.owns("a", "b", "c")
    assert [new.log.count(f"start {cell}") for cell in "ab"] == [1, 1]
    await old.owns()


@pytest.mark.broker
async def test_bug_in_a_run_ends_the_member(join: Joiner) -> None:
    member = join("one", fails=(ZeroDivisionError("bug"),))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(member.task), PATIENCE_S)
    assert [line for line in member.log if line.startswith("stop")] != []


@pytest.mark.broker
async def test_owner_of_a_cell_commits_in_the_group_it_was_given_by(
    join: Joiner, options: KafkaOptions
) -> None:
    await join("one").owns("a", "b")
    bus = KafkaBus.open(options, SystemClock(), "b")
    consumer = await bus.consumer("g", [EVENTS.name])
    await consumer.commit()
    await bus.close()


@pytest.mark.broker
async def test_cells_are_shared_as_soon_as_the_broker_knows_their_topic(
    join: Joiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker hears of a topic some time after it was made."""
    making: list[asyncio.Task[None]] = []

    async def later(options: KafkaOptions, clock: Clock, table: Mapping[str, Topic]) -> None:
        async def make() -> None:
            await asyncio.sleep(1.0)
            await make_topics(options, clock, table)

        making.append(asyncio.create_task(make()))

    monkeypatch.setattr(kafka_cells, "make_topics", later)
    monkeypatch.setattr(kafka_client, "_METADATA_S", 3600.0)  # by itself nobody asks again
    await join("one").owns("a", "b")
    await asyncio.gather(*making)


async def test_membership_waits_for_a_broker_that_is_away() -> None:
    member = Member(KafkaOptions("127.0.0.1:1", cells=("a",)), "one")
    await until(lambda: member.cells.trouble)
    assert "could not reach Kafka" in str(member.cells.trouble)
    member.cells.stop()
    await asyncio.wait_for(member.task, PATIENCE_S)
