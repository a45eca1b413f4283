"""A real GPU, its owner and a job, as processes: `python -m benchmarks.gpu --json out.json`.

One GPU belongs to an inference server (`examples/inference_server.py`, which holds memory there and
computes for each request). Users go away, the GPU is lent, PyTorch trains on it
(`examples/train_ddp.py`), the agent is killed and comes back, users return, the GPU is reclaimed,
they go away again, the job ends. A job that asks for more memory than there is fails; one that
leaves a process of a session of its own, with memory on the GPU, loses it before users are
answered. A witness that asks the driver and /proc, not Tidegate, looks up to twenty times a second
at whose processes are on the GPU.

Users are seen at a front door of the benchmark's own, which keeps their requests while no server
is there: so the last server of an owner can be lent, too. `--cpu` tries the script out without a
GPU; its figures say so.
"""

import argparse
import itertools
import json
import os
import re
import sys
import time

import numpy as np

from benchmarks.gpu_cell import DECLARED, FILES, LEAVES, POLICY
from benchmarks.gpu_door import Door
from benchmarks.gpu_processes import Cell, measured, options_of, others_may, steps_of
from benchmarks.gpu_witness import LEAVES_PROGRAM, PROGRAMS, Witness
from runtime.metering.nvml import NvmlGpus
from tests.ports import free_ports

_OF_A_NODE = ("gpu_type", "gpu_utilisation", "gpu_memory_mib", "gpu_memory_used", "loan_state")


class Run(Cell):
    """The processes, and what was seen."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, PROGRAMS, LEAVES_PROGRAM)
        folder, library, python = self.folder, self.library, self.python
        if library:
            self.figures["driver"] = str(library.nvmlSystemGetDriverVersion())
            self.figures["meter"] = meter_costs()
        self.programs[-1].write_text(LEAVES.format(device="cuda" if library else "cpu"))
        self.train = [python, f"{folder}/train_ddp.py"]
        self.train += ["--width", str(options.width), "--hidden", str(options.hidden)]
        self.train += ["--work-s", str(options.work_s)]
        self.train += ["--save-every", str(max(1, options.steps // 4))]
        port, _ = free_ports(2)
        self.door = Door(port)
        serve = [python, f"{folder}/inference_server.py", "--port", str(port)]
        serve += ["--gpu-mib", "16384"] if library else []
        isolation = (
            "tenant" if os.getuid() == 0 and others_may(python, with_gpu=bool(library)) else "none"
        )
        self.figures["isolation"] = isolation
        text = FILES.format(
            folder=folder, policy=POLICY, isolation=isolation, port=port, serve=json.dumps(serve),
            door=self.door.page.server_address[1], gpu_type="" if library else 'gpu_type = "cpu"',
        )  # fmt: skip
        (folder / "tidegate.toml").write_text(text)
        self.witness = Witness(library, folder)

    def steps(self) -> list[tuple[float, int]]:
        """When each step was taken, as the job wrote it."""
        return steps_of(self.out / "loss")

    # --- what happens ---

    def work(self, options: argparse.Namespace) -> None:
        self.play(options.steps)
        self.judge(options.steps)

    def play(self, steps: int) -> None:
        figures, door, witness = self.figures, self.door, self.witness
        said = self.tidegate("doctor", "--config", f"{self.folder}/tidegate.toml")
        figures["doctor"] = [line for line in said.stdout.splitlines() if " gpu " in line]
        self.serve("scheduler")
        self.serve("edge-agent")
        door.users.set()
        self.until("the owner serves", lambda: len(door.answered) > 20)
        command = [*self.train, "--steps", str(steps)]
        command += ["--loss", f"{self.out}/loss", "--out", f"{self.out}/weights.npz"]
        self.submit("train", command, total_steps=steps)
        time.sleep(8)
        figures["serving"] = self._measured()

        door.users.clear()
        quiet_s = time.time()
        self.until("the job trains", lambda: len(self.steps()) > 20)
        figures["lend"] = {
            "server_gone_s": witness.first(quiet_s, lambda one: not one[1]),
            "worker_begun_s": witness.first(quiet_s, lambda one: one[2]),
            "first_step_s": round(self.steps()[0][0] - quiet_s, 2),
        }
        time.sleep(8)
        figures["training"] = self._measured()

        workers = witness.workers
        self.running.pop("edge-agent").kill()
        time.sleep(3)
        self.serve("edge-agent")
        time.sleep(6)
        figures["worker_outlived_its_agent"] = workers == witness.workers != ()

        self._back("reclaim")
        time.sleep(4)
        before = len(self.steps())
        door.users.clear()
        self.until("the job trains again", lambda: len(self.steps()) > before + 20)
        time.sleep(6)
        figures["speed"] = self._speed()
        self.until("the job ended", lambda: (self.out / "weights.npz").exists(), 240)

        ask = "import torch; torch.empty(10**12, device='cuda')"
        if not self.library:
            ask = "raise SystemExit('CUDA out of memory')"
        self.submit("greedy", [self.python, "-c", ask])
        self.until("the greedy job's failure is told", lambda: self._greedy() is not None, 40)
        figures["greedy"] = self._greedy()
        self.tidegate("cancel", "greedy", "--log", self.log)
        self._back("back_after_greedy")

        door.users.clear()
        held = self.out / "held"
        self.submit("leaves", [self.python, f"{self.folder}/{LEAVES_PROGRAM}", str(held)])
        self.until("a job has left a process behind", held.exists)
        figures["left_behind"] = {"processes": len(witness.workers)} | self._measured()
        self._back("back_after_leaves")
        if witness.looks[-1][0] < time.time() - 2:
            raise RuntimeError("the witness has seen nothing of late: its figures are void")
        witness.ended.set()
        door.users.clear()

    def _speed(self) -> dict[str, object]:
        """How fast the job was said to be, is taken to be, and is by its own file."""
        said = self.ask("why", "train")
        steps = [moment_s for moment_s, _ in self.steps()[-200:]]
        taken_s = [later - earlier for earlier, later in itertools.pairwise(steps)]
        return {
            "declared": DECLARED,
            "learned": said["curve"] and said["curve"]["points"],
            "by_its_file": round(240 / float(np.median(taken_s)), 1),
        }

    def _greedy(self) -> str | None:
        """What is said of the job that asks for too much memory."""
        said = self.tidegate("why", "greedy", "--log", self.log).stdout.replace("│", " ")
        found = re.search(r"rank 0 ended[^.]*out of GPU memory[^.]*", " ".join(said.split()))
        return found and found[0]

    def _back(self, name: str) -> None:
        """Users return: time it until they are answered."""
        answered, back_s = len(self.door.answered), time.time()
        self.door.users.set()
        self.until(f"{name}: users are answered", lambda: len(self.door.answered) > answered)
        first = self.witness.first
        self.figures[name] = {
            "worker_gone_s": first(back_s, lambda one: not one[2]),
            "gpu_free_s": first(back_s, lambda one: one[3] == 0),
            "server_begun_s": first(back_s, lambda one: one[1]),
            "first_answer_s": round(self.door.answered[answered][1] - back_s, 2),
        }

    def _measured(self) -> dict[str, object]:
        """What `tidegate nodes` says of the GPU, and what the witness saw meanwhile."""
        nodes = self.ask("nodes")
        since = [one for one in self.witness.looks if one[0] > time.time() - 6]
        return {
            "tidegate": {key: nodes["nodes"][0][key] for key in _OF_A_NODE},
            "driver_busy": round(sum(one[5] for one in since) / len(since), 2),
            "driver_mib": round(since[-1][4]),
            "processes_on_gpu": max(one[3] for one in since),
        }

    def judge(self, steps: int) -> None:
        """Compare with a run that nobody disturbs; look at all that the witness saw."""
        figures, looks = self.figures, self.witness.looks
        weights = self.out / "weights.npz"
        with np.load(weights) as trained:
            largest = max(float(np.abs(trained[key]).max()) for key in trained.files)
        taken = [step for _, step in self.steps()]
        stored = [one.stat().st_size for one in (self.folder / "checkpoints").rglob("*")]
        figures |= {
            "weights_apart": self.weights_apart([*self.train, "--steps", str(steps)], weights),
            "weights_largest": largest,
            "steps": steps,
            "steps_lost": steps - len(set(taken)),
            "steps_repeated": len(taken) - len(set(taken)),
            "looks": len(looks),
            "looks_with_owner_and_job_at_once": sum(one[1] and one[2] for one in looks),
            "most_processes_on_gpu": max(one[3] for one in looks),
            "requests": len(self.door.answered),
            "largest_file_stored_mib": round(max(stored, default=0) / 2**20),
            "replay_identical": self.tidegate("replay", self.log).returncode == 0,
        }
        self.accept(
            bad=("looks_with_owner_and_job_at_once", "steps_lost", "steps_repeated"),
            good=("worker_outlived_its_agent", "replay_identical"),
        )


def meter_costs() -> dict[str, float]:
    """What a sample of the NVML meter takes, the driver's time included."""
    meter = NvmlGpus({"gpu-1": (0,)})
    cpu_s, wall_s = time.process_time(), time.monotonic()
    for _ in range(200):
        meter.read()
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    meter.close()
    return {"cpu_ms": round(cpu_s * 5, 3), "wall_ms": round(wall_s * 5, 3)}


def main() -> int:
    parser = options_of("gpu", __doc__)
    parser.add_argument("--hidden", type=int, default=4)
    parser.add_argument("--work-s", type=float, default=0.01, help="a pause in each step")
    return measured(Run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
