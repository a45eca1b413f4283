"""The options for running gangs on a cluster: its section, and what an executor is given too."""

from cloud_agent.sections import ClusterSection, KubernetesSection, SlurmSection
from runtime.executors.options import ExecutorOptions
from schemas.options import Seconds


class ClusterOptions(ClusterSection, ExecutorOptions):
    """How gangs are run on any cluster."""

    #: While there are gangs, their files are read this often, and so is the cluster's state if it
    #: sends no events; more often in the half minute after an order.
    poll_s: Seconds


class SlurmOptions(SlurmSection, ClusterOptions):
    """How `SlurmExecutor` runs gangs; agent and nodes have `root` under one path."""

    command_s: Seconds = 30.0  #: A Slurm command that takes longer has failed.


class KubernetesOptions(KubernetesSection, ClusterOptions):
    """How `KubernetesExecutor` runs gangs; Kubernetes too gives Pods that it deletes `grace_s`."""

    poll_s: Seconds = 1.0  #: Of the workers' files alone: the cluster tells by itself.
    request_s: Seconds = 15.0  #: A request that takes longer has failed.
