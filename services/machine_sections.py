"""The sections of an agent whose workers are real: what each key means, its range and default."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from runtime.metering.demand import DemandSettings
from runtime.owners import (
    HookOptions,
    ProtectTimes,
    ReplicaOptions,
    ReplicaSpec,
    Retry,
    WebhookOptions,
)
from schemas.values import Name
from services.keys import Count, Names, Seconds, Section

Rate = Annotated[float, Field(gt=0.0)]


class WorkersSection(Section):
    """`[agent.workers]`: real workers of this machine; docs/jobs.md says what jobs see of it."""

    #: The folder of all runs, with their logs and local checkpoints. An absolute path.
    folder: Path
    #: Where checkpoints become durable: file:///srv/checkpoints; s3://bucket/folder needs
    #: `pip install tidegate[s3]`, too. The same for all agents that a job may move between.
    checkpoints: str
    #: The rate limit of all checkpoint transfers together.
    rate_mib_per_s: Rate | None = None
    #: The GPUs in order, by UUID (of MIG devices, too) or index. Unset: 0, 1, ...; with gpu_type
    #: cpu they are CPU slots.
    gpu_ids: Names = ()
    #: The folder of GPU locks, the same for all agents of a machine. Unset: `locks` in `folder`.
    locks: Path | None = None
    #: The user of workers. `tenant`: one user per tenant, with its own folders; the agent must be
    #: root. `none`: the agent's user; then whoever may submit a job can read what the agent can:
    #: its keys, the store's login, other tenants' runs.
    isolation: Literal["tenant", "none"] = "tenant"
    #: The first user id for tenants; the machine must have no account from there on.
    first_uid: Annotated[int, Field(ge=1000, lt=2**31)] = 1_900_000_000
    #: More groups of those users, such as the one that may use the GPUs.
    groups: Names = ()
    #: The folder of the secrets that jobs name, `TENANT/NAME`; readable for the agent alone.
    secrets: Path | None = None
    #: More variables of the agent that workers get, besides PATH, HOME and the like.
    pass_env: Names = ()
    #: A program that reports no step counts as started when its workers have run this long.
    quiet_start_s: Annotated[float, Field(ge=0.0, lt=1e9)] = 5.0
    #: After this long without a step (or 20 usual step times, if longer) a gang is reported as
    #: stuck.
    stuck_after_s: Seconds = 600.0
    #: Whether a stuck gang is killed, and reported as failed.
    end_stuck: bool = False
    #: The grace of workers to save at a change of size.
    grace_s: Annotated[float, Field(ge=0.0, lt=1e9)] = 60.0
    #: How long, beyond the grace, the last checkpoint of a stopping gang may take to upload; then
    #: it is given up. Its GPUs stay taken meanwhile. An upload takes its size over half of
    #: `rate_mib_per_s` where it is read back. The scheduler waits as long only for jobs that
    #: declare `checkpoint_mib`, by `agent.transfer_mib_per_s`.
    final_upload_timeout_s: Annotated[float, Field(ge=0.0, lt=1e9)] = 60.0
    #: Memory limit of a gang, where cgroups can be used.
    memory_mib: Count | None = None
    #: CPU limit of a gang in cores, where cgroups can be used.
    cpus: Rate | None = None
    #: The size at which a worker's log file is rotated.
    log_max_mib: Count = 16
    #: How many log files of a worker stay.
    log_files: Count = 4
    #: How many checkpoints of a job stay, on the local disk and in the store.
    checkpoint_retention: Count = 2


class SlurmSection(Section):
    """`[agent.slurm]`: a cluster whose Slurm runs the gangs; its nodes are the agent's nodes."""

    #: Options for every `sbatch`, such as `--partition=train` or `--mem-per-gpu=32G`.
    sbatch: tuple[str, ...] = ()
    #: The gres of the GPUs, with a type if wanted (gpu:a100); empty: GPUs are CPU slots.
    gres: str = "gpu"
    #: Cores for each GPU.
    cpus_per_gpu: Count = 1
    #: The path of slurm.conf; unset: as in the agent's own environment.
    slurm_conf: Path | None = None
    #: How often Slurm is polled while there are gangs.
    poll_s: Seconds = 2.0
    #: A gang that Slurm does not start within this has failed.
    pending_timeout_s: Seconds = 900.0


class KubernetesSection(Section):
    """`[agent.kubernetes]`: a cluster that runs gangs as Jobs; its nodes are the agent's nodes."""

    #: The volume with `agent.workers.folder`, as in a Pod's spec:
    #: `{ persistentVolumeClaim = { claimName = "tidegate" } }`.
    volume: dict[str, Any]
    #: The mount path of that volume in the Pods; unset: the same path.
    mount: Path | None = None
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
    pod: dict[str, Any] = Field(default_factory=dict)
    #: Added to each container.
    container: dict[str, Any] = Field(default_factory=dict)
    #: A gang whose Pods do not all run within this has failed.
    pending_timeout_s: Seconds = 900.0


class MeterSection(Section):
    """`[agent.meter]`: where telemetry of GPUs comes from."""

    #: auto: NVML if the machine has GPUs, else the host's processors.
    source: Literal["auto", "nvml", "dcgm", "host"] = "auto"
    #: The metrics page of the DCGM exporter, such as http://127.0.0.1:9400/metrics.
    dcgm_url: str = ""
    #: How often GPUs are sampled; an exporter need not be read more often than it collects.
    every_s: Seconds = 1.0

    @model_validator(mode="after")
    def _has_a_page(self) -> "MeterSection":
        if (self.source == "dcgm") != bool(self.dcgm_url):
            raise ValueError("dcgm_url: goes with source = 'dcgm'")
        return self


class ServerSection(Section):
    """`[[agent.load.server]]`: one server of the owner's, whose metrics are read."""

    #: Its name, for people.
    name: Name
    #: Its node.
    node: Name
    #: Its metrics page, such as http://127.0.0.1:8000/metrics.
    url: str
    #: How many GPUs it uses.
    gpus: Count = 1


class LoadSection(Section):
    """`[agent.load]`: what the owner serves, read from its servers' metrics; see docs/meters.md."""

    server: tuple[ServerSection, ...]
    #: The kind of the servers; auto: recognised by the names of their metrics.
    kind: Literal["auto", "vllm", "sglang", "tgi", "triton"] = "auto"
    #: How often each server is scraped.
    every_s: Seconds = 5.0
    #: The window over which rates and latencies are measured.
    window_s: Seconds = 60.0
    #: How the GPUs needed follow from the load.
    demand: DemandSettings


class OwnerSection(Section):
    """`[agent.owner]`: how the owner leaves its nodes and gets them back; see docs/lending.md.

    Where nobody but training needs the GPUs, `[agent]` says `owner = "none"` instead. Real workers
    on an inference or edge pool need one of the two.
    """

    hooks: HookOptions | None = None
    webhook: WebhookOptions | None = None
    #: Servers that the agent itself runs for the owner.
    replica: tuple[ReplicaSpec, ...] = ()
    replicas: ReplicaOptions = Field(default_factory=ReplicaOptions)
    protect: ProtectTimes = Field(default_factory=ProtectTimes)
    retry: Retry = Field(default_factory=Retry)

    @model_validator(mode="after")
    def _one_way(self) -> "OwnerSection":
        ways = [self.hooks is not None, self.webhook is not None, bool(self.replica)]
        if sum(ways) != 1:
            raise ValueError("give one of hooks, webhook, [[agent.owner.replica]]")
        return self
