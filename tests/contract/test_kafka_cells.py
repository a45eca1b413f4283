"""Cells are shared by the members of a group: joining, leaving, dying, failing runs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from bus.clock import SystemClock
from bus.contract import BusError, Fenced
from bus.kafka import KafkaBus
from bus.kafka_cells import KafkaCells
from bus.kafka_sharing import share
from bus.options import KafkaOptions
from schemas.topics import EVENTS
from tests.brokers import fresh_namespace

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

options = KafkaOptions(sys.argv[1], sys.argv[2], cells=("a", "b"))
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


@dataclass
class Member:
    """A member of the group, and what it ran."""

    options: KafkaOptions
    name: str
    fails: list[Exception] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = KafkaCells(
            self.options, SystemClock(), group="g", member=self.name, pause_s=0.1
        )
        self.task = asyncio.create_task(self.cells.run(lambda cell: Serving(self, cell)))

    async def owns(self, *cells: str, seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while self.cells.owned != cells:
                assert not self.task.done()
                await asyncio.sleep(0.02)

    async def logged(self, *lines: str) -> None:
        async with asyncio.timeout(5.0):
            while self.log != list(lines):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


class Serving:
    def __init__(self, member: Member, cell: str) -> None:
        self._member, self._cell, self._over = member, cell, asyncio.Event()

    async def run(self) -> None:
        self._member.log.append(f"start {self._cell}")
        if self._member.fails:
            raise self._member.fails.pop()
        await self._over.wait()
        self._member.log.append(f"stop {self._cell}")

    def stop(self) -> None:
        self._over.set()


Joiner = Callable[..., Member]


@pytest.fixture
def options(kafka_bootstrap: str) -> KafkaOptions:
    return KafkaOptions(kafka_bootstrap, fresh_namespace(), cells=("a", "b"))


@pytest.fixture
async def join(options: KafkaOptions) -> AsyncIterator[Joiner]:
    members: list[Member] = []

    def make(name: str, of: KafkaOptions = options, fails: tuple[Exception, ...] = ()) -> Member:
        members.append(Member(of, name, list(fails)))
        return members[-1]

    yield make
    for member in members:
        member.cells.stop()
    await asyncio.wait([member.task for member in members])


@pytest.mark.broker
async def test_members_share_and_those_who_keep_a_cell_are_not_disturbed(join: Joiner) -> None:
    one = join("one")
    await one.owns("a", "b")
    await one.logged("start a", "start b")
    two = join("two")
    async with asyncio.timeout(10.0):
        while not two.cells.owned:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (kept,), (moved,) = one.cells.owned, two.cells.owned
    assert {kept, moved} == {"a", "b"}
    await one.logged("start a", "start b", f"stop {moved}")
    await two.logged(f"start {moved}")

    two.cells.stop()  # it says goodbye: no waiting for its silence
    await two.task
    assert two.log == [f"start {moved}", f"stop {moved}"]
    assert two.cells.owned == ()
    await one.owns("a", "b", seconds=4.0)
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
        async with asyncio.timeout(15.0):
            assert {await far.stdout.readline(), await far.stdout.readline()} == {
                b"serves a\n",
                b"serves b\n",
            }
        near = join("near")
        async with asyncio.timeout(10.0):
            while not near.cells.owned:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        os.kill(far.pid, number)
        await near.owns("a", "b", seconds=10.0)
        if number == signal.SIGSTOP:
            os.kill(far.pid, signal.SIGCONT)
            async with asyncio.timeout(10.0):
                while len(near.cells.owned) != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            far.kill()
        await far.wait()


@pytest.mark.broker
async def test_failed_run_is_made_anew_while_the_cell_is_ours(join: Joiner) -> None:
    member = join("one", fails=(Fenced("opened elsewhere"), BusError("away")))
    await member.owns("a", "b")
    async with asyncio.timeout(5.0):
        while sorted(member.log) != ["start a"] * 2 + ["start b"] * 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert member.cells.remade == 2
    assert "opened elsewhere" in str(member.cells.trouble)


@pytest.mark.broker
async def test_bug_in_a_run_ends_the_member(join: Joiner) -> None:
    member = join("one", fails=(ZeroDivisionError("bug"),))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(asyncio.shield(member.task), 10.0)
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


async def test_membership_waits_for_a_broker_that_is_away() -> None:
    member = Member(KafkaOptions("127.0.0.1:1", cells=("a",)), "one")
    async with asyncio.timeout(5.0):
        while member.cells.trouble is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "could not reach Kafka" in member.cells.trouble
    member.cells.stop()
    await asyncio.wait_for(member.task, 5.0)
