"""Gangs as jobs of a Slurm cluster."""

from cloud_agent.slurm.executor import SlurmExecutor
from cloud_agent.slurm.options import SlurmOptions

__all__ = ["SlurmExecutor", "SlurmOptions"]
