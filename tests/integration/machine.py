"""One machine that really works: a scheduler, an agent with four CPU slots, a file as their bus."""

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.main import main
from tests.patience import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
bus = "sqlite:{folder}/bus.db"
[log]
format = "text"
[http]
port = "off"
[scheduler.settings]
cycle_s = 2
cycle_gap_s = 0.5
[agent]
name = "machine"
pool = "train"
pool_kind = "training"
nodes = ["node-1"]
gpus_per_node = 4
gpu_type = "cpu"
runs = "processes"
state_file = "{folder}/machine.db"
[agent.schedule]
progress_every_s = 1
[agent.workers]
isolation = "none"
folder = "{folder}/runs"
checkpoints = "file://{folder}/store"
"""
#: A job keeps its size for ten seconds.
ELASTIC = """
[scheduler]
policy = "tide:horizon_s=60"
"""


@dataclass(frozen=True)
class Ran:
    """What a verb did."""

    returncode: int
    stdout: str
    stderr: str


def tidegate(*arguments: object) -> Ran:
    """Run a verb in a thread: a process would take most of a second of a processor to begin."""
    shown, said = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with redirect_stdout(shown), redirect_stderr(said), ThreadPoolExecutor(1) as thread:
        code = thread.submit(main, [str(argument) for argument in arguments]).result()
    found = [one.detach().getvalue().decode() for one in (shown, said)]
    return Ran(code, *found)


@contextmanager
def served(folder: Path, *roles: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    running = {}
    try:
        for role in roles:
            file = str(folder / "t.toml")
            command = [sys.executable, "-m", "console.main", role, "--config", file]
            with (folder / f"{role}.log").open("ab") as log:
                running[role] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        yield running
    finally:
        for one in running.values():
            one.send_signal(signal.SIGTERM)
        for one in running.values():
            one.wait(120)


def state(log: Path, job: str = "train") -> str:
    """Look how a job is, for whoever waits: not so often that it takes the job's time."""
    time.sleep(0.2)
    found = tidegate("why", job, "--log", log, "--json", "-")
    return str(json.loads(found.stdout)["state"]) if found.returncode == 0 else found.stderr


def grown(
    folder: Path, program: dict[str, Any], steps: int, meanwhile: Callable[[], object]
) -> list[int]:
    """Train on two slots beside another job until it ends, then on four; give each step's world.

    Args:
        folder: Where everything is; the job appends its steps to `loss` there.
        program: What the job runs.
        steps: How many.
        meanwhile: Called when the job trains on two.
    """
    log, loss, over = (folder / name for name in ("bus.db", "loss", "over"))
    (folder / "t.toml").write_text(CONFIG.format(folder=folder) + ELASTIC)
    wait = ["sh", "-c", f"until [ -e '{over}' ]; do sleep 0.1; done"]
    jobs = [
        {  # short, it seems, and quick to start: worth its two GPUs
            "job": "other", "gpus_min": 2, "gpus_max": 2, "total_steps": 10, "start_cost_s": 0.1,
            "samples_per_step": 1.0, "checkpoint_cost_s": 0.1,
            "rates": [{"gpus": 2, "samples_per_s": 1.0}], "program": {"argv": wait},
        },
        {
            "job": "train", "gpus_min": 2, "gpus_max": 4, "total_steps": steps,
            "samples_per_step": 240.0, "start_cost_s": 0.0, "checkpoint_cost_s": 0.0,
            "rates": [{"gpus": 2, "samples_per_s": 1200.0}, {"gpus": 4, "samples_per_s": 2000.0}],
            "program": program,
        },
    ]  # fmt: skip
    for job in jobs:
        (folder / f"{job['job']}.json").write_text(json.dumps(job))

    def submitted(name: str) -> bool:
        return tidegate("submit", "--log", log, folder / f"{name}.json").returncode == 0

    def told() -> list[list[str]]:
        lines = loss.read_text().splitlines() if loss.exists() else []
        return [line.split() for line in lines]

    with served(folder, "scheduler"):
        # Both are there when the four GPUs come, so each gets two.
        wait_until(lambda: submitted("other"), "a scheduler")
        assert submitted("train")
        with served(folder, "cloud-agent"):
            wait_until(lambda: len(told()) > 20, "it trains, for long enough to be measured")
            meanwhile()
            over.touch()
            # A look at the log takes the job's time: only once all steps are.
            wait_until(lambda: len(told()) >= steps, f"it takes all steps in {folder}")
            wait_until(lambda: state(log) == "completed", f"it completes in {folder}")
    assert [int(line[1]) for line in told()] == list(range(1, steps + 1)), "none lost, none twice"
    return [int(line[2]) for line in told()]
