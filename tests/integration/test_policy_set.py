"""A policy that is set outlives a scheduler that is killed right after, and decides then."""

import json
import signal
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from tests.integration.processes import TRAIN, Fleet, job, ready, submit
from tests.integration.test_drain import happened, now, tidegate, until


@pytest.mark.slow
async def test_a_policy_set_right_before_a_kill_decides_after_it(file_fleet: Fleet) -> None:
    scheduler = file_fleet.start("scheduler")
    agent = file_fleet.start("cloud-agent", **TRAIN)
    await ready(scheduler, agent)
    log = file_fleet.folder / "bus.db"
    bus = SqliteBus.open(log, SystemClock())
    await submit(bus, job("j1", gpus=2, steps=100_000))

    async def runs(name: str) -> bool:
        known = (await now(bus)).jobs.get(name)
        return known is not None and known.state == "running"

    await until(lambda: runs("j1"), "the job runs")
    told = await tidegate("policy", "set", "srtf", "--reason", "short ones first", "--log", log)
    scheduler.signal(signal.SIGKILL)
    scheduler.process.wait()
    assert told.startswith("srtf decides from now on.")
    begun = len(await happened(bus))
    scheduler = file_fleet.start("scheduler")
    await ready(scheduler)
    await submit(bus, job("j2", gpus=2, steps=100_000))
    await until(lambda: runs("j2"), "another job runs")
    asked = [
        one for one in (await happened(bus))[begun:] if one[0] in ("LeaderChanged", "CycleRan")
    ]
    assert {fields["policy"] for _, fields in asked} == {"srtf"}
    found: dict[str, Any] = json.loads(await tidegate("policy", "--log", log, "--json", "-"))
    assert (found["policy"], found["configured"]) == ("srtf", "tide")
    assert found["reason"] == "short ones first"
    await tidegate("quota", "set", "t", "--gpus", "2", "--max-jobs", "1", "--log", log)
    (quota,) = json.loads(await tidegate("quota", "--log", log, "--json", "-"))["quotas"]
    assert (quota["gpus"], quota["jobs"], quota["configured"]) == (2, 1, None)
    await tidegate("loans", "freeze", "--for", "1h", "--log", log)
    assert "frozen by" in await tidegate("loans", "--log", log)
    assert (agent.stop(), scheduler.stop()) == (0, 0)
    await bus.close()
    await tidegate("replay", log)
