"""A whole agent with an owner of real processes: lend, restart while lent, return, over the bus."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.clock import SystemClock
from runtime.build import Options, build
from runtime.core import NodeSpec
from runtime.executor import Machine
from runtime.owners import ReplicaLender, ReplicaOptions, ReplicaSpec
from runtime.service import AgentService
from runtime.simulated import SimulatedExecutor
from runtime.simulated_owner import SimulatedMeter
from schemas.commands import LendNode, ReturnNode
from schemas.events import CommandAcknowledged
from tests.heard import Heard
from tests.lending import lines, living, served, swept
from tests.patience import PATIENCE_S, until

SPEC = NodeSpec("s1", "serve", "inference", 2, "cpu", 1_000)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "replicas"):
        yield tmp_path


class Place(Heard):
    """A machine, its bus, and the agents that live on it one after the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SystemClock())
        self.folder = folder

    def agent(self) -> AgentService:
        script = f"echo up $$ >> {self.folder}/ups; exec sleep 600"
        specs = [ReplicaSpec(f"r{i}", "s1", ("sh", "-c", script)) for i in range(2)]
        options = ReplicaOptions(tend_every_s=0.1)
        lender = ReplicaLender(specs, ["s1"], self.folder / "replicas", options)
        executor = SimulatedExecutor({"s1": 1.0})
        machine = Machine(executor, SimulatedMeter([SPEC], executor), served(lender, self.folder))
        return build(
            "a", [SPEC], Options(), self.bus, self.clock, self.folder / "a.db", lambda *_: machine
        )

    async def done(self, data: LendNode | ReturnNode) -> None:
        """Order it, and wait until it is so."""
        before = await self.said(CommandAcknowledged)
        await self.order("a", data)
        deadline_s = time.monotonic() + PATIENCE_S
        while len(said := await self.said(CommandAcknowledged)) == len(before):
            assert time.monotonic() < deadline_s, f"{data} was not acknowledged"
            await asyncio.sleep(0.02)
        assert [ack.outcome for ack in said[len(before) :]] == ["done"]

    def running(self) -> int:
        return len(living(self.folder / "ups"))


async def test_lent_and_returned_across_restarts(folder: Path) -> None:
    place = Place(folder)
    agent = place.agent()
    life = asyncio.create_task(agent.run())
    await until(lambda: place.running() == 2, "the replicas of a new agent are up by themselves")
    await place.done(LendNode(node="s1", loan="L1"))
    assert place.running() == 0
    await agent.stop()
    await life

    agent = place.agent()
    life = asyncio.create_task(agent.run())
    await place.done(LendNode(node="s1", loan="L1"))
    assert len(lines(folder / "ups")) == 2, "nobody was started on the lent node"
    await place.done(ReturnNode(node="s1", loan="L1"))
    await until(lambda: place.running() == 2, "both are back")
    await agent.stop()
    await life
    assert place.running() == 2, "they outlive the agent"

    agent = place.agent()
    life = asyncio.create_task(agent.run())
    await place.done(LendNode(node="s1", loan="L2"))
    assert place.running() == 0
    await agent.stop()
    await life
    assert len(lines(folder / "ups")) == 4
