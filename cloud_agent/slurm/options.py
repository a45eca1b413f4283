"""What an operator may choose about running gangs on Slurm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoints.store import CheckpointStore

#: Options of sbatch are few.
_EXTRA_MAX = 64


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """How `SlurmExecutor` runs gangs on a cluster."""

    #: Folder for all that belongs to runs, on a file system that agent and nodes share under one
    #: path: `runs/`, `held/`.
    root: Path
    #: Where checkpoints become durable.
    store: CheckpointStore
    #: The agent's name; its Slurm jobs are known by it.
    agent: str
    #: Options for every `sbatch`, such as `--partition=train` or `--mem-per-gpu=32G`.
    sbatch: Sequence[str] = ()
    #: What Slurm calls the GPUs, with a type if wanted (`gpu:a100`); None: GPUs are CPU slots.
    gres: str | None = "gpu"
    cpus_per_gpu: int = 1  #: Cores that come with each GPU.
    #: The cluster's settings; None: as the agent's own environment says.
    slurm_conf: Path | None = None
    #: Names of the agent's own environment that workers get too, beyond PATH, HOME and the like.
    pass_env: Sequence[str] = ()
    #: Slurm is asked this often while a gang is held; more often in the half minute after an order.
    poll_s: float = 2.0
    command_s: float = 30.0  #: A Slurm command that takes longer has failed.
    #: A gang that Slurm does not begin within this has failed.
    pending_s: float = 900.0
    #: A program that says nothing has started when Slurm has run it this long.
    quiet_start_s: float = 5.0
    #: What workers are told is usual (`TIDEGATE_GRACE_S`), and what a change of size gives them.
    grace_s: float = 60.0
    #: A checkpoint that was asked for must come within this.
    save_s: float = 300.0
    #: Beyond the grace, for the upload of the last checkpoint.
    upload_s: float = 60.0
    keep: int = 2  #: Checkpoints of a job that are retained.

    def __post_init__(self) -> None:
        if not self.agent:
            raise ValueError("agent: must not be empty")
        if not self.root.is_absolute():
            raise ValueError(f"root: must be an absolute path, not {self.root}")
        if len(self.sbatch) > _EXTRA_MAX or not all(one.startswith("--") for one in self.sbatch):
            raise ValueError(
                f"sbatch: at most {_EXTRA_MAX} options of the form --name or --name=value"
            )
        for name in ("cpus_per_gpu", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        for name in ("poll_s", "command_s", "pending_s", "save_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be positive and finite")
        for name in ("quiet_start_s", "grace_s", "upload_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be finite and not negative")
