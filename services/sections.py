"""The sections of a configuration: what each key means, its range and its default."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from bus.bridge_limits import BridgeLimits
from bus.contract import BusError
from bus.options import (
    COPIES,
    KAFKA_VARIABLE,
    KafkaOptions,
    MqttOptions,
    Tls,
    kafka_options,
    mqtt_options,
)
from cloud_agent.sections import KubernetesSection, SlurmSection
from runtime.core import Limits
from runtime.service import Schedule
from runtime.spool import SpoolLimit
from runtime.store import Durability
from schemas.events import PoolKind
from schemas.options import Count, Names, Seconds, Section, Share
from schemas.values import GpusOfNode, Name
from services.machine_sections import (
    LoadSection,
    MeterSection,
    OwnerSection,
    WorkersSection,
)

#: So many GPUs a report of an owner's load can name.
_GPUS_MAX = 1e6
_is_group = re.compile(r"[A-Za-z0-9-]{1,64}").fullmatch


def _word(given: SecretStr, file: Path | None) -> str:
    """Give a secret; from a file, its first line."""
    if file is None:
        return given.get_secret_value()
    return file.read_text(encoding="utf-8").partition("\n")[0].strip()


class _Login(Section):
    """Login and TLS of a connection."""

    KEY: ClassVar[str]  #: Of the section.
    #: The user name; empty: none.
    username: str = ""
    #: The password; better in `password_file`.
    password: SecretStr = SecretStr("")
    #: A file whose first line is the password.
    password_file: Path | None = None
    #: The certificate authorities to trust, PEM; empty: the system's. Any of these files turns TLS
    #: on.
    ca_file: str = ""
    #: The client certificate, PEM.
    cert_file: str = ""
    #: The private key of the client certificate, PEM.
    key_file: str = ""

    @model_validator(mode="after")
    def _one_password(self) -> "_Login":
        if self.password_file is not None and self.password.get_secret_value():
            raise ValueError("give password or password_file, not both")
        return self

    def secret(self) -> str:
        """Give the password.

        Raises:
            BusError: the file cannot be read.
        """
        try:
            return _word(self.password, self.password_file)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            at = f"{self.KEY}.password_file: {self.password_file}"
            raise BusError(
                f"{at} cannot be read: {why}; name a file that this user may read"
            ) from None

    def files(self) -> Tls | None:
        """Give the certificates, None if no file is named."""
        if not (self.ca_file or self.cert_file or self.key_file):
            return None
        return Tls(self.ca_file, self.cert_file, self.key_file)


class KafkaSection(_Login):
    """`[kafka]`: the cluster that scheduler, bridge and cloud agents speak to."""

    KEY: ClassVar[str] = "kafka"
    #: HOST:PORT[,HOST:PORT]; also TIDEGATE_KAFKA_BOOTSTRAP.
    bootstrap: str = ""
    #: A prefix of all topic names, so that several deployments can share a cluster.
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$")] = ""
    #: The cells in the order of their partitions, the same in every role; add new ones at the end.
    cells: Names = ("default",)
    #: The replication factor of topics that are created. With a single broker it must be 1; its
    #: disk then has the only copy of all decisions.
    replication: Annotated[int, Field(ge=1, le=2**15 - 1)] = COPIES
    #: Use TLS, with the system's authorities if no file is named.
    tls: bool = False
    #: The SASL mechanism for username and password; empty: no SASL.
    sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""

    @field_validator("cells")
    @classmethod
    def _each_once(cls, cells: tuple[str, ...]) -> tuple[str, ...]:
        if not cells or len(set(cells)) < len(cells):
            raise ValueError("name one cell at least, and each once")
        return cells

    def options(self) -> KafkaOptions:
        """Give them as the Kafka bus takes them.

        Raises:
            BusError: no server is named, or nobody who logs in.
        """
        if not self.bootstrap:
            raise BusError(
                "kafka.bootstrap is not set; name a server in the configuration or in "
                'TIDEGATE_KAFKA_BOOTSTRAP (on this machine: eval "$(compose/brokers env)")'
            )
        # Not before: a file may be for several roles, of which each says its own user.
        if self.sasl and not (self.username and (self.password_file or self.password)):
            raise BusError(
                "kafka.sasl needs kafka.username and kafka.password_file; give both, in the "
                "configuration or as TIDEGATE_KAFKA__USERNAME and so on, or leave sasl out"
            )
        return KafkaOptions(
            self.bootstrap,
            namespace=self.namespace,
            cells=self.cells,
            replication=self.replication,
            tls=self.files() or (Tls() if self.tls else None),
            sasl=self.sasl,
            username=self.username,
            password=self.secret(),
        )

    def at(self, address: str) -> KafkaOptions:
        """Give them for an address of the bus: what it does not say, this section does.

        Raises:
            BusError: the address is none, or names no server and neither does the section.
        """
        said = kafka_options(address, {KAFKA_VARIABLE: self.bootstrap})
        options = self.model_copy(update={"bootstrap": said.bootstrap}).options()
        return replace(options, namespace=said.namespace or options.namespace)


class MqttSection(_Login):
    """`[mqtt]`: the broker that edge agents and the bridge speak to."""

    KEY: ClassVar[str] = "mqtt"
    #: mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]; also TIDEGATE_MQTT_URL.
    url: SecretStr = SecretStr("")
    #: A prefix of all MQTT topics, so that several fleets can share a broker.
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]*$")] = ""
    #: How many messages of an agent may be unacknowledged.
    window: Annotated[int, Field(ge=1, le=100)] = 100
    #: The MQTT keep-alive interval.
    keepalive_s: Annotated[int, Field(ge=1, le=3600)] = 30
    #: How long the broker keeps the session of an agent that is away, with its messages; a bridge's
    #: is kept for a minute.
    session_s: Annotated[int, Field(ge=60, le=2**32 - 1)] = 24 * 3600

    def options(self) -> MqttOptions:
        """Give them as the MQTT client takes them.

        Raises:
            BusError: no broker is named, or the address is none.
        """
        url = self.url.get_secret_value()
        if not url:
            raise BusError(
                "mqtt.url is not set; name a broker in the configuration or in "
                'TIDEGATE_MQTT_URL (on this machine: eval "$(compose/brokers env)")'
            )
        try:
            found = mqtt_options(url)
        except BusError as error:
            raise BusError(f"mqtt.url (or TIDEGATE_MQTT_URL): {error}") from None
        return MqttOptions(
            found.host,
            found.port,
            namespace=self.namespace or found.namespace,
            tls=self.files() or found.tls,
            username=self.username or found.username,
            password=self.secret() or found.password,
            keepalive_s=self.keepalive_s,
            session_s=self.session_s,
            window=self.window,
        )


class HttpSection(Section):
    """`[http]`: where health and metrics are answered."""

    #: The address to listen on; 0.0.0.0 for all.
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    #: 0: any free port, which the log names. Unset: a scheduler's is 9464, a bridge's 9465, agents
    #: have none.
    port: Annotated[int, Field(ge=0, le=65_535)] | Literal["off"] | None = None


class LogSection(Section):
    """`[log]`: the log on standard error."""

    #: The lowest level that is logged; debug includes the log of the brokers' clients.
    level: Literal["debug", "info", "warning", "error"] = "info"
    #: One JSON object per line, or text for people.
    format: Literal["json", "text"] = "json"


class BridgeSection(BridgeLimits):
    """`[bridge]`: the name of this bridge, and its limits."""

    #: The name of this bridge, which must be unique: two of one name disconnect each other.
    name: Name = "bridge-0"
    #: The bridges of one group share the work. If devices are not trusted, keep its name secret.
    group: SecretStr = SecretStr("bridge")
    #: A file whose first line is the group's name.
    group_file: Path | None = None

    def group_name(self) -> str:
        """Give the group's name.

        Raises:
            OSError: the file cannot be read.
            BusError: it cannot be part of an MQTT address.
        """
        name = _word(self.group, self.group_file)
        if not _is_group(name):
            raise BusError("bridge.group: up to 64 letters, digits and - name a group")
        return name


class SimulatedSection(Section):
    """`[agent.simulated]`: simulated workers, GPUs and owner."""

    #: GPUs that the owner needs: a constant, or [second of the day, GPUs] steps.
    demand_gpus: Annotated[float, Field(ge=0.0, le=_GPUS_MAX)] | tuple[tuple[float, float], ...] = (
        0.0
    )
    #: The length of the day after which `demand_gpus` repeats.
    day_s: Seconds = 86_400.0
    #: The mean rate of worker failures.
    failures_per_gpu_hour: Annotated[float, Field(ge=0.0)] = 0.0
    #: The share of checkpoints that fail.
    checkpoint_failure_share: Share = 0.0
    #: By how much actual rates differ from the declared ones, as a share.
    rate_noise: Share = 0.07
    #: The seed of noise and failures.
    seed: int = 0
    #: How long the owner takes to leave a node.
    drain_s: Annotated[float, Field(ge=0.0)] = 20.0
    #: How long the owner takes until it serves on a node again.
    warm_up_s: Annotated[float, Field(ge=0.0)] = 30.0

    @model_validator(mode="after")
    def _steps_ascend(self) -> "SimulatedSection":
        if isinstance(self.demand_gpus, tuple):
            starts = [second for second, _ in self.demand_gpus]
            if not starts or starts != sorted(set(starts)):
                raise ValueError("demand_gpus: seconds of the day must ascend, each once")
            for _, gpus in self.demand_gpus:
                if not 0.0 <= gpus <= _GPUS_MAX:
                    raise ValueError(f"demand_gpus: {gpus:g} GPUs are not from 0 to {_GPUS_MAX:g}")
        return self


class AgentSection(Section):
    """`[agent]`: an agent and its nodes. A key that is unset takes the role's default."""

    #: The name of this agent, which must be unique: two of one name disconnect each other. Must be
    #: set.
    name: Name | None = None
    #: The file with the agent's state and spool. Unset: NAME.db in its working folder.
    state_file: Path | None = None
    #: A file to which it appends each action on GPUs, one JSON object per line.
    effects_file: Path | None = None
    #: The pool of its nodes. Must be set for a cluster; an edge server's is edge by default.
    pool: Name | None = None
    #: Who owns the GPUs. Must be set for a cluster; an edge server's is edge.
    pool_kind: PoolKind | None = None
    #: The nodes of a cluster; an edge server is one node with its agent's name.
    nodes: Names = ()
    #: GPUs of each node of a cluster; must be set.
    gpus_per_node: GpusOfNode | None = None
    #: GPUs of an edge server.
    gpus: GpusOfNode | None = None
    #: The type of the GPUs; `cpu`: slots of the processors. Unset, with processes: the driver's.
    gpu_type: Name | None = None
    #: Memory of one GPU, in MiB. Unset, with processes: the driver's. It has to be set where the
    #: driver does not say it, as where GPU and processor share their memory.
    gpu_memory_mib: Count | None = None
    #: Speed of the GPUs relative to those for which jobs declare their rates. Unset: 1; for an edge
    #: server 0.4, whatever GPUs it has. How fast a job really is there is learned as it runs.
    speed_factor: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    #: Transfer rate of checkpoints, for the scheduler's plans and timeouts. Unset: 1000; for an
    #: edge server 10.
    transfer_mib_per_s: Annotated[float, Field(gt=0.0)] | None = None
    #: What the stored state outlives. Unset: a loss of power. With `process_crash`, a command that
    #: was carried out just before one may be carried out again.
    durability: Durability | None = None
    #: The scheduler's public keys by key id: base64 of 32 bytes, or the path of a PEM file.
    trusted_keys: dict[str, str] = Field(default_factory=dict)
    schedule: Schedule = Field(default_factory=Schedule)
    limits: Limits = Field(default_factory=Limits)
    spool: SpoolLimit | None = None
    #: How workers run, with [agent.workers]: as processes of this machine, or on a cluster. With
    #: `simulated`, jobs are reported as completed that never ran. Must be set.
    runs: Literal["simulated", "processes", "slurm", "kubernetes"] | None = None
    simulated: SimulatedSection = Field(default_factory=SimulatedSection)
    workers: WorkersSection | None = None
    slurm: SlurmSection = Field(default_factory=SlurmSection)
    kubernetes: KubernetesSection | None = None
    meter: MeterSection = Field(default_factory=MeterSection)
    load: LoadSection | None = None
    #: Who else needs the GPUs: [agent.owner], or `"none"`: nobody, they can always be lent. Must be
    #: set where real workers run on an inference or edge pool.
    owner: OwnerSection | Literal["none"] | None = None

    @model_validator(mode="after")
    def _workers_fit(self) -> "AgentSection":
        if self.runs in (None, "simulated") and self.workers is not None:
            raise ValueError(
                "workers: set agent.runs to processes, slurm or kubernetes, or take "
                "[agent.workers] out"
            )
        if self.runs not in (None, "simulated") and self.workers is None:
            raise ValueError(
                f"workers: [agent.workers] is missing: runs = {self.runs!r} needs its folder and "
                "checkpoints"
            )
        if (self.runs == "kubernetes") != (self.kubernetes is not None):
            raise ValueError("kubernetes: [agent.kubernetes] goes with runs = 'kubernetes'")
        if (self.load is None) != (not isinstance(self.owner, OwnerSection)):
            raise ValueError("owner: [agent.load] and [agent.owner] go together")
        return self
