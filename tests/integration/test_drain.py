"""A drain on one file: the gang moves; by a scheduler killed in between it is done once."""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from scheduler.core.state import ClusterState
from scheduler.journal import recover
from schemas.journal import JournalEntry, decode_entry
from schemas.topics import JOURNAL
from tests.integration.processes import TRAIN, Fleet, job, ready, submit
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


async def tidegate(*arguments: object) -> str:
    """Run the command; give what it shows."""
    command = [sys.executable, "-m", "console.main", *map(str, arguments)]
    ran = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    shown, said = await ran.communicate()
    assert ran.returncode == 0, said.decode()
    return shown.decode()


async def now(bus: SqliteBus) -> ClusterState:
    return (await recover(bus, "default")).state


async def happened(bus: SqliteBus) -> list[tuple[str, dict[str, Any]]]:
    """Every fact of the journal."""
    found: list[tuple[str, dict[str, Any]]] = []
    async for record in bus.read(JOURNAL.name):
        entry = decode_entry(record.value or b"")
        assert isinstance(entry, JournalEntry)
        found += [(kind, fields) for kind, fields in entry.decision["facts"]]
    return found


@pytest.mark.slow
async def test_a_drain_that_a_kill_interrupts_is_done_once(file_fleet: Fleet) -> None:
    scheduler = file_fleet.start("scheduler")
    agent = file_fleet.start("cloud-agent", **TRAIN)
    await ready(scheduler, agent)
    log = file_fleet.folder / "bus.db"
    bus = SqliteBus.open(log, SystemClock())
    await submit(bus, job("j1", gpus=2, steps=100_000))
    at: dict[str, ClusterState] = {}

    async def runs() -> bool:
        at["now"] = await now(bus)
        known = at["now"].jobs.get("j1")
        return known is not None and known.state == "running"

    await until(runs, "the job runs")
    (node,) = at["now"].jobs["j1"].allocation
    (other,) = {"n0", "n1"} - {node}
    agent.signal(signal.SIGSTOP)  # so that the drain is under way when the scheduler is killed
    told = await tidegate("node", "drain", node, "--by", "10m", "--reason", "fan", "--log", log)
    assert told.startswith(f"{node}: to be empty in 10m")
    scheduler.signal(signal.SIGKILL)
    scheduler.process.wait()
    assert node in (await now(bus)).standing.drains, "it was killed in the middle"
    agent.signal(signal.SIGCONT)
    scheduler = file_fleet.start("scheduler")
    await ready(scheduler)

    async def moved() -> bool:
        at["now"] = await now(bus)
        known = at["now"].jobs["j1"]
        return known.state == "running" and set(known.allocation) == {other} and not known.leaving

    await until(moved, "the gang is on the other node")
    await until(lambda: _ended(bus), "the drain has ended")
    facts = await happened(bus)
    kinds = [kind for kind, _ in facts]
    assert [kinds.count(kind) for kind in ("RequestDone", "NodeCordoned", "DrainStarted")] == [
        1
    ] * 3
    assert [fields["outcome"] for kind, fields in facts if kind == "DrainEnded"] == ["empty"]
    (shown,) = [
        one
        for one in json.loads(await tidegate("nodes", "--log", log, "--json", "-"))["nodes"]
        if one["node"] == node
    ]
    assert (shown["cordon"]["reason"], shown["drain"], any(shown["holders"])) == (
        "fan",
        None,
        False,
    )
    acts = json.loads(await tidegate("audit", "--log", log, "--json", "-"))["acts"]
    assert [(act["verb"], act["about"], act["result"]) for act in acts] == [
        ("job.submit", "j1", "done"),
        ("node.drain", node, "done"),
    ]
    assert "the GPUs" not in await tidegate("audit", "--log", log)
    shown_nodes = " ".join((await tidegate("nodes", "--log", log)).split())
    assert "cordoned by" in shown_nodes
    assert ": fan" in shown_nodes
    await tidegate("node", "uncordon", node, "--log", log)
    assert not (await now(bus)).standing.cordons
    await tidegate("cancel", "j1", "--log", log)
    assert (agent.stop(), scheduler.stop()) == (0, 0)
    await bus.close()
    await tidegate("replay", log)


async def _ended(bus: SqliteBus) -> bool:
    return not (await now(bus)).standing.drains


async def until(holds: Any, what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < end_s, f"it never came to that: {what}"
        await asyncio.sleep(0.2)
