"""One lock file for each GPU, so that two epochs can never work on one GPU.

The lock is the kernel's (flock), held through a descriptor that the workers inherit: it lasts as
long as any process that could use the GPU, and no crash leaves it behind. A gang holds its locks
exclusively; replicas of the GPUs' owner, several of which may use one GPU, share them. The content
of the file is only for people and error messages.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path


class Locked(Exception):
    """Another process holds the GPU; the message names the lock's owner."""


def lock_path(
    folder: Path, node: str, gpu: int, gpu_ids: Mapping[str, Sequence[str]] | None
) -> Path:
    """Name the lock file of a GPU: by its CUDA name, so that it is the same for all agents.

    The lock of a CPU slot is named after its node.
    """
    if gpu_ids is None:
        return folder / f"gpu-{gpu}.lock"
    ids = gpu_ids.get(node, ())
    name = ids[gpu].replace("/", "_") if gpu < len(ids) else f"{node}-{gpu}"
    return folder / f"gpu-{name}.lock"


def take(path: Path, lock_owner: dict[str, object], *, shared: bool = False) -> int:
    """Take the lock and record its owner; give the descriptor that holds it.

    Args:
        path: The lock file; made if need be.
        lock_owner: Who takes it, for people: `job`, `epoch`, `pid`; or `owner`.
        shared: Whether others that share may have it too.

    Raises:
        Locked: another process has it.
        OSError: the file cannot be used.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Who may read a file may lock it: a job of another user would keep everybody from the GPU.
        os.fchmod(descriptor, 0o600)
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(lock_owner).encode() + b"\n", 0)
    except BlockingIOError:
        said = os.pread(descriptor, 4096, 0)
        os.close(descriptor)
        raise Locked(
            f"{path.name} is held by {_named(said)}; it is free when that has ended"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _named(said: bytes) -> str:
    """Give the owner that the file names."""
    try:
        lock_owner = json.loads(said)
        if "owner" in lock_owner:
            return f"the owner's {lock_owner['owner']}"
        return f"job {lock_owner['job']}, epoch {lock_owner['epoch']}, process {lock_owner['pid']}"
    except (ValueError, KeyError, TypeError):
        return "a process that the file does not name (fuser -v names it)"
