"""What an operator may choose about running gangs on Slurm."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud_agent.clusters.options import ClusterOptions

#: Options of sbatch are few.
_EXTRA_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions(ClusterOptions):
    """How `SlurmExecutor` runs gangs; agent and nodes have `root` under one path."""

    #: Options for every `sbatch`, such as `--partition=train` or `--mem-per-gpu=32G`.
    sbatch: Sequence[str] = ()
    #: What Slurm calls the GPUs, with a type if wanted (`gpu:a100`); None: GPUs are CPU slots.
    gres: str | None = "gpu"
    cpus_per_gpu: int = 1  #: Cores that come with each GPU.
    #: The cluster's settings; None: as the agent's own environment says.
    slurm_conf: Path | None = None
    #: Names of the agent's own environment that workers get too, beyond PATH, HOME and the like.
    pass_env: Sequence[str] = ()
    command_s: float = 30.0  #: A Slurm command that takes longer has failed.

    def __post_init__(self) -> None:
        ClusterOptions.__post_init__(self)
        self.positive("command_s")
        if len(self.sbatch) > _EXTRA_MAX or not all(one.startswith("--") for one in self.sbatch):
            raise ValueError(
                f"sbatch: at most {_EXTRA_MAX} options of the form --name or --name=value"
            )
        if self.cpus_per_gpu < 1:
            raise ValueError("cpus_per_gpu: must be at least 1")
