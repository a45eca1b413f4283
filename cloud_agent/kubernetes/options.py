"""What an operator may choose about running gangs on Kubernetes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloud_agent.clusters.options import ClusterOptions

#: Parts of a Pod that are Tidegate's to say.
_OURS = frozenset(
    (
        "automountServiceAccountToken",
        "containers",
        "nodeName",
        "nodeSelector",
        "restartPolicy",
        "schedulingGates",
        "subdomain",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions(ClusterOptions):
    """How `KubernetesExecutor` runs gangs; Kubernetes too gives Pods that it deletes `grace_s`."""

    #: How Pods get `root`: a volume in Kubernetes' words, such as
    #: `{"persistentVolumeClaim": {"claimName": "tidegate"}}`.
    volume: Mapping[str, Any]
    #: Where `root` is in the Pods; None: at the same path.
    mount: Path | None = None
    namespace: str = "default"
    #: None: as `KUBECONFIG` says, else the account of the Pod that the agent runs in.
    kubeconfig: Path | None = None
    #: For jobs that name no image.
    image: str = "python:3.11-slim"
    #: What the device plugin calls the GPUs; None: GPUs are CPU slots, one core each.
    gpu_resource: str | None = "nvidia.com/gpu"
    #: Requests and limits of each GPU besides, such as `{"cpu": "4", "memory": "32Gi"}`.
    resources_per_gpu: Mapping[str, str] = field(default_factory=dict)
    #: A headless Service of the namespace that selects the Pods by their label
    #: `tidegate.io/agent`, so that workers find each other; None: they all see one loopback.
    service: str | None = "tidegate"
    #: Added to each Pod's spec, such as `{"tolerations": [...]}`, and to each container.
    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    poll_s: float = 1.0  #: Of the workers' files alone: the cluster tells by itself.
    request_s: float = 15.0  #: A request that takes longer has failed.

    def __post_init__(self) -> None:
        ClusterOptions.__post_init__(self)
        self.positive("request_s")
        if self.mount is not None and not self.mount.is_absolute():
            raise ValueError(f"mount: must be an absolute path, not {self.mount}")
        if ours := sorted(_OURS & self.pod.keys()):
            raise ValueError(f"pod: {', '.join(ours)} cannot be set, Tidegate does")
