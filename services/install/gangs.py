"""The gangs that run on this machine, as their run folders and the kernel say; nobody is asked."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.executors.folder import ORDER, SHIM, read_json
from runtime.executors.processes import Identity, boot_id

#: Beyond the usual grace of a gang, its supervisor needs this long to end what did not leave.
_LONGER_S = 15.0
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class RunningGang:
    """A gang whose supervisor lives."""

    job: str
    epoch: int
    gpus: int
    workers: int
    supervisor: Identity
    #: What its workers get to save when they are told to leave.
    grace_s: float


def running_gangs(workers: Path) -> list[RunningGang] | None:
    """Find the gangs below `agent.workers.folder`; None if one may not look there."""
    runs = workers / "runs"
    try:
        jobs = sorted(runs.iterdir())  # `glob` would find nothing where one may not look
    except FileNotFoundError:
        return []
    except OSError:
        return None
    found = [_gang(folder) for job in jobs for folder in sorted(job.glob("*"))]
    return [gang for gang in found if gang is not None]


def _gang(folder: Path) -> RunningGang | None:
    said, order = read_json(folder / SHIM), read_json(folder / ORDER)
    if said is None or order is None or said.get("boot") != boot_id():
        return None
    supervisor = Identity(said["pid"], said["started"])
    if not supervisor.alive():
        return None
    epoch, count = int(folder.name), len(said["workers"])
    gpus = sum(len(held) for held in order["placement"].values())
    resized = said.get("resize")
    if resized is not None and resized["state"] == "done":  # one worker for each GPU
        epoch, gpus = resized["epoch"], count
    grace_s = float(order["launch"]["grace_s"])
    return RunningGang(folder.parent.name, epoch, gpus, count, supervisor, grace_s)


def end(gangs: Sequence[RunningGang]) -> list[RunningGang]:
    """Ask gangs to save and leave, wait for that, and give those that are still there. Blocks."""
    for gang in gangs:
        gang.supervisor.send(signal.SIGTERM)
    left = list(gangs)
    wait_s = max((gang.grace_s for gang in gangs), default=0.0) + _LONGER_S
    for _ in range(round(wait_s / _LOOK_S)):
        left = [gang for gang in left if gang.supervisor.alive()]
        if not left:
            break
        time.sleep(_LOOK_S)
    return left


def named(gangs: Sequence[RunningGang]) -> str:
    """Name gangs for people."""
    return ", ".join(f"{gang.job} ({gang.gpus} GPUs, epoch {gang.epoch})" for gang in gangs)
