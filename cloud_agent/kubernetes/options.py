"""What an operator may choose about running gangs on Kubernetes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.checkpoints.store import CheckpointStore

#: Parts of a Pod that are Tidegate's to say.
_OURS = frozenset(
    ("containers", "nodeName", "nodeSelector", "restartPolicy", "schedulingGates", "subdomain")
)


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """How `KubernetesExecutor` runs gangs on a cluster."""

    #: Folder for all that belongs to runs, which the Pods have too: `runs/`, `held/`.
    root: Path
    #: Where checkpoints become durable.
    store: CheckpointStore
    #: The agent's name; its Jobs are known by it.
    agent: str
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
    #: The workers' files are looked at this often; the cluster tells by itself.
    poll_s: float = 1.0
    request_s: float = 15.0  #: A request that takes longer has failed.
    #: A gang whose Pods do not all run within this has failed.
    pending_s: float = 900.0
    #: A program that says nothing has started when its Pods have run this long.
    quiet_start_s: float = 5.0
    #: What workers are told is usual (`TIDEGATE_GRACE_S`), what a change of size gives them, and
    #: what Kubernetes gives them when it deletes Pods by itself.
    grace_s: float = 60.0
    #: A checkpoint that was asked for must come within this.
    save_s: float = 300.0
    #: Beyond the grace, for the upload of the last checkpoint.
    upload_s: float = 60.0
    keep: int = 2  #: Checkpoints of a job that are retained.

    def __post_init__(self) -> None:
        if not self.agent:
            raise ValueError("agent: must not be empty")
        for name in ("root", "mount"):
            path = getattr(self, name)
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name}: must be an absolute path, not {path}")
        if ours := sorted(_OURS & self.pod.keys()):
            raise ValueError(f"pod: {', '.join(ours)} cannot be set, Tidegate does")
        for name in ("poll_s", "request_s", "pending_s", "save_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be positive and finite")
        for name in ("quiet_start_s", "grace_s", "upload_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be finite and not negative")
        if self.keep < 1:
            raise ValueError("keep: must be at least 1")
