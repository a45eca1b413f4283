"""The options for running gangs: those that operators set, and what an executor is given too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from runtime.checkpoints.store import CheckpointStore
from runtime.executors.sections import MachineOptions, WorkerOptions
from runtime.executors.tenants import Tenants
from schemas.options import AbsolutePath, Count, Delay, Seconds


class ExecutorOptions(WorkerOptions):
    """What any executor is given."""

    #: Folder for all that belongs to runs; on a cluster, agent and nodes share it.
    root: AbsolutePath
    #: Where checkpoints become durable.
    store: CheckpointStore
    #: The agent's name, which marks what it runs.
    agent: Annotated[str, Field(min_length=1)]
    #: A checkpoint that was asked for must be written within this.
    save_s: Seconds = 300.0


class ProcessOptions(MachineOptions, ExecutorOptions):
    """How `ProcessExecutor` runs gangs on one machine."""

    #: By node, what CUDA calls its GPUs (UUIDs, MIG UUIDs or indices); None: the indices
    #: themselves. A node that is not named has no GPUs but CPU slots.
    gpu_ids: Mapping[str, Sequence[str]] | None = None
    #: The user ids of tenants, as which workers run; None: as the agent's own user.
    tenants: Tenants | None = None
    #: Ids of more groups of those users, such as the group that may use the GPUs.
    groups: Sequence[int] = ()
    #: How long to wait for the lock of a GPU whose last worker is just ending.
    lock_wait_s: Delay = 10.0
    #: The cgroup v2 folder in which gangs get theirs; None: `gangs_cgroup` finds it.
    cgroup: Path | None = None
    run_retention: Count = 20  #: Folders of ended runs that are retained, for their logs.

    @property
    def resize_s(self) -> float:
        """How long a change of size in place may take; a restart instead has a whole grace."""
        return self.grace_s / 2

    @property
    def lock_folder(self) -> Path:
        """Folder of the GPU locks."""
        return self.locks or self.root / "locks"
