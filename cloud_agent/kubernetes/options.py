"""The options for running gangs on Kubernetes."""

from cloud_agent.clusters.options import ClusterOptions
from cloud_agent.sections import KubernetesSection
from schemas.options import Seconds


class KubernetesOptions(KubernetesSection, ClusterOptions):
    """How `KubernetesExecutor` runs gangs; Kubernetes too gives Pods that it deletes `grace_s`."""

    poll_s: Seconds = 1.0  #: Of the workers' files alone: the cluster tells by itself.
    request_s: Seconds = 15.0  #: A request that takes longer has failed.
