"""Drains of nodes on which real processes train: an edge server, a node on loan, one of Kubernetes.

What each holds: no step is lost or taken twice, and the result is what it is without a drain.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from scheduler.core.state import ClusterState
from scheduler.journal import recover
from tests.chaos.real_fleet import LOAD, POLICY, REPLICA
from tests.integration.fitting import GATE, Fit
from tests.integration.machine import ROOT, tidegate
from tests.integration.processes import Fleet, Service, submit, until
from tests.kubernetes_bed import ControlPlane
from tests.patience import PATIENCE_S
from tests.ports import answers, free_ports, kill

pytestmark = pytest.mark.slow
AGENT = """
[agent]
name = "{name}"
gpu_type = "cpu"
runs = "{runs}"
state_file = "{folder}/{name}.db"
{own}
[agent.workers]
isolation = "none"
folder = "{folder}/{name}"
checkpoints = "file://{folder}/store"
"""
TRAINING = 'pool = "train"\npool_kind = "training"\nnodes = {nodes}\ngpus_per_node = {gpus}'
#: An owner that needs nothing leaves its node at once.
EDGE = 'owner = "none"\n[agent.simulated]\ndrain_s = 1\nwarm_up_s = 1'
SERVING = 'pool = "serve"\npool_kind = "inference"\nnodes = ["serve-1", "serve-2", "serve-3"]\n'
SERVING += "gpus_per_node = 1"
KUBERNETES = """
[agent.kubernetes]
volume = {{ hostPath = {{ path = "{folder}/kube" }} }}
kubeconfig = "{kubeconfig}"
service = ""
"""


#: What makes a demand of so many requests.
BUSY, IDLE = 4.0, 0.0
#: What owners need is forecast in seconds, not hours.
QUICK: dict[str, Any] = {"scheduler__policy": POLICY, "scheduler__settings__load_slot_s": 2}


class Owner:
    """Who serves on three nodes, a replica on each, and leaves one while there is little to do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(("serve-1", "serve-2", "serve-3"), free_ports(3), strict=True))

    def needs(self, requests: float) -> None:
        """Have so many requests in service, of all nodes together."""
        draft = self._folder / "requests.draft"
        draft.write_text(str(requests))
        draft.replace(self._folder / "requests")

    def config(self) -> str:
        """Give what the agent is told of the owner."""
        common = {"python": sys.executable, "root": ROOT, "folder": self._folder, "slots": 1}
        replicas = (
            REPLICA.format(node=node, port=port, gpus="", **common)
            for node, port in self._ports.items()
        )
        return LOAD + "".join(replicas)

    def serves(self) -> list[str]:
        """Give the nodes on which a replica answers."""
        return [node for node, port in self._ports.items() if answers(port)]


class Cell:
    """A scheduler and agents with real workers on one file, asked as an operator asks."""

    def __init__(self, folder: Path, make: Callable[[Path, str], Fleet]) -> None:
        self.folder, self._make = folder, make
        self.log = folder / "bus.db"

    async def begin(self, name: str, role: str, config: str = "", **keys: Any) -> Service:
        """Start a process with a configuration of its own; return when it has begun."""
        own = self.folder / f"of-{name}"
        own.mkdir()
        fleet = self._make(own, f'bus = "sqlite:{self.log}"\n{config}')
        service = fleet.start(role, **keys)
        await until(lambda: service.port, f"{name} begins")
        return service

    async def agent(
        self,
        name: str,
        own: str,
        more: str = "",
        *,
        role: str = "cloud-agent",
        runs: str = "processes",
    ) -> Service:
        """Start an agent."""
        text = AGENT.format(name=name, folder=self.folder, own=own, runs=runs) + more
        return await self.begin(name, role, text)

    async def submit(self, *jobs: Fit) -> None:
        bus = SqliteBus.open(self.log, SystemClock())
        await submit(bus, *(job.submitted() for job in jobs))
        await bus.close()

    def told(self, *words: object) -> str:
        """Give what a verb says; it must succeed."""
        log = [self.log] if words == ("replay",) else ["--log", self.log]
        done = tidegate(*words, *log)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def document(self, *words: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.told(*words, "--json", "-"))
        return found

    def why(self, job: str) -> dict[str, Any]:
        return self.document("why", job)

    def node(self, name: str) -> dict[str, Any]:
        (found,) = (one for one in self.document("nodes")["nodes"] if one["node"] == name)
        return dict(found)

    async def state(self) -> ClusterState:
        bus = SqliteBus.open(self.log, SystemClock())
        found = (await recover(bus, "default")).state
        await bus.close()
        return found

    async def comes_to(self, what: str, holds: Callable[[ClusterState], object]) -> None:
        """Wait until the cell's state is so."""
        end_s = time.monotonic() + PATIENCE_S
        while not holds(await self.state()):
            assert time.monotonic() < end_s, f"it never came to that: {what} in {self.folder}"
            await asyncio.sleep(0.1)

    async def drain(self, name: str) -> None:
        """Have an operator drain a node; return when it is empty and cordoned."""
        said = self.told("node", "drain", name, "--by", "10m", "--reason", "new power supply")
        assert said.startswith(f"{name}: to be empty in 10m")
        await self.comes_to(
            f"{name} is empty",
            lambda now: not now.standing.drains and not any(now.nodes[name].holder),
        )
        assert name in (await self.state()).standing.cordons

    async def completes(self, job: Fit, node: str = "") -> None:
        """Let a job take the rest of its steps, on that node; hold that it took each once."""
        job.go_on()
        await self.comes_to("it completes", lambda now: now.jobs[job.name].state == "completed")
        job.account()
        assert node in ("", job.steps()[-1][1])
        job.result_in(self.folder / "store")
        assert "Identical" in self.told("replay")


@pytest.fixture
def cell(tmp_path: Path, fleets: Callable[[Path, str], Fleet]) -> Iterator[Cell]:
    """A cell, of which nothing is left."""
    yield Cell(tmp_path, fleets)
    for pid in below(tmp_path):
        kill(pid)


def below(folder: Path) -> list[int]:
    """Find the processes to which somebody told a path in this folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) + b"/" in environment:
                found.append(int(process.name))
    return found


async def test_a_job_on_a_drained_edge_server_saves_and_goes_on_in_the_cluster(cell: Cell) -> None:
    await cell.begin("scheduler", "scheduler", **QUICK)
    await cell.agent("edge-1", EDGE, role="edge-agent")
    fit = Fit(cell.folder)
    await cell.submit(fit)
    await until(fit.waits, "it trains on the edge server")
    await cell.drain("edge-1")
    why = cell.why("fit")
    assert (why["state"], len(fit.steps())) == ("queued", GATE), "there is no other place yet"
    assert moved_by_drain(why, "edge-1")
    await cell.agent("train", TRAINING.format(nodes='["n1"]', gpus=1))
    await cell.completes(fit, "n1")
    (act,) = [one for one in cell.document("audit")["acts"] if one["verb"] == "node.drain"]
    assert (act["about"], act["result"]) == ("edge-1", "done")


async def test_a_job_leaves_a_drained_node_on_loan_and_its_owner_is_served_again(
    cell: Cell,
) -> None:
    owner = Owner(cell.folder)
    owner.needs(IDLE)
    await cell.begin("scheduler", "scheduler", **QUICK)
    await cell.agent("serve", SERVING, owner.config())
    await until(lambda: len(owner.serves()) == 3, "all nodes serve")
    fit = Fit(cell.folder)
    await cell.submit(fit)
    await until(fit.waits, "it trains on a node on loan")
    (lent,) = (await cell.state()).on_loan
    assert {node for _, node in fit.steps()} == {lent}
    assert lent not in owner.serves()
    await cell.drain(lent)
    job = (await cell.state()).jobs["fit"]
    assert (job.state, job.checkpoint_step) == ("queued", GATE)
    assert moved_by_drain(cell.why("fit"), lent)
    owner.needs(BUSY)
    await cell.comes_to("its owner has it back", lambda now: not now.on_loan)
    await until(lambda: len(owner.serves()) == 3, "all nodes serve again")
    cell.told("node", "uncordon", lent)
    owner.needs(IDLE)
    await cell.completes(fit)


async def test_a_job_moves_off_a_drained_node_of_kubernetes(
    cell: Cell, plane: ControlPlane
) -> None:
    await cell.begin("scheduler", "scheduler")
    kubernetes = KUBERNETES.format(folder=cell.folder, kubeconfig=plane.kubeconfig)
    own = TRAINING.format(nodes='["n1", "n2"]', gpus=2)
    await cell.agent("kube", own, kubernetes, runs="kubernetes")
    fit = Fit(cell.folder)
    await cell.submit(fit)
    await until(fit.waits, "it trains in a Pod")
    (before,) = {node for _, node in fit.steps()}
    assert pods(plane) == [before]
    await cell.drain(before)
    (after,) = {"n1", "n2"} - {before}
    await until(lambda: pods(plane) == [after], "its Pod is on the other node alone")
    await cell.completes(fit, after)


def moved_by_drain(why: dict[str, Any], node: str) -> bool:
    """Whether its `why` says that it left, with its work saved, and for whose drain."""
    (said,) = [one["detail"] for one in why["history"] if one["rule"] == "operator.drain"]
    begin = f"waits again, goes on from step {GATE}; {node} is drained by "
    return str(said).startswith(begin) and str(said).endswith(": new power supply")


def pods(plane: ControlPlane) -> list[str]:
    """Give the node of each Pod."""
    return [one["spec"].get("nodeName", "") for one in plane.pods()]
