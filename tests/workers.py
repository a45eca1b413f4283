"""Real workers for tests: an executor with a store of its own, and jobs as programs of a page."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.checkpoints.store import CheckpointStore
from runtime.core import GangStarted, GangStopped, ScaleWorkers, StartWorkers
from runtime.durable import write_json
from runtime.executors.cgroups import Cgroup
from runtime.executors.environment import machine_environment
from runtime.executors.folder import read_json
from runtime.executors.options import ProcessOptions
from runtime.executors.process import ProcessExecutor
from runtime.executors.processes import workers_of
from schemas.programs import Program
from tests.driven import Driven, spec
from tests.patience import PATIENCE_S, wait_until

NODE = "box"
_ROOT = Path(__file__).parents[1]

#: Does nothing. A shell is two programs, and bash overwrites its environment as it begins: for a
#: moment, nobody can tell whose it is.
IDLE = Program(argv=["sleep", "1000"])

#: Takes a step every 20 ms, saves on SIGTERM (and SIGUSR1), goes on from where it was.
TRAINER = """
import json, os, pathlib, signal, time
env, rank = os.environ, int(os.environ["RANK"])
folder = pathlib.Path(env["TIDEGATE_CHECKPOINT_DIR"])
step = int(pathlib.Path(env["TIDEGATE_RESUME"]).read_text()) if "TIDEGATE_RESUME" in env else 0
wishes = []
signal.signal(signal.SIGTERM, lambda *_: wishes.append("leave"))
signal.signal(signal.SIGUSR1, lambda *_: wishes.append("save"))
def say(**said):
    if rank == 0:
        with open(env["TIDEGATE_PROGRESS"], "a") as file:
            file.write(json.dumps(said) + chr(10))
def save():
    if rank == 0:
        (folder / f"step-{step}").write_text(str(step))
        say(step=step, checkpoint=f"step-{step}")
print("rank", rank, "of", env["WORLD_SIZE"], "goes on from", step, flush=True)
while step < int(env.get("STEPS", "1000000")):
    time.sleep(0.02)
    step += 1
    say(step=step, samples_per_s=100.0, world=env["WORLD_SIZE"])
    if wishes:
        save()
        if wishes.pop() == "leave":
            raise SystemExit(0)
save()
"""

#: Becomes more or fewer as it runs: the first takes the steps, and goes on until all have met. What
#: `JOIN` and `LEAVE` of its environment say is done by one that comes, or leaves alone.
ELASTIC = """
import json, os, pathlib, signal, subprocess, sys, time
env, waits = os.environ, 0
rank, generation = int(env["RANK"]), int(env["TIDEGATE_GENERATION"])
folder, world = pathlib.Path(env["TIDEGATE_CHECKPOINT_DIR"]), pathlib.Path(env["TIDEGATE_WORLD"])
resume = pathlib.Path(env["TIDEGATE_RESUME"]) if "TIDEGATE_RESUME" in env else None
step, wishes = int(resume.read_text()) if resume else 0, []
signal.signal(signal.SIGTERM, lambda *_: wishes.append("leave"))
signal.signal(signal.SIGUSR2, lambda *_: wishes.append("resize"))
def say(**said):
    with open(env["TIDEGATE_PROGRESS"], "a") as file:
        file.write(json.dumps(said) + chr(10))
def save():
    (folder / f"step-{step}").write_text(str(step))
    say(step=step, checkpoint=f"step-{step}")
def met(rank):
    return folder / f"met-{generation}-{rank}"
def all_met(size):
    return all(met(other).exists() for other in range(size))
if generation > int(env["TIDEGATE_EPOCH"]):
    exec(env.get("JOIN", ""))
met(rank).touch()
while rank == 0 and not all_met(int(env["WORLD_SIZE"])):
    time.sleep(0.01)
while True:
    time.sleep(0.02)
    if rank == 0:
        step += 1
        say(step=step, samples_per_s=100.0)
    wish = wishes.pop(0) if wishes else None
    said = json.loads(world.read_text()) if wish and world.exists() else {}
    if said.get("generation", 0) > generation:
        if str(rank) not in said["ranks"]:
            exec(env.get("LEAVE", ""))
            sys.exit(0)
        generation, rank = said["generation"], said["ranks"][str(rank)]
        waits = said["world_size"]
        met(rank).touch()
    elif wish == "leave":
        if rank == 0:
            save()
        sys.exit(0)
    if rank == 0 and waits and all_met(waits):
        say(generation=generation, step=step)
        waits = 0
"""

#: Folders in a folder, deeper than Python can recurse if need be.
DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(int(sys.argv[2])):
    os.mkdir("d")
    os.chdir("d")
open("end", "w").close()
"""

#: An agent as far as workers can tell: drives an executor until it is killed.
AGENT = """
import sys, time
from pathlib import Path
from tests.workers import ELASTIC, IDLE, TRAINER, Bench, python, shell
jig = Bench(Path(sys.argv[1]), sys.argv[2])
exec(sys.argv[3])
while True:
    jig.look()
    time.sleep(0.02)
"""


def python(code: str, **more: Any) -> Program:
    """Give a program of this code."""
    return Program(argv=[sys.executable, "-u", "-c", code], **more)


def shell(code: str, **more: Any) -> Program:
    """Give a program that is a line of shell."""
    return Program(argv=["bash", "-c", code], **more)


def placed(*gpus: int) -> dict[str, tuple[int, ...]]:
    """Give a placement on the one node there is."""
    return {NODE: gpus}


class Bench(Driven[ProcessExecutor]):
    """An executor on a folder of its own, driven by the test."""

    def __init__(
        self,
        root: Path,
        agent: str | None = None,
        store: CheckpointStore | None = None,
        *,
        every_s: float = 0.02,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> None:
        self.every_s, self.patience_s = every_s, patience_s
        self.root = root
        self.agent = agent or f"agent-{os.getpid()}-{root.name}"
        self.store = store or CheckpointStore(f"file://{root}/store")
        chosen = {"quiet_start_s": 0.3, "grace_s": 20.0, "lock_wait_s": 1.0, **options}
        self.options = ProcessOptions(
            root=root / "agent", store=self.store, agent=self.agent, **chosen
        )
        super().__init__(self.options.root)

    def make(self) -> ProcessExecutor:
        return ProcessExecutor(self.options)

    def start(
        self, program: Program | None, *gpus: int, job: str = "j", epoch: int = 1, **more: Any
    ) -> None:
        """Order a start; on GPU 0 if none is named."""
        steps, step = more.pop("total_steps", 1_000_000), more.pop("step", 0)
        what, resumed = (job, epoch, placed(*(gpus or (0,)))), more.pop("resumed", False)
        said = spec(program, steps)
        said = said.model_copy(update={"first_epoch": more.pop("first_epoch", 0)})
        order = StartWorkers(*what, said, step, 0.0, resumed)
        self.executor.start(order, time.time())

    def trains(
        self, program: Program, *gpus: int, beyond: int = 2, job: str = "j", **more: Any
    ) -> None:
        """Order a start, and wait until it is beyond a few steps."""
        self.start(program, *gpus, job=job, **more)
        self.until(lambda: self.step(job) > beyond)

    def begins(self, program: Program | None, *gpus: int, **more: Any) -> GangStarted:
        """Order a start, and wait for the first step."""
        before = len(self.all(GangStarted))
        self.start(program, *gpus, **more)
        return self.hears(GangStarted, before + 1)

    def ends(self, epoch: int = 1, **more: Any) -> GangStopped:
        """Order the end, and wait for it."""
        before = len(self.all(GangStopped))
        self.stop(epoch, **more)
        return self.hears(GangStopped, before + 1)

    def scale(self, *gpus: int, epoch: int, job: str = "j") -> None:
        """Order another size."""
        self.executor.scale(ScaleWorkers(job, epoch, placed(*gpus)), time.time())

    def pids(self) -> set[int]:
        """Give the processes that work for this agent, supervisors too."""
        return {worker.identity.pid for worker in workers_of(self.agent)}

    def shim(self, epoch: int = 1) -> Any:
        """Give what a supervisor says of itself; None before it does."""
        return read_json(self.run(epoch) / "shim.json")

    def hurt(self, number: signal.Signals, epoch: int = 1) -> None:
        """Send a signal to the supervisor."""
        os.kill(self.shim(epoch)["pid"], number)

    def reboot(self, epoch: int = 1) -> None:
        """Kill all of it at once, and let its notes be of an earlier boot of the machine."""
        kill_all(self.agent)
        write_json(self.run(epoch) / "shim.json", {**self.shim(epoch), "boot": "an earlier one"})

    def first_step(self, epoch: int = 1) -> int:
        """Give the first step that the present run of an epoch said."""
        path = self.run(epoch) / "progress.jsonl"
        self.until(lambda: path.exists() and "\n" in path.read_text())
        return int(json.loads(path.read_text().splitlines()[0])["step"])

    def end(self) -> None:
        """Leave nothing running."""
        self.executor.close()
        for _ in range(500):
            found = list(workers_of(self.agent))
            for worker in found:
                worker.identity.send(9)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not found:
                break
            time.sleep(0.01)
        for path in (self.options.root / "runs").glob("*/*/shim.json"):
            if (said := read_json(path)) is not None and said["cgroup"] is not None:
                Cgroup(Path(said["cgroup"])).remove()


def kill_agent_after(jig: Bench, orders: str, seen: Callable[[], object]) -> None:
    """Let an agent carry out these orders, and kill it once something is seen."""
    jig.executor.close()
    child = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(jig.root), jig.agent, orders],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    try:
        wait_until(lambda: child.poll() is not None or seen())
        assert child.poll() is None, "the agent ended by itself"
    finally:
        child.kill()
        child.wait()


def kill_all(agent: str) -> None:
    """Kill an agent's supervisors and workers, as a loss of power does: nobody has time for a word.

    A supervisor's pid is the lower one; its death is its workers' too.
    """
    for worker in sorted(workers_of(agent), key=lambda worker: worker.identity.pid):
        worker.identity.send(9)
    wait_until(lambda: not list(workers_of(agent)), "they outlive SIGKILL")


def straight_weights(folder: Path, steps: int, *train: str | Path) -> Path:
    """Train once without disturbance, in the environment of workers; give the weights' file.

    Args:
        folder: Where the file is to be.
        steps: How many to take.
        train: The command; that of `examples/train_numpy.py` if there is none.
    """
    command = train or (sys.executable, _ROOT / "examples" / "train_numpy.py")
    file = folder / "straight.npz"
    command = (*command, "--steps", str(steps), "--out", file)
    subprocess.run(command, cwd=folder, env=machine_environment(), check=True)
    return file


def same_weights(one: Path, other: Path) -> bool:
    """Whether two files hold the same weights to the last bit."""
    if not (one.exists() and other.exists()):
        return False
    with np.load(one) as first, np.load(other) as second:
        return first.files == second.files and all(
            first[name].tobytes() == second[name].tobytes() for name in first.files
        )


@contextlib.contextmanager
def bench(root: Path, **options: Any) -> Iterator[Bench]:
    """Lend a bench, and leave nothing running."""
    made = Bench(root, **options)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def jig(tmp_path: Path) -> Iterator[Bench]:
    """A bench for one test."""
    with bench(tmp_path) as made:
        yield made


@contextlib.contextmanager
def abyss() -> Iterator[Path]:
    """Lend a folder for folders in folders without end, which pytest could neither see nor remove.

    Others may go through it.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidegate-deep-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        # An agent's thread may be removing it, too.
        wait_until(lambda: subprocess.run(["rm", "-rf", str(folder)], check=False).returncode == 0)


def deepen(folder: Path, levels: int) -> None:
    """Put a folder into a folder into a folder, and a file into the last."""
    subprocess.run([sys.executable, "-c", DEEP, str(folder), str(levels)], check=True)
