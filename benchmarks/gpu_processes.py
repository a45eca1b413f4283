"""The processes of a cell that `benchmarks.gpu` and `benchmarks.gpu_cluster` watch."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from benchmarks.gpu_cell import DECLARED
from benchmarks.gpu_witness import pids_of
from runtime.executors.environment import machine_environment
from runtime.metering.nvml import NvmlUnavailable, inventory, nvml_library

ROOT = Path(__file__).parents[1]
TIDEGATE = [sys.executable, "-m", "console.main"]
#: Rounding stays below, also between a processor and a GPU; a lost or repeated step does not: see
#: examples/train_ddp.py.
EQUAL = 1e-9


class Cell(ABC):
    """Services of one cell on one SQLite log, and what was seen of them."""

    def __init__(self, options: argparse.Namespace, examples: Iterable[str], own: str) -> None:
        """Make a folder for all, with a folder of what jobs write and copies of examples in it.

        Args:
            options: Those of `options_of`.
            examples: Programs of `examples`.
            own: Name of one more program, which the caller writes: it is the last of `programs`.

        Raises:
            NvmlUnavailable: There is no GPU, and one is asked for.
        """
        self.figures = dict[str, Any]()
        self.library: Any | None = None
        if not options.cpu:
            self.figures["gpu"] = inventory()[0].name
            self.library = nvml_library()
            self.library.nvmlInit()
        self.python = options.python
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-gpu-"))
        self.folder.chmod(0o755)
        self.log = f"{self.folder}/bus.db"
        self.out = self.folder / "out"
        self.out.mkdir()
        self.out.chmod(0o777)  # jobs are other users
        for name in examples:
            shutil.copy(ROOT / "examples" / name, self.folder / name)
        self.programs = [self.folder / name for name in (*examples, own)]
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

    def weights_apart(self, command: list[str], weights: Path) -> float:
        """Train as a command says, undisturbed; give how far its weights are from a job's."""
        straight = self.folder / "straight.npz"
        command = [*command, "--out", str(straight)]
        subprocess.run(command, check=True, cwd=self.out, env=machine_environment())
        with np.load(straight) as one, np.load(weights) as other:
            return max(float(np.abs(one[key] - other[key]).max()) for key in one.files)

    def accept(self, bad: Iterable[str], good: Iterable[str]) -> None:
        """Look at figures: bad ones must be nothing, good ones something.

        Raises:
            RuntimeError: They are not, or the weights are others than those of a run undisturbed.
        """
        wrong = [name for name in bad if self.figures[name]]
        wrong += [name for name in good if not self.figures[name]]
        wrong += ["weights_apart"] if self.figures["weights_apart"] > EQUAL else []
        if wrong:
            raise RuntimeError(f"not as it should be: {', '.join(wrong)}")

    @abstractmethod
    def work(self, options: argparse.Namespace) -> None:
        """Let all happen, and judge it."""

    def measure(self, options: argparse.Namespace) -> int:
        """Do the work; then, however it went, say what was seen and end all. The exit status."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was seen is said all the same
        problem: str | None = "it was ended"
        try:
            self.work(options)
            problem = None
        except (TimeoutError, RuntimeError) as error:
            problem = str(error)
            print(problem)
        finally:
            print(json.dumps(self.figures, indent=1))
            write(options.json, problem=problem, figures=self.figures)
            self.close()
            if options.keep:
                self._keep(options.keep)
        if problem:
            print(f"everything is in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        return 1 if problem else 0

    def close(self) -> None:
        """End the services, then what is left of the programs."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait(60)
        for pid in (pid for program in self.programs for pid in pids_of(program)):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _keep(self, folder: Path) -> None:
        """Copy logs, records of runs and what jobs wrote, but no weights."""
        folder.mkdir(parents=True, exist_ok=True)
        kept = ("**/*.log", "agent/**/output*", "agent/*/*.json", "bus.db", "out/*")
        for file in {file for pattern in kept for file in self.folder.glob(pattern)}:
            if file.is_file() and file.suffix != ".npz":
                name = str(file.relative_to(self.folder)).replace("/", "_")
                shutil.copy(file, folder / name[-100:])


def measured(kind: Callable[[argparse.Namespace], Cell], options: argparse.Namespace) -> int:
    """Make a cell of a kind and measure it; give the exit status."""
    try:
        cell = kind(options)
    except NvmlUnavailable as error:
        print(error)
        return 2
    return cell.measure(options)


def steps_of(file: Path) -> list[tuple[float, int]]:
    """When each step of a job was taken, as `examples/train_ddp.py --loss` wrote it."""
    with contextlib.suppress(FileNotFoundError):
        lines = [line.split() for line in file.read_text().splitlines()]
        return [(float(line[0]), int(line[1])) for line in lines]
    return []


def options_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that both benchmarks have."""
    parser = parser_of(name, about)
    parser.add_argument("--python", default=shutil.which("python3"), help="one that has torch")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--cpu", action="store_true", help="try it out without a GPU")
    parser.add_argument("--keep", type=Path, help="copy logs here")
    return parser


def others_may(python: str, *, with_gpu: bool) -> bool:
    """Whether another user can run PyTorch, and sees the GPU if we do."""
    ask = f"import torch; assert torch.cuda.is_available() or {not with_gpu}"
    command = ["setpriv", "--reuid=65534", "--clear-groups", python, "-c", ask]
    return subprocess.run(command, capture_output=True, cwd="/").returncode == 0
