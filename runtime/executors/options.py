"""The options for running gangs as processes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoints.store import CheckpointStore
from runtime.executors.tenants import Tenants


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How `ProcessExecutor` runs gangs on one machine."""

    #: Folder for all that belongs to runs: `runs/`, `locks/`. On a local disk.
    root: Path
    #: Where checkpoints become durable.
    store: CheckpointStore
    #: The agent's name, which its processes have in their environment.
    agent: str
    #: By node, what CUDA calls its GPUs (UUIDs, MIG UUIDs or indices); None: the indices
    #: themselves. A node that is not named has no GPUs but CPU slots.
    gpu_ids: Mapping[str, Sequence[str]] | None = None
    #: Folder of the GPU locks, the same for all agents of a machine; None: `root/locks`.
    locks: Path | None = None
    #: The user ids of tenants, as which workers run; None: as the agent's own user.
    tenants: Tenants | None = None
    #: Ids of more groups of those users, such as the group that may use the GPUs.
    groups: Sequence[int] = ()
    #: Where secrets are, `TENANT/NAME`; None: there are none.
    secrets: Path | None = None
    #: Names of the agent's own environment that workers get too, beyond PATH, HOME and the like.
    pass_env: Sequence[str] = ()
    log_max_mib: int = 16  #: A worker's log file is full at this size.
    log_files: int = 4  #: How many log files of a worker there are at most.
    #: A program that reports nothing counts as started when its workers have run this long.
    quiet_start_s: float = 5.0
    #: A gang is stuck after this long without a step, or 20 of its usual intervals if longer.
    stuck_after_s: float = 600.0
    #: End a stuck gang as failed; otherwise it is only reported.
    end_stuck: bool = False
    #: The grace of a change of size, which workers are told as `TIDEGATE_GRACE_S`.
    grace_s: float = 60.0
    #: A checkpoint that was asked for must be written within this.
    save_s: float = 300.0
    #: How long, beyond the grace, the upload of the last checkpoint may take.
    final_upload_timeout_s: float = 60.0
    #: How long to wait for the lock of a GPU whose last worker is just ending.
    lock_wait_s: float = 10.0
    #: Memory and cores of a gang; None: no limit. In force where cgroup v2 permits.
    memory_mib: int | None = None
    cpus: float | None = None
    #: The cgroup v2 folder in which gangs get theirs; None: below the agent's own.
    cgroup: Path | None = None
    checkpoint_retention: int = 2  #: Checkpoints of a job that stay, here and in the store.
    run_retention: int = 20  #: Folders of ended runs that are retained, for their logs.

    def __post_init__(self) -> None:
        if not self.agent:
            raise ValueError("agent: must not be empty")
        for name in ("log_max_mib", "log_files", "checkpoint_retention", "run_retention"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        for name in ("quiet_start_s", "grace_s", "final_upload_timeout_s", "lock_wait_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be finite and not negative")
        for name in ("stuck_after_s", "save_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be positive")
        if self.memory_mib is not None and self.memory_mib < 1:
            raise ValueError("memory_mib: must be at least 1; leave it out for no limit")
        if self.cpus is not None and not 0 < self.cpus < math.inf:
            raise ValueError("cpus: must be positive and finite; leave it out for no limit")
        if not self.root.is_absolute():
            raise ValueError(f"root: must be an absolute path, not {self.root}")

    @property
    def resize_s(self) -> float:
        """How long a change of size in place may take; a restart instead has a whole grace."""
        return self.grace_s / 2

    @property
    def lock_folder(self) -> Path:
        """Folder of the GPU locks."""
        return self.locks or self.root / "locks"
