"""The options for running gangs on a cluster that operators set, for each kind of cluster.

Imports no client of a cluster: every role reads the whole configuration.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from schemas.options import AbsolutePath, Count, Seconds, Section

#: Options of sbatch are few.
_EXTRA_MAX = 64
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


def _options(given: tuple[str, ...]) -> tuple[str, ...]:
    if len(given) > _EXTRA_MAX or not all(one.startswith("--") for one in given):
        raise ValueError(f"at most {_EXTRA_MAX} options of the form --name or --name=value")
    return given


def _additions(pod: dict[str, Any]) -> dict[str, Any]:
    if ours := sorted(_OURS & pod.keys()):
        raise ValueError(f"{', '.join(ours)} cannot be set, Tidegate does")
    return pod


class ClusterSection(Section):
    """What the configuration says of any cluster."""

    #: A gang that the cluster does not begin on all its nodes within this has failed.
    pending_timeout_s: Seconds = 900.0


class SlurmSection(ClusterSection):
    """`[agent.slurm]`: a cluster whose Slurm runs the gangs; its nodes are the agent's nodes."""

    #: Options for every `sbatch`, such as `--partition=train` or `--mem-per-gpu=32G`.
    sbatch: Annotated[tuple[str, ...], AfterValidator(_options)] = ()
    #: The gres of the GPUs, with a type if wanted (gpu:a100); empty: GPUs are CPU slots.
    gres: str = "gpu"
    #: Cores for each GPU.
    cpus_per_gpu: Count = 1
    #: The path of slurm.conf; unset: as in the agent's own environment.
    slurm_conf: Path | None = None
    #: How often Slurm is polled while there are gangs.
    poll_s: Seconds = 2.0


class KubernetesSection(ClusterSection):
    """`[agent.kubernetes]`: a cluster that runs gangs as Jobs; its nodes are the agent's nodes."""

    #: The volume with `agent.workers.folder`, as in a Pod's spec:
    #: `{ persistentVolumeClaim = { claimName = "tidegate" } }`.
    volume: dict[str, Any]
    #: The mount path of that volume in the Pods; unset: the same path.
    mount: AbsolutePath | None = None
    #: The namespace of the Jobs.
    namespace: str = "default"
    #: The kubeconfig file. Unset: KUBECONFIG, else the service account of the agent's Pod.
    kubeconfig: Path | None = None
    #: The image of jobs that name none.
    image: str = "python:3.11-slim"
    #: The resource name of the GPUs; empty: GPUs are CPU slots of one core.
    gpu_resource: str = "nvidia.com/gpu"
    #: Requests and limits for each GPU: `{ cpu = "4", memory = "32Gi" }`.
    resources_per_gpu: dict[str, str] = Field(default_factory=dict)
    #: A headless Service that selects Pods by the label `tidegate.io/agent`, by which workers find
    #: each other; empty: they share one loopback.
    service: str = "tidegate"
    #: Added to each Pod's spec: `{ tolerations = [...] }`.
    pod: Annotated[dict[str, Any], AfterValidator(_additions)] = Field(default_factory=dict)
    #: Added to each container.
    container: dict[str, Any] = Field(default_factory=dict)
