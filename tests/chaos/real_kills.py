"""Kills of real work: whom, in the middle of what, and a zombie of an old epoch now and then."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.real_fleet import AGENTS, RealFleet
from tests.chaos.real_moments import PHASES, Moment, moments, supervisor

_RUNS = ("starting", "training", "checkpointing", "resizing", "leaving")
#: Who is killed, and in the middle of what.
KILLS = (
    *(("agent", phase) for phase in PHASES),
    *(("reboot", phase) for phase in (*_RUNS, "uploading", "fetching")),
    *(("supervisor", phase) for phase in _RUNS),
    *(("worker", phase) for phase in _RUNS),
    *(("scheduler", phase) for phase in ("starting", "resizing", "leaving", "reclaiming")),
    *(("bridge", phase) for phase in ("fetching", "leaving")),
    ("zombie", "training"),
)
#: A moment is looked for this often, and this long.
LOOK_S, FIND_S = 0.03, 40.0
#: A zombie must be gone this soon after its agent is back.
ZOMBIE_S = 60.0


@dataclass(slots=True)
class Done:
    """One kill."""

    victim: str
    moment: Moment
    #: Wrong at once: the rest shows in the account.
    problem: str = ""

    def __str__(self) -> str:
        of = f" of {self.moment.job}" if self.moment.job else ""
        return f"{self.victim} killed while {self.moment.phase}{of} at {self.moment.agent}"


async def find(
    fleet: RealFleet, wanted: Callable[[Moment], bool], patience_s: float = FIND_S
) -> Moment | None:
    """Wait for such a moment; None if it does not come."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        for moment in moments(fleet):
            if wanted(moment) and fleet.processes[moment.agent].pid is not None:
                return moment
        await asyncio.sleep(LOOK_S)
    return None


async def kill(fleet: RealFleet, victim: str, moment: Moment, away_s: float) -> Done:
    """Kill the victim now; start again what does not start by itself, `away_s` later."""
    done = Done(victim, moment)
    process = fleet.processes.get(victim, fleet.processes[moment.agent])
    if victim in ("supervisor", "worker"):
        if not _kill_of_run(victim, moment):
            done.problem = "it had ended"
        return done
    if victim == "zombie" and moment not in moments(fleet):
        # Of a gang that is gone, the next epoch may run elsewhere: rightly, and with a zombie.
        done.problem = "it had ended"
        return done
    zombie: subprocess.Popen[bytes] | None = None
    if victim in ("reboot", "zombie"):
        await asyncio.to_thread(fleet.reboot, moment.agent)
    else:
        process.kill()
    if victim == "zombie":
        zombie = raise_zombie(fleet, moment)
    await asyncio.sleep(away_s)
    await asyncio.to_thread(process.start)
    if zombie is not None and not await asyncio.to_thread(_is_ended, zombie):
        done.problem = "the zombie lives"
        zombie.kill()
    if zombie is not None:
        zombie.wait()
        if f"process {zombie.pid} of job" not in process.log_file.read_text():
            done.problem = done.problem or "the zombie's end was not reported"
    return done


def raise_zombie(fleet: RealFleet, moment: Moment) -> "subprocess.Popen[bytes]":
    """Start what a worker of an older epoch would be that outlived everything.

    It says that it is of the epoch before, sits in its run folder and holds one of its GPUs' locks.
    The agent and all that it started must be dead.
    """
    assert moment.run is not None
    locks = sorted((fleet.folder / "locks").glob("gpu-GPU-e*.lock"))
    if moment.agent != list(AGENTS)[1]:
        locks = sorted(set((fleet.folder / "locks").glob("gpu-*.lock")) - set(locks))
    for path in locks:
        lock = os.open(path, os.O_RDWR)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        os.close(lock)
    else:
        raise RuntimeError("no GPU is free, though all is dead")
    epoch = str(int(moment.run.name) - 1)
    folder = moment.run.with_name(epoch)
    said = {
        "TIDEGATE_AGENT": moment.agent,
        "TIDEGATE_JOB": moment.job,
        "TIDEGATE_EPOCH": epoch,
        "TIDEGATE_NODE": "as it was",
        "TIDEGATE_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "TIDEGATE_PROGRESS": str(folder / "progress.jsonl"),
        "CUDA_VISIBLE_DEVICES": path.stem.removeprefix("gpu-"),
    }
    try:
        return subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            cwd=folder if folder.exists() else moment.run,
            env=said,
            pass_fds=[lock],
        )
    finally:
        os.close(lock)


def _kill_of_run(victim: str, moment: Moment) -> bool:
    """Kill the supervisor of the run, or its first worker; False if there is none."""
    deadline_s = time.monotonic() + 5.0
    assert moment.run is not None
    # It says who its workers are a moment after it began.
    while (found := supervisor(moment.run)) is None or (victim == "worker" and not found[1]):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(LOOK_S)
    pid = found[0] if victim == "supervisor" else found[1][0]
    try:
        if str(moment.run).encode() not in Path(f"/proc/{pid}/environ").read_bytes():
            return False  # the number is another's now
        os.kill(pid, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        return False
    return True


def _is_ended(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(ZOMBIE_S)
    except subprocess.TimeoutExpired:
        return False
    return True
