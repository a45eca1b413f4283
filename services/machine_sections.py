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

    #: Everything about runs: checkpoints before they are stored, logs. An absolute path.
    folder: Path
    #: Where checkpoints become durable: file:///srv/checkpoints; s3://bucket/folder needs
    #: `pip install tidegate[s3]` as well. All agents that a job may move between name the same.
    checkpoints: str
    #: The most that transfers of checkpoints take, together.
    rate_mib_per_s: Rate | None = None
    #: What CUDA calls the GPUs, in order: UUIDs (of MIG devices, too) or indices. Unset: 0, 1, ...;
    #: where gpu_type is cpu, the GPUs are slots of a machine without any.
    gpu_ids: Names = ()
    #: GPU locks; the same for all agents of one machine. Unset: locks in `folder`.
    locks: Path | None = None
    #: As whom workers run. `tenant`: jobs of each tenant as a user of their own, with their own
    #: folders; takes an agent that is root. `none`: as the agent's user; then whoever may submit a
    #: job can read what the agent can: its keys, the store's login, other tenants' runs.
    isolation: Literal["tenant", "none"] = "tenant"
    #: The first of the users that tenants are given: no account of the machine is from there on.
    first_uid: Annotated[int, Field(ge=1000, lt=2**31)] = 1_900_000_000
    #: Groups of the machine that those users are in besides, as the one that may use the GPUs.
    groups: Names = ()
    #: Where the secrets are that jobs name, `TENANT/NAME`, readable for the agent alone.
    secrets: Path | None = None
    #: What workers get of the agent's own environment, beside PATH, HOME and the like.
    pass_env: Names = ()
    #: A program that says nothing has started when its workers have lived this long.
    quiet_start_s: Annotated[float, Field(ge=0.0, lt=1e9)] = 5.0
    #: No step for this long (or 20 of its usual intervals): the gang is reported as stuck.
    stuck_after_s: Seconds = 600.0
    #: Whether a stuck gang is ended, as failed.
    end_stuck: bool = False
    #: What a change of size gives workers to save.
    grace_s: Annotated[float, Field(ge=0.0, lt=1e9)] = 60.0
    #: Beyond the grace, for the last checkpoint of a gang that is told to leave to become durable;
    #: then it is given up. Its GPUs stay taken meanwhile. Over a thin link it takes its size over
    #: half of `rate_mib_per_s`, for it is read back. The scheduler is as patient only with jobs
    #: that declare `checkpoint_mib`, by `agent.transfer_mib_per_s`.
    final_upload_timeout_s: Annotated[float, Field(ge=0.0, lt=1e9)] = 60.0
    #: Of a gang, where cgroups can be used.
    memory_mib: Count | None = None
    #: Cores of a gang, where cgroups can be used.
    cpus: Rate | None = None
    #: A worker's log file is full at this size.
    log_max_mib: Count = 16
    #: Log files of a worker.
    log_files: Count = 4
    #: How many checkpoints of a job stay, on the local disk and in the store.
    checkpoint_retention: Count = 2


class SlurmSection(Section):
    """`[agent.slurm]`: a cluster whose Slurm runs the gangs; its nodes are the agent's nodes."""

    #: Options for every `sbatch`, such as `--partition=train` or `--mem-per-gpu=32G`.
    sbatch: tuple[str, ...] = ()
    #: What Slurm calls the GPUs, with a type if wanted (gpu:a100); empty: GPUs are CPU slots.
    gres: str = "gpu"
    #: Cores that come with each GPU.
    cpus_per_gpu: Count = 1
    #: The cluster's settings; unset: as the agent's own environment says.
    slurm_conf: Path | None = None
    #: Slurm is asked this often while a gang is held.
    poll_s: Seconds = 2.0
    #: A gang that Slurm does not begin within this has failed.
    pending_timeout_s: Seconds = 900.0


class KubernetesSection(Section):
    """`[agent.kubernetes]`: a cluster that runs gangs as Jobs; its nodes are the agent's nodes."""

    #: How Pods get `agent.workers.folder`, in Kubernetes' words:
    #: `{ persistentVolumeClaim = { claimName = "tidegate" } }`.
    volume: dict[str, Any]
    #: Where that folder is in the Pods; unset: at the same path.
    mount: Path | None = None
    #: Where Jobs are made.
    namespace: str = "default"
    #: Unset: as KUBECONFIG says, else the account of the Pod that the agent runs in.
    kubeconfig: Path | None = None
    #: For jobs that name no image.
    image: str = "python:3.11-slim"
    #: What the device plugin calls the GPUs; empty: GPUs are CPU slots, one core each.
    gpu_resource: str = "nvidia.com/gpu"
    #: Requests and limits that go with each GPU: `{ cpu = "4", memory = "32Gi" }`.
    resources_per_gpu: dict[str, str] = Field(default_factory=dict)
    #: A headless Service that selects Pods by their label `tidegate.io/agent`, through which
    #: workers find each other; empty: they share one loopback.
    service: str = "tidegate"
    #: Added to each Pod's spec: `{ tolerations = [...] }`.
    pod: dict[str, Any] = Field(default_factory=dict)
    #: Added to each container.
    container: dict[str, Any] = Field(default_factory=dict)
    #: A gang whose Pods do not all run within this has failed.
    pending_timeout_s: Seconds = 900.0


class MeterSection(Section):
    """`[agent.meter]`: where telemetry of GPUs comes from."""

    #: auto: the driver if this machine has one, else the host's processors.
    source: Literal["auto", "nvml", "dcgm", "host"] = "auto"
    #: The exporter's page, as http://127.0.0.1:9400/metrics.
    dcgm_url: str = ""
    #: Between two looks; an exporter need not be asked more often than it collects.
    every_s: Seconds = 1.0

    @model_validator(mode="after")
    def _has_a_page(self) -> "MeterSection":
        if (self.source == "dcgm") != bool(self.dcgm_url):
            raise ValueError("dcgm_url: goes with source = 'dcgm'")
        return self


class ServerSection(Section):
    """`[[agent.load.server]]`: one server of the owner's, whose metrics are read."""

    #: For people.
    name: Name
    #: The node that it serves on.
    node: Name
    #: Its metrics, as http://127.0.0.1:8000/metrics.
    url: str
    #: GPUs that it holds.
    gpus: Count = 1


class LoadSection(Section):
    """`[agent.load]`: what the owner serves, read from its servers' metrics; see docs/meters.md."""

    server: tuple[ServerSection, ...]
    #: What the metrics mean; auto: recognised by their names.
    kind: Literal["auto", "vllm", "sglang", "tgi", "triton"] = "auto"
    #: Between two readings of a server.
    every_s: Seconds = 5.0
    #: What rates and latencies are means over.
    window_s: Seconds = 60.0
    #: What the owner promises, and how careful it is.
    demand: DemandSettings


class OwnerSection(Section):
    """`[agent.owner]`: how the owner leaves its nodes and gets them back; see docs/lending.md.

    Where nobody but training needs the GPUs, `[agent]` says `owner = "none"` instead. Real workers
    on an inference or edge pool need one of the two.
    """

    hooks: HookOptions | None = None
    webhook: WebhookOptions | None = None
    #: What the agent itself runs for the owner.
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
