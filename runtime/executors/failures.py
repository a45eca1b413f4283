"""Why a run failed, as a sentence, and whether a retry makes sense."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.executors.folder import SHIM_LOG
from runtime.executors.logs import last_line
from runtime.untrusted_files import read_tail

_NOT_RETRIABLE = {
    126: "the command cannot be executed",
    127: "the command was not found",
}
_KILL = 9
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a gang failed."""

    error: str
    retriable: bool = True


def failure(record: Mapping[str, Any] | None, folder: Path, argv0: str) -> Failure | None:
    """Say why the run failed; None if all its workers ended well.

    Args:
        record: What its supervisor wrote at the end; None: nothing.
        folder: The run folder.
        argv0: The command.
    """
    if record is None:
        said = last_line(read_tail(folder / SHIM_LOG, _TAIL_BYTES).decode(errors="replace"))
        return Failure(
            "the gang's supervisor died, and its workers with it" + (f": {said}" if said else "")
        )
    refused = record.get("refused")
    if refused:
        return Failure(str(refused.get("error")), retriable=refused.get("kind") != "Refused")
    failed = record.get("failed")
    for worker in record["workers"]:
        if worker["rank"] == failed:
            return _of_worker(worker, int(record.get("oom_kills", 0)), argv0)
    if record.get("stopped"):
        return Failure("somebody other than the agent asked the gang's supervisor to end it")
    return None


def _of_worker(worker: Mapping[str, Any], oom_kills: int, argv0: str) -> Failure:
    rank, code, number = worker["rank"], worker["code"], worker["signal"]
    # What ends by a signal says nothing of it: its last line is not the reason.
    before = ": " if number is None else "; it wrote last: "
    line = f"{before}{worker['line']}" if worker["line"] else ""
    if code in _NOT_RETRIABLE:
        return Failure(
            f"rank {rank}: {_NOT_RETRIABLE[code]} (exit code {code}, {argv0}){line}", False
        )
    if oom_kills and number == _KILL:
        how = "ran out of memory (the limit of the gang's cgroup)"
    elif number == _KILL:
        how = "was killed by signal 9, perhaps out of memory"
    elif number is not None:
        how = f"was killed by signal {number}"
    else:
        how = f"ended with exit code {code}"
    if oom_kills and number != _KILL:
        how += ", after a child ran out of memory (the limit of the gang's cgroup)"
    if worker["gpu_memory"]:
        how += ", out of GPU memory"
    return Failure(f"rank {rank} {how}{line}")
