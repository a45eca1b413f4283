"""What an agent as a process says beside what its core says."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.clock import Clock, SystemClock
from bus.contract import Bus, Message
from bus.signing import Signer, Verifier
from cloud_agent.agent import CloudAgentConfig, build_agent
from runtime.build import Options
from runtime.simulated_owner import simulated
from schemas.codec import Rejected, decode_event
from schemas.commands import Rebirth, RenewLease
from schemas.events import LinkLost
from schemas.topics import COMMANDS, EVENTS
from services.agents import AgentRole
from services.config import load
from services.logs import Log
from tests.desk import open_desk
from tests.memory_bus import MemoryBus
from tests.patience import until
from tests.post import ordered

CONFIG = """
[agent]
name = "a"
runs = "simulated"
"""


class Open(MemoryBus):
    """Can be read when the agent has let go of it."""

    async def close(self) -> None:
        """Stay open."""


class Ahead(SystemClock):
    """A clock that a test sets forward."""

    ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


def role(
    folder: Path,
    bus: Bus,
    options: Options | None = None,
    clock: Clock | None = None,
    name: str = "a",
) -> AgentRole:
    file = folder / "tidegate.toml"
    file.write_text(CONFIG)
    about = CloudAgentConfig(name, "train", "training", ("n1",), 4, options=options or Options())
    clock = clock or SystemClock()
    agent = build_agent(about, bus, clock, folder / f"{name}.db", simulated())
    log = Log(logging.getLogger())
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


async def test_of_two_that_start_in_one_minute_the_first_is_not_ready(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        desk.start()
        made: list[AgentRole] = []
        for name in ("first", "last"):
            (folder := tmp_path / name).mkdir()
            made.append(role(folder, desk.bus, clock=desk.clock))
            desk.tasks.append(asyncio.create_task(made[-1]._agent.run()))
            await desk.wait(5.0)
        await desk.wait(70.0)
        first, last = ["newer start" in " ".join(one.problems()) for one in made]
    assert (first, last) == (True, False)


async def test_whose_nodes_another_has_is_not_ready_until_they_are_free(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        desk.start()
        has, wants = (role(tmp_path, desk.bus, clock=desk.clock, name=name) for name in "ab")
        for one in (has, wants):
            desk.tasks.append(asyncio.create_task(one._agent.run()))
            await desk.wait(5.0)
            await one.refresh()
        assert [has.problems(), wants.problems()] == [[], []]
        await desk.wait(120.0)
        (problem,) = wants.problems()
        assert problem.startswith("no scheduler has taken a node of it within 60 s of its start: ")
        assert "no bridge runs" not in problem, "it speaks to the log itself"
        assert has.problems() == []
        await has._agent.stop(died="moved")
        await desk.wait(600.0)
        assert wants.problems() == []


async def test_before_any_scheduler_has_led_it_is_said_how_to_tell(tmp_path: Path) -> None:
    async with open_desk("memory", tmp_path) as desk:
        waits = role(tmp_path, desk.bus, clock=desk.clock)
        line: Any = SimpleNamespace(connected=True)
        waits._line = line
        desk.tasks.append(asyncio.create_task(waits._agent.run()))
        await desk.wait(70.0)
        (problem,) = waits.problems()
    assert "none leads cell default yet (tidegate scheduler), or no bridge runs" in problem
    assert "`tidegate nodes` says if none has led, and `tidegate journal stats` what" in problem


async def test_a_clock_that_was_a_century_ahead_keeps_no_agent_from_its_state(
    tmp_path: Path,
) -> None:
    clock = Ahead()

    async def start() -> int:
        made = role(tmp_path, Open(SystemClock()), clock=clock)
        task = asyncio.create_task(made.run())
        await until(lambda: made._agent.published or task.done())
        made.stop()
        await task
        return made._agent.bootid

    clock.ahead_s = 100 * 365.0 * 86_400.0
    await start()
    clock.ahead_s = 0.0
    assert await start() == pytest.approx(clock.now_s() / 2.0, abs=60.0)


@pytest.mark.parametrize("leased", [True, False])
async def test_who_refuses_all_commands_for_long_is_not_ready_until_one_is_good(
    tmp_path: Path, *, leased: bool
) -> None:
    key, other = (Ed25519PrivateKey.generate() for _ in range(2))
    clock = Ahead()
    bus = MemoryBus(clock)
    options = Options(verifier=Verifier.of({"k": Signer("k", key).public()}))
    made = role(tmp_path, bus, options, clock)
    running = asyncio.create_task(made.run())

    def refuses() -> bool:
        return any("agent.trusted_keys" in problem for problem in made.problems())

    async def told(signer: Signer) -> None:
        counters = made._agent.counters
        before = counters.commands + counters.refused.total()
        said = RenewLease(until_s=clock.now_s() + 900.0) if leased else Rebirth(reason="a gap")
        value = ordered(said, before, "a", clock.now_s(), id=f"c{before}")
        await bus.publish(Message(COMMANDS.name, "a", value, signer.headers(value)))
        await until(lambda: counters.commands + counters.refused.total() > before)

    good, unknown, forger = Signer("k", key), Signer("x", other), Signer("k", other)
    await told(good)
    await told(unknown)
    await told(forger)
    assert not refuses(), "whoever forges some just after a good one has not cut the agent off"
    clock.ahead_s += 440.0 if leased else 50.0
    assert not refuses()
    clock.ahead_s += 20.0
    assert refuses(), "half of the lease is over, and none came that renews it"
    await told(good)
    assert not refuses()
    await told(unknown)
    clock.ahead_s += 2000.0
    assert not refuses(), "one alone may be a stranger's, and the scheduler silent"
    await told(forger)
    assert refuses()
    clock.ahead_s += 700.0
    assert not refuses(), "whoever has no gangs may be told nothing for days"
    made.stop()
    await running
