"""The options for running gangs on Slurm."""

from cloud_agent.clusters.options import ClusterOptions
from cloud_agent.sections import SlurmSection
from schemas.options import Seconds


class SlurmOptions(SlurmSection, ClusterOptions):
    """How `SlurmExecutor` runs gangs; agent and nodes have `root` under one path."""

    command_s: Seconds = 30.0  #: A Slurm command that takes longer has failed.
