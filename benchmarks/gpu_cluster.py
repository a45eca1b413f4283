"""A real GPU of a cluster, and its jobs: `python -m benchmarks.gpu_cluster --json out.json`.

One GPU is a cloud cluster's, whose jobs Slurm runs (`--runs slurm`, with real daemons) or the agent
itself (`--runs processes`). Beside it is an edge server without a GPU, one slot of its processors.
A job trains on the GPU (`examples/train_ddp.py`). One of a higher priority takes its place and
ends. Then an operator drains the GPU's node: the first job goes on at the edge, on a processor, and
comes back when the node is opened again. A job whose kernel never ends, so that it cannot answer
its agent, has to make room for another. A job breaks an assertion on the GPU. A last one shows that
the GPU can be used after all that.

A witness that asks the driver and /proc, not Tidegate, looks some twenty times a second at which
processes are on the GPU. `--cpu` tries the script out without a GPU; its figures say so.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_processes import ROOT, Cell, measured, options_of, others_may, steps_of
from benchmarks.gpu_witness import pids_of

GRACE_S = 10
TRAIN, BREAKS = "train_ddp.py", "breaks.py"
#: Jobs that a GPU's program can be: one whose kernel never ends, and one that breaks an assertion.
#: On a processor, where there are no kernels, the first one turns a deaf ear.
_BREAKS = """
import pathlib, signal, sys, time
import torch
how, told = sys.argv[1], pathlib.Path(sys.argv[2])
on_gpu = torch.cuda.is_available()
if how == "hangs":
    signal.signal(signal.SIGTERM, lambda *_: print("told to leave", flush=True))
    if on_gpu:
        torch.cuda._sleep(2**62)
    told.touch()
    while not on_gpu:
        time.sleep(0.1)
    torch.cuda.synchronize()
if not on_gpu:
    raise SystemExit("CUDA error: device-side assert triggered")
torch.arange(3, device="cuda")[torch.tensor([7], device="cuda")]
torch.cuda.synchronize()
"""
_BOTH = """
bus = "sqlite:{folder}/bus.db"
[log]
format = "text"
[http]
port = "off"
"""
_CLOUD = """
[scheduler]
births = "any"
policy = "tide:horizon_s=120"
heartbeat_s = 5
[scheduler.settings]
cycle_s = 2
cycle_gap_s = 0.3
grace_s = {grace}
backoff_s = 2
[agent]
name = "cluster"
pool = "train"
pool_kind = "training"
nodes = ["n1"]
gpus_per_node = 1
"""
_EDGE = """
[agent]
name = "edge-1"
gpus = 1
gpu_type = "cpu"
speed_factor = 0.05
owner = "none"
"""
_AGENT = """
runs = "{runs}"
state_file = "{folder}/{agent}.db"
[agent.schedule]
telemetry_every_s = 2
load_every_s = 1
progress_every_s = 1
[agent.workers]
isolation = "{isolation}"
folder = "{folder}/{agent}"
checkpoints = "file://{folder}/checkpoints"
"""


class Witness:
    """Who is on the GPU, by others than Tidegate."""

    def __init__(self, library: Any | None, programs: list[Path]) -> None:
        self._handle = library and library.nvmlDeviceGetHandleByIndex(0)
        self._library, self._programs = library, programs
        self.ended = threading.Event()
        #: (moment, processes on the GPU, those of them that are no program of this run's).
        self.looks: list[tuple[float, frozenset[int], frozenset[int]]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self.ended.wait(0.05):
            ours = {pid for program in self._programs for pid in pids_of(program)}
            if self._library:
                on_gpu = {
                    one.pid
                    for one in self._library.nvmlDeviceGetComputeRunningProcesses(self._handle)
                }
            else:  # those on the node that plays the GPU's
                on_gpu = {pid for pid in ours if not at_the_edge(pid)}
            self.looks.append((time.time(), frozenset(on_gpu), frozenset(on_gpu - ours)))

    def free_s(self, since_s: float, gone: frozenset[int]) -> Any:
        """Give the seconds until none of some processes was on the GPU any more; None: one is."""
        return next(
            (
                round(one[0] - since_s, 2)
                for one in self.looks
                if one[0] > since_s and not one[1] & gone
            ),
            None,
        )


def at_the_edge(pid: int) -> bool:
    """Whether a worker of ours runs on the edge server, by its own environment."""
    try:
        return b"TIDEGATE_NODE=edge-1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


class Run(Cell):
    """The processes, and what was seen."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, [TRAIN], BREAKS)
        self.programs[-1].write_text(_BREAKS)
        folder, library, python = self.folder, self.library, self.python
        self.runs = runs = options.runs
        may = os.getuid() == 0 and others_may(python, with_gpu=bool(library))
        may = may and runs == "processes"  # Slurm runs all as the agent's user
        isolation = "tenant" if may else "none"
        if runs == "slurm":
            self.compose("up")
        self.figures |= {"runs": runs, "isolation": isolation}
        both, said = _BOTH.format(folder=folder), {"folder": folder, "isolation": isolation}
        slots = "" if library or runs == "slurm" else 'gpu_type = "cpu"\n'
        memory = 'gpu_type = "H200"\ngpu_memory_mib = 100000\n' if runs == "slurm" else ""
        cluster = _CLOUD.format(grace=GRACE_S) + slots + memory
        cluster += _AGENT.format(agent="cluster", runs=runs, **said)
        if runs == "slurm":
            cluster += f'[agent.slurm]\npoll_s = 0.5\nslurm_conf = "{folder}/slurm/slurm.conf"\n'
        edge = _EDGE + _AGENT.format(agent="edge-1", runs="processes", **said)
        (folder / "cluster.toml").write_text(both + cluster)
        (folder / "edge.toml").write_text(both + edge)
        self.witness = Witness(library, self.programs)

    def close(self) -> None:
        """End the services, then what is left of the programs, then Slurm."""
        super().close()
        if self.runs == "slurm":
            self.compose("down")

    def compose(self, verb: str) -> None:
        """Start or end the Slurm cluster of one node, which has the GPU."""
        environment = dict(os.environ, TIDEGATE_SLURM_DIR=f"{self.folder}/slurm")
        if self.library:
            environment["TIDEGATE_SLURM_GPUS"] = "/dev/nvidia0"
        done = subprocess.run(
            [ROOT / "compose" / "slurm", verb],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"compose/slurm {verb}: {done.stdout}{done.stderr}")

    def steps(self, job: str) -> list[tuple[float, int]]:
        return steps_of(self.out / job)

    def steps_since(self, job: str, since_s: float) -> int:
        return sum(moment_s > since_s for moment_s, _ in self.steps(job))

    def train(self, job: str, steps: int, width: int, **more: object) -> None:
        command = [self.python, f"{self.folder}/{TRAIN}", "--steps", str(steps)]
        command += ["--width", str(width), "--hidden", "4", "--work-s", "0.01"]
        command += ["--save-every", str(steps), "--loss", f"{self.out}/{job}"]
        command += ["--out", f"{self.out}/{job}.npz"]
        self.submit(job, command, total_steps=steps, **more)

    def breaks(self, how: str) -> None:
        command = [self.python, f"{self.folder}/{BREAKS}", how, f"{self.out}/{how}"]
        self.submit(how, command, edge_allowed=False, samples_per_step=1)

    def trains_on_gpu(self, job: str, since_s: float) -> bool:
        """Whether a job has taken steps on the GPU of late."""
        return self.steps_since(job, since_s) > 20 and not any(
            at_the_edge(pid) for pid in pids_of(self.programs[0])
        )

    # --- what happens ---

    def work(self, options: argparse.Namespace) -> None:
        self.play(options.steps, options.width)
        self.judge(options.steps, options.width)

    def play(self, steps: int, width: int) -> None:
        figures, witness = self.figures, self.witness
        said = self.tidegate("doctor", "--config", f"{self.folder}/cluster.toml")
        figures["doctor"] = [line for line in said.stdout.splitlines() if " gpu " in line]
        self.serve("scheduler", "cluster.toml")
        self.serve("cloud-agent", "cluster.toml")
        self.serve("edge-agent", "edge.toml")
        self.until("both agents are there", self._both_are_there)
        begun_s = time.time()
        self.train("train", steps, width)
        self.until("the job trains", lambda: len(self.steps("train")) > 50)
        figures["submit_to_first_step_s"] = round(self.steps("train")[0][0] - begun_s, 2)

        first = witness.looks[-1][1]
        urgent_s = time.time()
        self.train("urgent", 200, width, priority=100, edge_allowed=False)
        self.until("the urgent one trains", lambda: self.steps("urgent"))
        figures["preempt"] = {
            "gpu_free_s": witness.free_s(urgent_s, first),
            "first_step_s": round(self.steps("urgent")[0][0] - urgent_s, 2),
        }
        self.until("the urgent one ended", (self.out / "urgent.npz").exists, 120)
        ended_s = time.time()
        self.until("the job trains again", lambda: self.trains_on_gpu("train", ended_s))
        figures["resume"] = {"first_step_s": self._first_step("train", ended_s)}

        first = witness.looks[-1][1]
        drained_s = time.time()
        said = self.tidegate("node", "drain", "n1", "--by", "2m", "--log", self.log)
        if said.returncode:
            raise RuntimeError(f"n1 could not be drained: {said.stdout}{said.stderr}")
        self.until("the GPU is free", lambda: witness.free_s(drained_s, first))
        free_s = witness.free_s(drained_s, first)
        freed_s = drained_s + free_s
        self.until("it trains at the edge", lambda: self.steps_since("train", freed_s) > 3)
        figures["to_the_edge"] = {
            "gpu_free_s": free_s,
            "first_step_s": round(self._first_step("train", freed_s) + free_s, 2),
            "processes_on_gpu": len(witness.looks[-1][1]),
        }
        opened_s = time.time()
        self.tidegate("node", "uncordon", "n1", "--log", self.log)
        self.until("the job is back", lambda: self.trains_on_gpu("train", opened_s), 120)
        self.until("the job ended", (self.out / "train.npz").exists, 300)

        self.breaks("hangs")
        self.until("a kernel never ends", (self.out / "hangs").exists)
        time.sleep(4)
        first, asked_s = witness.looks[-1][1], time.time()
        self.train("after", 20, width, priority=100, edge_allowed=False)
        self.until("one more job takes its place", (self.out / "after.npz").exists)
        figures["hangs"] = {
            "grace_s": GRACE_S,
            "processes_on_gpu": len(first),
            "gpu_free_s": witness.free_s(asked_s, first),
            "first_step_of_the_next_s": self._first_step("after", asked_s),
        }
        self.tidegate("cancel", "hangs", "--log", self.log)

        self.breaks("asserts")
        self.until("the broken assertion is told", lambda: self._failure("asserts"), 60)
        figures["asserts"] = self._failure("asserts")
        self.tidegate("cancel", "asserts", "--log", self.log)
        self.train("last", 20, width, edge_allowed=False)
        self.until("the GPU can be used after that", (self.out / "last.npz").exists)
        witness.ended.set()

    def _both_are_there(self) -> bool:
        said = self.tidegate("nodes", "--log", self.log, "--json", "-")
        return said.returncode == 0 and len(json.loads(said.stdout)["nodes"]) == 2

    def _first_step(self, job: str, since_s: float) -> float:
        """The first step after a moment, in seconds after it."""
        return next(round(one - since_s, 2) for one, _ in self.steps(job) if one > since_s)

    def _failure(self, job: str) -> str | None:
        """What is said of a job that failed."""
        said = " ".join(
            self.tidegate("why", job, "--log", self.log).stdout.replace("│", " ").split()
        )
        found = re.search(r"\w+ 0 (on n1 )?ended with [^.]*", said)
        return found and found[0]

    def judge(self, steps: int, width: int) -> None:
        """Compare with a run that nobody disturbs; look at all that the witness saw."""
        figures, looks = self.figures, self.witness.looks
        command = [self.python, f"{self.folder}/{TRAIN}", "--steps", str(steps)]
        command += ["--width", str(width), "--hidden", "4", "--save-every", str(steps)]
        taken = [step for _, step in self.steps("train")]
        figures |= {
            "weights_apart": self.weights_apart(command, self.out / "train.npz"),
            "steps": steps,
            "steps_lost": steps - len(set(taken)),
            "steps_repeated": len(taken) - len(set(taken)),
            "looks": len(looks),
            "looks_with_two_on_gpu": sum(len(one[1]) > 1 for one in looks),
            "looks_with_a_stranger_on_gpu": sum(bool(one[2]) for one in looks),
            "replay_identical": self.tidegate("replay", self.log).returncode == 0,
        }
        self.accept(
            bad=("looks_with_two_on_gpu", "steps_lost", "steps_repeated"),
            good=("replay_identical",),
        )


def main() -> int:
    parser = options_of("gpu_cluster", __doc__)
    parser.add_argument("--runs", choices=("slurm", "processes"), default="slurm")
    return measured(Run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
