"""What an agent as a process says beside what its core says."""

import asyncio
from pathlib import Path

import structlog

from bus.clock import SystemClock
from bus.memory import MemoryBus
from cloud_agent.agent import CloudAgentConfig, build_agent
from runtime.simulated_owner import simulated
from schemas.codec import Rejected, decode_event
from schemas.events import LinkLost
from schemas.topics import EVENTS
from services.agents import AgentRole
from services.config import load

CONFIG = """
[agent]
name = "a"
runs = "simulated"
"""


class Open(MemoryBus):
    """Can be read when the agent has let go of it."""

    async def close(self) -> None:
        """Stay open."""


def role(folder: Path, bus: MemoryBus) -> AgentRole:
    file = folder / "tidegate.toml"
    file.write_text(CONFIG)
    about = CloudAgentConfig("a", "train", "training", ("n1",), 4)
    clock = SystemClock()
    agent = build_agent(about, bus, clock, folder / "a.db", simulated())
    log = structlog.stdlib.get_logger()
    return AgentRole("cloud-agent", agent, bus, clock, load(file), log)


async def test_who_is_told_to_end_says_that_nobody_is_here(tmp_path: Path) -> None:
    bus = Open(SystemClock())
    made = role(tmp_path, bus)
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    made.stop()
    await running
    last = [decode_event(r.value or b"") async for r in bus.read(EVENTS.name)][-1]
    assert not isinstance(last, Rejected)
    assert isinstance(last.data, LinkLost)
    assert (last.source, last.data.agent) == ("/links/a", "a")


async def test_a_newer_start_is_a_reason_not_to_be_ready(tmp_path: Path) -> None:
    made = role(tmp_path, MemoryBus(SystemClock()))
    assert not any("newer start" in one for one in made.problems())
    made._agent.newer_boot = made._agent.bootid + 7
    assert any("newer start" in one and "end one of the two" in one for one in made.problems())
