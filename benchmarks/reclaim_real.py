"""How soon the GPUs are free when an owner wants them: `python -m benchmarks.reclaim_real`.

From the order to stop, as a reclaim gives it, until nobody holds a lock of the gang's GPUs and none
of its processes is left: both looked at from outside the executor, by flock and in /proc, every
2 ms. Jobs of 2 and of 8 workers:

    quick    saves a few bytes and leaves
    saves    rank 0 saves 256 MiB, to the disk, and leaves
    deaf     ignores SIGTERM, so it is killed after a grace of 1 s, which is part of the figure

The upload of a checkpoint is not in it: it goes on when the GPUs are free. `--command` measures a
command of yours instead, as it is on a machine with GPUs:

    python -m benchmarks.reclaim_real --gpus 1 --command "python train.py"
"""

import fcntl
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import parser_of, show
from runtime.core import GangStarted, GangStopped
from runtime.executors.processes import workers_of
from runtime.metering.nvml import NvmlUnavailable, inventory
from schemas.programs import Program
from tests.workers import NODE, Bench, python

_GRACE_S = {"quick": 60.0, "saves": 60.0, "deaf": 1.0, "command": 60.0}
_JOB = """
import json, os, signal, time
env, size, rank = os.environ, {size}, int(os.environ["RANK"])
wishes = []
signal.signal(signal.SIGTERM, {handler})
held = os.urandom(size) if rank == 0 else b""
# The first step is said when all hear, or are deaf.
ready = env["TIDEGATE_PROGRESS"] + ".ready-"
open(ready + str(rank), "w").close()
while rank == 0 and not all(os.path.exists(ready + str(n)) for n in range(int(env["WORLD_SIZE"]))):
    time.sleep(0.01)
step = 0
while not wishes:
    time.sleep(0.01)
    step += 1
    if rank == 0:
        with open(env["TIDEGATE_PROGRESS"], "a") as file:
            file.write(json.dumps({{"step": step, "samples_per_s": 1.0}}) + chr(10))
if rank == 0:
    with open(os.path.join(env["TIDEGATE_CHECKPOINT_DIR"], "last"), "wb") as file:
        file.write(held)
        file.flush()
        os.fsync(file.fileno())
    with open(env["TIDEGATE_PROGRESS"], "a") as file:
        file.write(json.dumps({{"step": step, "checkpoint": "last"}}) + chr(10))
"""
_HEARS, _DEAF = "lambda *_: wishes.append(1)", "signal.SIG_IGN"
#: Bytes that a job saves, and whether it hears.
JOBS = {"quick": (100, _HEARS), "saves": (256 * 2**20, _HEARS), "deaf": (100, _DEAF)}


def run(seconds: float) -> dict[str, float]:
    """Measure a few times each, for some seconds."""
    rounds = 3 if seconds >= 3 else 1
    programs = {name: _program(name) for name in ("quick", "deaf")}
    return measure(programs, (2,), rounds, {}, None)


def measure(
    programs: dict[str, Program],
    gpus: Sequence[int],
    rounds: int,
    gpu_ids: dict[str, tuple[str, ...]],
    folder: Path | None,
) -> dict[str, float]:
    """Measure each program on so many GPUs, so many times; `gpu_ids` as the executor takes them."""
    figures: dict[str, float] = {}
    for name, program in programs.items():
        for count in gpus:
            with tempfile.TemporaryDirectory(dir=folder) as place:
                # A command may say no steps; the jobs here do, and are not begun before.
                waits: dict[str, Any] = {
                    "every_s": 0.002,
                    "patience_s": 600.0,
                    "quiet_start_s": 5.0 if name == "command" else 600.0,
                    "final_upload_timeout_s": 600.0,
                }
                agent = f"bench-reclaim-{os.getpid()}"
                bench = Bench(Path(place), agent, gpu_ids=gpu_ids, **waits)
                try:
                    taken = [
                        _reclaimed(bench, program, count, f"{name}-{turn}", _GRACE_S[name])
                        for turn in range(rounds)
                    ]
                finally:
                    bench.end()
            figures[f"reclaim_{name}_{count}_gpus_median_s"] = statistics.median(taken)
            figures[f"reclaim_{name}_{count}_gpus_worst_s"] = max(taken)
    return figures


def _reclaimed(bench: Bench, program: Program, count: int, job: str, grace_s: float) -> float:
    """Start a gang, take its GPUs away; give the seconds until they are free."""
    bench.said.clear()
    bench.start(program, *range(count), job=job)
    bench.hears(GangStarted)
    ordered_s = time.perf_counter()
    bench.stop(job=job, grace_s=grace_s)
    bench.until(lambda: _is_free(bench, job), "its GPUs are never free")
    free_s = time.perf_counter() - ordered_s
    bench.hears(GangStopped)
    return free_s


def _is_free(bench: Bench, job: str) -> bool:
    """Whether all locks can be had, and then whether no process of the gang is left."""
    for path in bench.options.lock_folder.glob("*.lock"):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
    # The supervisor lets the locks go and then writes down how it was; no GPU is in its hands.
    left = [worker.identity for worker in workers_of(bench.agent) if worker.job == job]
    return all(_supervises(one.pid) for one in left)


def _supervises(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return True  # it has just ended


def _program(name: str) -> Program:
    size, handler = JOBS[name]
    return python(_JOB.format(size=size, handler=handler))


def _gpus() -> list[str]:
    """Name the GPUs of this machine; none where there is no driver."""
    try:
        return [gpu.name for gpu in inventory()]
    except NvmlUnavailable:
        return []


def main() -> int:
    """Measure the jobs asked for."""
    parser = parser_of("reclaim_real", __doc__)
    parser.add_argument("--jobs", default=",".join(JOBS), help="by commas (%(default)s)")
    parser.add_argument("--command", help="measure this job instead, on real GPUs by index")
    parser.add_argument("--gpus", default="2,8", help="of a gang, by commas (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="of each (%(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (the temporary one)")
    given = parser.parse_args()
    names, gpu_ids = _gpus(), {}
    if given.command:
        programs = {"command": Program(argv=shlex.split(given.command))}
        gpu_ids = {NODE: tuple(str(index) for index in range(len(names)))}
    else:
        programs = {name: _program(name) for name in given.jobs.split(",")}
    gpus = [int(count) for count in given.gpus.split(",")]
    figures = measure(programs, gpus, given.rounds, gpu_ids, given.folder)
    if given.json != "-":
        print(f"GPUs: {', '.join(names) or 'none'}")
    show(figures, "{:44} {:10.3f}", given.json, gpus=names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
