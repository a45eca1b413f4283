"""The gangs that run on this machine, by their run folders and the kernel, without the agent.

Jobs can write in these folders, and root reads them: a malformed record is ignored, and so is a
process of another user than its file's.
"""

import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explain.shares import counted
from runtime.executors.folder import ORDER, SHIM
from runtime.executors.processes import Identity
from runtime.untrusted_files import read_record

#: Beyond the usual grace of a gang, its supervisor needs this long to end what did not leave.
_LONGER_S = 15.0
#: The longest wait for a gang, whatever its file says.
_GRACE_MAX_S = 3600.0
_LOOK_S = 0.2
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True, slots=True)
class RunningGang:
    """A gang whose supervisor is alive."""

    job: str
    epoch: int
    gpus: int
    workers: int
    supervisor: Identity
    #: Who wrote the files of the run; its supervisor runs as the same user.
    uid: int
    #: The grace of its workers to save when they are stopped.
    grace_s: float


def running_gangs(workers: Path) -> list[RunningGang] | None:
    """Find the gangs below `agent.workers.folder`; None if we may not read it."""
    runs = workers / "runs"
    try:
        jobs = sorted(runs.iterdir())  # `glob` would find nothing where one may not look
    except FileNotFoundError:
        return []
    except OSError:
        return None
    found = [_gang(folder) for job in jobs for folder in _runs(job)]
    return [gang for gang in found if gang is not None]


def _runs(job: Path) -> list[Path]:
    try:
        return sorted(job.iterdir())
    except OSError:
        return []  # no folder, or the agent is just removing it


def _gang(folder: Path) -> RunningGang | None:
    said, order = read_record(folder / SHIM, {}), read_record(folder / ORDER, {})
    if said is None or order is None or not _JOB.fullmatch(folder.parent.name):
        return None
    try:
        gang = _told(folder, said[0], said[1], order[0])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    return gang if gang.supervisor.alive() and _is_its_own(gang) else None


def _told(folder: Path, said: dict[str, Any], uid: int, order: dict[str, Any]) -> RunningGang:
    supervisor = Identity(_whole(said["pid"]), _whole(said["started"]), said["boot"])
    epoch, count = int(folder.name), len(said["workers"])
    gpus = sum(len(held) for held in order["placement"].values())
    resized = said.get("resize")
    if resized is not None and resized["state"] == "done":  # one worker for each GPU
        epoch, gpus = _whole(resized["epoch"]), count
    grace_s = float(order["launch"]["grace_s"])
    if not grace_s >= 0.0:  # nor is it NaN
        raise ValueError(f"{grace_s} is no time")
    grace_s = min(grace_s, _GRACE_MAX_S)
    return RunningGang(folder.parent.name, epoch, gpus, count, supervisor, uid, grace_s)


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _is_its_own(gang: RunningGang) -> bool:
    """Whether all user ids of the supervisor are those of its file's owner."""
    try:
        status = Path(f"/proc/{gang.supervisor.pid}/status").read_text(errors="replace")
    except OSError:
        return False
    uids = {uid for line in status.splitlines() if line[:4] == "Uid:" for uid in line.split()[1:]}
    return uids == {str(gang.uid)}


def end(gangs: Sequence[RunningGang]) -> list[RunningGang]:
    """Ask gangs to save and leave; wait, and give those that are still there. Blocks."""
    for gang in gangs:
        if _is_its_own(gang):  # it may have become another user's since
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
    told = ((gang.job, counted(gang.gpus, "GPU"), gang.epoch) for gang in gangs)
    return ", ".join(f"{job} ({gpus}, epoch {epoch})" for job, gpus, epoch in told)
