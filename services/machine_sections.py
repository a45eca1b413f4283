"""The sections of an agent whose workers are real: what each key means, its range and default."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from runtime.executors.sections import MachineOptions
from runtime.metering.demand import DemandSettings
from runtime.metering.servers import server_of
from runtime.owners import (
    HookOptions,
    ProtectTimes,
    ReplicaOptions,
    ReplicaSpec,
    Retry,
    WebhookOptions,
)
from schemas.options import AbsolutePath, Count, Names, Rate, Seconds, Section
from schemas.values import Name


class WorkersSection(MachineOptions):
    """`[agent.workers]`: real workers of this machine; docs/jobs.md says what jobs see of it."""

    #: The folder of all runs, with their logs and local checkpoints. An absolute path.
    folder: AbsolutePath
    #: Where checkpoints become durable: file:///srv/checkpoints; s3://bucket/folder needs
    #: `pip install tidegate[s3]`, too. The same for all agents that a job may move between.
    checkpoints: str
    #: The rate limit of all checkpoint transfers together.
    rate_mib_per_s: Rate | None = None
    #: The GPUs in order, by UUID (of MIG devices, too) or index. Unset: 0, 1, ...; with gpu_type
    #: cpu they are CPU slots.
    gpu_ids: Names = ()
    #: The user of workers. `tenant`: one user per tenant, with its own folders; the agent must be
    #: root. `none`: the agent's user; then whoever may submit a job can read what the agent can:
    #: its keys, the store's login, other tenants' runs.
    isolation: Literal["tenant", "none"] = "tenant"
    #: The first user id for tenants; the machine must have no account from there on. Each agent of
    #: a machine needs another, further away than it has tenants, or theirs would share users.
    first_uid: Annotated[int, Field(ge=1000, lt=2**31)] = 1_900_000_000
    #: More groups of those users, such as the one that may use the GPUs.
    groups: Names = ()


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
    #: Its node. Unset: it answers also while the node is lent, as a gateway in front of the server
    #: does; of an agent with one node alone.
    node: Name | None = None
    #: Its metrics page, such as http://127.0.0.1:8000/metrics.
    url: str
    #: How many GPUs it uses.
    gpus: Count = 1


class LoadSection(Section):
    """`[agent.load]`: what the owner serves, read from its servers' metrics; see docs/meters.md."""

    server: tuple[ServerSection, ...]
    #: The kind of the servers; auto: recognised by the names of their metrics.
    kind: Literal["auto", "vllm", "sglang", "tgi", "triton"] = "auto"
    #: The names of their metrics, of servers of another kind; docs/meters.md has an example.
    mapping: dict[str, Any] | None = None
    #: How often each server is scraped.
    every_s: Seconds = 5.0
    #: The window over which rates and latencies are measured.
    window_s: Seconds = 60.0
    #: How the GPUs needed follow from the load.
    demand: DemandSettings

    @model_validator(mode="after")
    def _is_a_mapping(self) -> "LoadSection":
        if self.mapping is not None:
            if self.kind != "auto":
                raise ValueError("kind: a mapping says what the servers are; take kind out")
            server_of(self.mapping)
        return self


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
