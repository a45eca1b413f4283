"""The processes of a cell that `benchmarks.gpu` and `benchmarks.gpu_cluster` watch."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.gpu_cell import DECLARED
from benchmarks.gpu_witness import pids_of

ROOT = Path(__file__).parents[1]
TIDEGATE = [sys.executable, "-m", "console.main"]


class Cell:
    """Services of one cell on one SQLite log, and what was seen of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.figures = folder, dict[str, Any]()
        self.log = f"{folder}/bus.db"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self, name: str, config: str = "tidegate.toml") -> None:
        log = (self.folder / f"{name}.log").open("ab")
        command = [*TIDEGATE, name, "--config", f"{self.folder}/{config}"]
        self.running[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    def tidegate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TIDEGATE, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
        )

    def ask(self, *arguments: str) -> Any:
        """Give what a verb says of the cell's log, as JSON.

        Raises:
            RuntimeError: it says that something is wrong.
        """
        said = self.tidegate(*arguments, "--log", self.log, "--json", "-")
        if said.returncode:
            raise RuntimeError(f"tidegate {' '.join(arguments)}: {said.stdout}{said.stderr}")
        return json.loads(said.stdout)

    def until(self, what: str, is_so: Callable[[], object], seconds: float = 90.0) -> None:
        end_s = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{what}: not within {seconds:g} s")
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise TimeoutError(f"{name} ended: see {self.folder}/{name}.log")
            time.sleep(0.05)
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)

    def submit(self, job: str, command: list[str], **more: object) -> None:
        document = {
            "job": job, "tenant": "vision", "model": job, "gpus_min": 1, "gpus_max": 1,
            "samples_per_step": 240, "rates": [{"gpus": 1, "samples_per_s": DECLARED}],
            "start_cost_s": 6, "checkpoint_cost_s": 1,
            "program": {"argv": command, "saves": "on_signal"}, **more,
        }  # fmt: skip
        file = self.folder / f"{job}.json"
        file.write_text(json.dumps(document))
        said = self.tidegate("submit", "--log", self.log, str(file))
        if said.returncode:
            raise RuntimeError(f"{job} could not be submitted: {said.stdout}{said.stderr}")

    def close(self, programs: Iterable[Path]) -> None:
        """End the services, then what is left of some programs."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait(60)
        for pid in (pid for program in programs for pid in pids_of(program)):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def steps_of(file: Path) -> list[tuple[float, int]]:
    """When each step of a job was taken, as `examples/train_ddp.py --loss` wrote it."""
    with contextlib.suppress(FileNotFoundError):
        lines = [line.split() for line in file.read_text().splitlines()]
        return [(float(line[0]), int(line[1])) for line in lines]
    return []


def others_may(python: str, *, with_gpu: bool) -> bool:
    """Whether another user can run PyTorch, and sees the GPU if we do."""
    ask = f"import torch; assert torch.cuda.is_available() or {not with_gpu}"
    command = ["setpriv", "--reuid=65534", "--clear-groups", python, "-c", ask]
    return subprocess.run(command, capture_output=True, cwd="/").returncode == 0
