"""What a gateway of a large cell takes: memory, and the time of a few questions.

The cell is that of `benchmarks.scale`; its log is written first, by a real scheduler in virtual
time, and is not measured. The gateway is a process, as `tidegate serve` starts it.
"""

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np

from benchmarks.large_cell import CYCLE_S, START_S, Cost, Fleet, LargeCell
from bus.clock import PacedClock
from bus.sqlite import SqliteBus
from scheduler.service_config import ServiceConfig

_ASKED, _MOMENTS = 30, 20
#: A subject may read twenty times a second.
_PAUSE_S = 0.06
_PATIENCE_S = 1800.0


async def write(path: Path, nodes: int, jobs: int, minutes: int) -> None:
    """Write the log of a cell that so many jobs came to, and some minutes of its work.

    Args:
        path: Where the log is to be.
        nodes: How many.
        jobs: How many come at once; in each minute another thousandth.
        minutes: Of work.
    """
    clock = PacedClock(START_S, None)
    bus = SqliteBus.open(path, clock)
    cell = LargeCell(clock, bus, Fleet(nodes, 1), ServiceConfig(cycle_budget_s=60.0))
    cost = Cost()
    async with cell.running(cost):
        await cell.hear(cell.fleet.births(clock.now_s()), cost)
        await cell.hear(cell.fleet.submissions(jobs, clock.now_s()), cost)
        await cell.go_on(clock.now_s() + 5.5, cost)
        await cell.settle(cost)
        for _ in range(minutes):
            now_s, fleet = clock.now_s(), cell.fleet
            said = fleet.loads(now_s) + fleet.work(now_s)
            await cell.hear(said + fleet.submissions(jobs // 1000, now_s), cost)
            await cell.go_on((now_s // CYCLE_S + 1) * CYCLE_S + 1.0, cost)
            await cell.settle(cost)
    await bus.close()


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway that is a process."""

    client: httpx.Client
    pid: int
    address: str  #: As it printed it, for a browser.


@contextmanager
def serving(path: Path) -> Iterator[Served]:
    """Serve a log as a process."""
    command = [
        sys.executable,
        "-m",
        "console.main",
        "serve",
        str(path),
        "--no-browser",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            url = urlsplit(address)
            headers = {"Authorization": f"Bearer {url.query.removeprefix('token=')}"}
            base = f"http://{url.netloc}/api/v1"
            with httpx.Client(base_url=base, headers=headers, timeout=_PATIENCE_S) as client:
                yield Served(client, process.pid, address)
        finally:
            process.terminate()


def memory(pid: int, what: str) -> float:
    """Give a figure of a process's memory, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def until_ready(client: httpx.Client) -> int:
    """Wait until all is read and the index is whole; give the newest entry."""
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        try:
            health = client.get("/health").json()
        except httpx.TransportError:
            health = {}
        cells = health.get("cells") or []
        if health.get("status") == "ok" and cells and not cells[0]["index"]["building"]:
            return int(client.get("/overview").json()["entry"])
        time.sleep(0.2)
    raise TimeoutError("the gateway does not come to be ready")


def _asked(client: httpx.Client, name: str, paths: list[str]) -> dict[str, float]:
    times_s = []
    for path in paths:
        began_s = time.perf_counter()
        client.get(path).raise_for_status()
        times_s.append(time.perf_counter() - began_s)
        time.sleep(_PAUSE_S)
    ms = np.array(times_s) * 1000
    return {
        f"cell_{name}_p50_ms": float(np.percentile(ms, 50)),
        f"cell_{name}_p95_ms": float(np.percentile(ms, 95)),
    }


def measure(path: Path) -> dict[str, float]:
    """Ask a gateway of this log; give its memory and times."""
    figures: dict[str, float] = {}
    began_s = time.perf_counter()
    with serving(path) as served:
        client, pid = served.client, served.pid
        entry = until_ready(client)
        figures["cell_entries"] = entry
        sums = client.get("/overview").json()
        figures["cell_nodes"] = sum(sums["nodes"].values())
        figures["cell_jobs"] = sum(sums["jobs"].values())
        figures["cell_running"] = sums["jobs"].get("running", 0)
        figures["cell_log_mib"] = path.stat().st_size / 2**20
        figures["cell_ready_s"] = time.perf_counter() - began_s
        figures["cell_ready_mib"] = memory(pid, "VmRSS")
        figures |= _asked(client, "overview", ["/overview"] * _ASKED)
        figures |= _asked(client, "jobs_page", ["/jobs?sort=slack&limit=100"] * _ASKED)
        figures |= _asked(client, "nodes_page", ["/nodes?limit=100"] * _ASKED)
        moments = np.random.default_rng(1).integers(1, entry, _MOMENTS)
        figures |= _asked(client, "past", [f"/overview?entry={one}" for one in moments])
        figures["cell_asked_mib"] = memory(pid, "VmRSS")
        figures["cell_peak_mib"] = memory(pid, "VmHWM")
    return figures


def run(nodes: int, jobs: int, minutes: int, log: Path | None) -> dict[str, float]:
    """Measure a gateway of the log of a cell; one of this size is written if none is there."""
    if log is not None:
        return measure(log)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cell.db"
        began_s = time.perf_counter()
        asyncio.run(write(path, nodes, jobs, minutes))
        sys.stderr.write(f"the log is written, in {time.perf_counter() - began_s:.0f} s\n")
        return measure(path)
