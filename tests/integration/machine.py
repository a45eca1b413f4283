"""One machine that really works: a scheduler, an agent with four CPU slots, a file as their bus."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
folder = "{folder}/runs"
checkpoints = "file://{folder}/store"
"""


def tidegate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "console.main", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


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


def state(log: Path) -> str:
    found = tidegate("why", "train", "--log", log, "--json", "-")
    return str(json.loads(found.stdout)["state"]) if found.returncode == 0 else found.stderr
