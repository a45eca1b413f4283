"""A scheduler and a real agent: who has no lease any more is given one before a gang."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloud_agent.agent import CloudAgentConfig, build_agent
from runtime.service import AgentService
from runtime.simulated import Physics
from runtime.simulated_owner import simulated
from scheduler.core.settings import Settings
from scheduler.core.state import Job
from scheduler.service import SchedulerService
from tests.builders import submitted
from tests.desk import Desk, measured, open_desk

LEASE_S = Settings().lease_s


@dataclass
class Cluster:
    """A machine, and its agent while that runs."""

    desk: Desk
    file: Path
    agent: AgentService | None = None
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        desk = self.desk
        config = CloudAgentConfig("agent-train", "train", "training", ("n0",), 4)
        physics = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)
        make = simulated(physics=physics)
        self.agent = build_agent(config, desk.bus, desk.clock, self.file, make)
        self.task = asyncio.create_task(self.agent.run())

    async def stop(self) -> None:
        assert self.task is not None
        assert self.agent is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.agent._store.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_desk("memory", tmp_path) as desk:
        cluster = Cluster(desk, tmp_path / "a.db")
        cluster.start()
        yield cluster
        await cluster.stop()


async def begun(desk: Desk) -> SchedulerService:
    """Run a scheduler until the node has a lease."""
    service = desk.start()
    await desk.wait(130.0)
    assert service.engine.state.nodes["n0"].state == "alive"
    return service


def job(service: SchedulerService) -> Job:
    return service.engine.state.jobs["j0"]


@pytest.mark.parametrize("first", ["scheduler", "agent"])
async def test_a_job_that_waited_while_nobody_was_there_starts_at_once(
    cluster: Cluster, first: str
) -> None:
    desk = cluster.desk
    await begun(desk)
    await cluster.stop()
    await desk.crash()
    await desk.hears(desk.say(submitted("j0", gpus_max=4)), wait_s=LEASE_S + 100.0)
    if first == "agent":
        cluster.start()
        await desk.wait(5.0)
    service = desk.start()
    await desk.wait(10.0)
    if first == "scheduler":
        assert job(service).state == "queued", "nobody has heard of the agent"
        cluster.start()
    await desk.wait(30.0)
    assert (job(service).state, job(service).failures) == ("running", 0)


@pytest.mark.parametrize("node", ["unknown", "dead"])
async def test_a_node_that_comes_back_after_its_lease_starts_a_job_at_once(
    cluster: Cluster, node: str
) -> None:
    desk = cluster.desk
    service = await begun(desk)
    await cluster.stop()
    await desk.wait(LEASE_S + (300.0 if node == "dead" else 40.0))
    assert service.engine.state.nodes["n0"].state == node
    await desk.hears(desk.say(submitted("j0", gpus_max=4)), wait_s=30.0)
    cluster.start()
    await desk.wait(30.0)
    assert (job(service).state, job(service).failures) == ("running", 0)


async def test_who_takes_over_soon_goes_on_with_nodes_that_it_has_not_heard(
    cluster: Cluster,
) -> None:
    desk = cluster.desk
    await begun(desk)
    await cluster.stop()
    await desk.crash()
    await desk.wait(100.0)
    service = desk.start()
    await desk.wait(5.0)
    assert service.engine.state.nodes["n0"].state == "alive"


async def test_a_gang_of_a_node_that_is_not_heard_after_long_is_given_up_after_a_lease(
    cluster: Cluster,
) -> None:
    desk = cluster.desk
    service = await begun(desk)
    await desk.hears(desk.say(submitted("j0", gpus_max=4)), wait_s=60.0)
    assert job(service).state == "running"
    await cluster.stop()
    await desk.crash()
    await desk.wait(LEASE_S)
    service = desk.start()
    await desk.wait(LEASE_S)
    assert job(service).state == "running", "a lease after the takeover it may still run"
    await desk.wait(Settings().lease_margin_s + 60.0)
    assert (service.engine.state.nodes["n0"].state, job(service).state) == ("dead", "queued")
    await desk.hears(desk.say(measured()))
    await desk.replayed(service)
