"""A whole agent with an owner of real processes: lend, restart while lent, return, over the bus."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.contract import Message
from bus.memory import MemoryBus
from runtime.build import Options, build
from runtime.core import NodeSpec
from runtime.executor import Machine
from runtime.owners import (
    ProtectTimes,
    ReplicaLender,
    ReplicaOptions,
    ReplicaSpec,
    ServedOwner,
)
from runtime.service import AgentService
from runtime.simulated import SimulatedExecutor
from runtime.simulated_owner import SimulatedMeter
from schemas.codec import Rejected, decode_event
from schemas.commands import LendNode, ReturnNode
from schemas.events import CommandAcknowledged
from schemas.topics import COMMANDS, EVENTS
from tests.lending import SetMeter, is_running, lines, swept
from tests.patience import until
from tests.post import ordered

SPEC = NodeSpec("s1", "serve", "inference", 2, "cpu", 1_000)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "replicas"):
        yield tmp_path


class Place:
    """A machine, its bus, and the agents that live on it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, SystemClock()
        self.bus = MemoryBus(self.clock)

    def agent(self) -> AgentService:
        script = f"echo up $$ >> {self.folder}/ups; exec sleep 600"
        specs = [ReplicaSpec(f"r{i}", "s1", ("sh", "-c", script)) for i in range(2)]
        options = ReplicaOptions(tend_every_s=0.1)
        lender = ReplicaLender(specs, ["s1"], self.folder / "replicas", options)
        owner = ServedOwner(
            lambda _: SetMeter(),
            lender,
            {"s1": 2},
            self.folder / "owner.json",
            self.clock.now_s(),
            protect=ProtectTimes(multiplier=0.0),
        )
        executor = SimulatedExecutor({"s1": 1.0})
        machine = Machine(executor, SimulatedMeter([SPEC], executor), owner)
        return build(
            "a", [SPEC], Options(), self.bus, self.clock, self.folder / "a.db", lambda *_: machine
        )

    async def order(self, number: int, data: LendNode | ReturnNode) -> None:
        value = ordered(data, number, "a", self.clock.now_s(), id=f"c{number}")
        await self.bus.publish(Message(COMMANDS.name, "a", value))

    async def is_done(self, number: int) -> bool:
        async for record in self.bus.read(EVENTS.name):
            envelope = decode_event(record.value or b"")
            assert not isinstance(envelope, Rejected)
            if isinstance(envelope.data, CommandAcknowledged):
                if envelope.data.command == f"c{number}":
                    assert envelope.data.outcome == "done"
                    return True
        return False

    def running(self) -> int:
        return sum(is_running(int(line.split()[1])) for line in lines(self.folder / "ups"))


async def done(place: Place, number: int) -> None:
    deadline_s = time.monotonic() + 60
    while not await place.is_done(number):
        assert time.monotonic() < deadline_s, f"c{number} was not acknowledged"
        await asyncio.sleep(0.02)


async def test_lent_and_returned_across_restarts(folder: Path) -> None:
    place = Place(folder)
    agent = place.agent()
    life = asyncio.create_task(agent.run())
    await until(lambda: place.running() == 2, "the replicas of a new agent are up by themselves")
    await place.order(1, LendNode(node="s1", loan="L1"))
    await done(place, 1)
    assert place.running() == 0
    await agent.stop()
    await life

    agent = place.agent()
    life = asyncio.create_task(agent.run())
    await place.order(2, LendNode(node="s1", loan="L1"))
    await done(place, 2)
    assert len(lines(folder / "ups")) == 2, "nobody was started on the lent node"
    await place.order(3, ReturnNode(node="s1", loan="L1"))
    await done(place, 3)
    await until(lambda: place.running() == 2, "both are back")
    await agent.stop()
    await life
    assert place.running() == 2, "they outlive the agent"

    agent = place.agent()
    life = asyncio.create_task(agent.run())
    await place.order(4, LendNode(node="s1", loan="L2"))
    await done(place, 4)
    assert place.running() == 0
    await agent.stop()
    await life
    assert len(lines(folder / "ups")) == 4
