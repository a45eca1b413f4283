"""One lock file for each GPU: two epochs can never work on one GPU, whoever started them.

The lock is the kernel's (flock), held through a descriptor that the workers inherit: it lasts as
long as any process that could use the GPU, and no crash leaves it behind. A gang has its GPUs
alone; replicas of their owner, who may put several on one GPU, share the same locks among
themselves. What the file says is for people and for error messages.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path


class Locked(Exception):
    """Somebody else holds the GPU; the message names the holder."""


def lock_path(
    folder: Path, node: str, gpu: int, gpu_ids: Mapping[str, Sequence[str]] | None
) -> Path:
    """Name the lock file of a GPU: by what CUDA calls it, whatever agents and nodes are called.

    A slot of a node without GPUs is that node's alone.
    """
    if gpu_ids is None:
        return folder / f"gpu-{gpu}.lock"
    ids = gpu_ids.get(node, ())
    name = ids[gpu].replace("/", "_") if gpu < len(ids) else f"{node}-{gpu}"
    return folder / f"gpu-{name}.lock"


def take(path: Path, holder: dict[str, object], *, shared: bool = False) -> int:
    """Take the lock and write down who has it; give the descriptor that holds it.

    Args:
        path: The lock file; made if need be.
        holder: Who takes it: `job`, `epoch`, `pid`; or `owner`.
        shared: Whether others that share may have it too.

    Raises:
        Locked: another process has it.
        OSError: the file cannot be used.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
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
    """Say who the file names as the holder."""
    try:
        holder = json.loads(said)
        if "owner" in holder:
            return f"the owner's {holder['owner']}"
        return f"job {holder['job']}, epoch {holder['epoch']}, process {holder['pid']}"
    except (ValueError, KeyError, TypeError):
        return "a process that did not say who it is (fuser -v names it)"
