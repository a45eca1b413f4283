"""The run folder: the files by which agent and supervisor talk, which outlive both.

`<root>/runs/<job>/<epoch>/` holds

    order.json       what to run, and all that the next agent needs to go on with it
    shim.json        the supervisor and the workers: their pids and start times
    resize.json      the last request to resize in place
    world.json       for the workers: their ranks in the new size, and where they meet
    stop.json        the request that the workers leave, and their grace
    exit.json        how each worker ended; written when none is left
    reserved         keeps the room for it on a disk that gets full meanwhile
    committed.json   the newest checkpoint of this run that is in the store
    kept.json        the newest that is synced to this disk, and so outlives a loss of power
    closed           the agent has reported how the run ended, and stored the report
    refused          and that it failed: no store takes what it may have as its result
    progress.jsonl, checkpoints/, work/, logs/, shim.log

Imports little: the supervisor lives as long as its gang, and should cost a few MiB.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runtime.untrusted_files import NULL, Shape, read_record

ORDER, SHIM, STOP, EXIT = "order.json", "shim.json", "stop.json", "exit.json"
RESIZE, WORLD = "resize.json", "world.json"
RESERVED = "reserved"
COMMITTED, KEPT, CLOSED, REFUSED = "committed.json", "kept.json", "closed", "refused"
PROGRESS, CHECKPOINTS, WORK, LOGS = "progress.jsonl", "checkpoints", "work", "logs"
SHIM_LOG = "shim.log"

_WORKER_ENDED: Shape = {
    "rank": int,
    "code": (int, NULL),
    "signal": (int, NULL),
    "line": str,
    "gpu_memory": bool,
}
#: By name, what a record must hold. A job without isolation can write here as well.
_SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        ORDER: {
            "job": str,
            "epoch": int,
            "placement": dict,
            "step": int,
            "committed_step": int,
            "launch": dict,
        },
        SHIM: {
            "pid": int,
            "started": int,
            "boot": str,
            "cgroup": (str, NULL),
            "workers": [list],
            "resize": (dict, NULL),
            "begun": bool,
        },
        RESIZE: {"epoch": int, "epoch_before": int, "given_up": bool, "launch": dict},
        STOP: {"grace_s": float, "kill": bool, "why": str},
        EXIT: {
            "refused": (dict, NULL),
            "stopped": bool,
            "failed": (int, NULL),
            "oom_kills": int,
            "workers": [_WORKER_ENDED],
        },
        COMMITTED: {"step": int, "path": str, "uri": str},
        KEPT: {"step": int, "name": str, "files": list},
    }
)


def read_json(path: Path) -> dict[str, Any] | None:
    """Give what a record says; None if there is none, or nothing that makes sense."""
    found = read_record(path, _SHAPES.get(path.name, {}))
    return None if found is None else found[0]
