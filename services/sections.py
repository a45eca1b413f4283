"""The sections of a configuration: what each key means, its range and its default."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from bus.bridge_limits import BridgeLimits
from bus.contract import BusError
from bus.options import COPIES, KafkaOptions, MqttOptions, Tls, mqtt_options
from runtime.core import Limits
from runtime.service import Schedule
from runtime.spool import SpoolLimit
from runtime.store import Durability
from schemas.events import PoolKind
from schemas.values import Name
from services.keys import Count, Names, Seconds, Section
from services.machine_sections import (
    KubernetesSection,
    LoadSection,
    MeterSection,
    OwnerSection,
    SlurmSection,
    WorkersSection,
)

_is_group = re.compile(r"[A-Za-z0-9-]{1,64}").fullmatch


def _word(given: SecretStr, file: Path | None) -> str:
    """Give a secret; from a file, its first line."""
    if file is None:
        return given.get_secret_value()
    return file.read_text(encoding="utf-8").partition("\n")[0].strip()


class _Login(Section):
    """How to be let in, and how the connection is kept private."""

    #: The name to be let in under; empty: none is given.
    username: str = ""
    #: Better kept in a file.
    password: SecretStr = SecretStr("")
    #: A file whose first line is the password.
    password_file: Path | None = None
    #: Authorities to trust, PEM; empty: the system's. Naming a file turns TLS on.
    ca_file: str = ""
    #: A certificate of one's own, PEM.
    cert_file: str = ""
    #: The private key of that certificate, PEM.
    key_file: str = ""

    @model_validator(mode="after")
    def _one_password(self) -> "_Login":
        if self.password_file is not None and self.password.get_secret_value():
            raise ValueError("give password or password_file, not both")
        return self

    def secret(self) -> str:
        """Give the password.

        Raises:
            OSError: the file cannot be read.
        """
        return _word(self.password, self.password_file)

    def files(self) -> Tls | None:
        """Give the certificates, None if no file is named."""
        if not (self.ca_file or self.cert_file or self.key_file):
            return None
        return Tls(self.ca_file, self.cert_file, self.key_file)


class KafkaSection(_Login):
    """`[kafka]`: the cluster that scheduler, bridge and cloud agents speak to."""

    #: HOST:PORT[,HOST:PORT]; TIDEGATE_KAFKA_BOOTSTRAP says the same.
    bootstrap: str = ""
    #: Goes before the name of each topic, so that several deployments may share a cluster.
    namespace: str = ""
    #: The cells in the order of their partitions, alike in every role; new ones go to the end.
    cells: Names = ("default",)
    #: Copies of each topic that is made. Say 1 where there is one broker: its disk is then all that
    #: keeps what was decided.
    replication: Count = COPIES
    #: TLS, with the system's authorities if no file is named.
    tls: bool = False
    #: How username and password are sent; empty: they are not.
    sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""

    def options(self) -> KafkaOptions:
        """Give them as the Kafka bus takes them.

        Raises:
            BusError: no server is named.
        """
        if not self.bootstrap:
            raise BusError(
                "kafka.bootstrap is not set; name a server in the configuration or in "
                'TIDEGATE_KAFKA_BOOTSTRAP (on this machine: eval "$(compose/brokers env)")'
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


class MqttSection(_Login):
    """`[mqtt]`: the broker that edge agents and the bridge speak to."""

    #: Address, mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]; TIDEGATE_MQTT_URL says the same.
    url: SecretStr = SecretStr("")
    #: Goes before each address, so that several fleets may share a broker.
    namespace: str = ""
    #: So many messages of an agent may be unconfirmed.
    window: Annotated[int, Field(ge=1, le=100)] = 100
    #: Silence after which one side asks whether the other is still there.
    keepalive_s: Annotated[int, Field(ge=1, le=3600)] = 30
    #: The broker keeps what is meant for an agent this long while it is away; a bridge's, a minute.
    session_s: Annotated[int, Field(ge=60)] = 24 * 3600

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
        found = mqtt_options(url)
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
    host: str = "127.0.0.1"
    #: 0: any free one, which the log names. Unset: a scheduler's is 9464, a bridge's 9465, agents
    #: have none.
    port: Annotated[int, Field(ge=0, le=65_535)] | Literal["off"] | None = None


class LogSection(Section):
    """`[log]`: what is said on standard error."""

    #: The least that is said; at debug also what the brokers' clients say.
    level: Literal["debug", "info", "warning", "error"] = "info"
    #: A JSON object a line, or text for people.
    format: Literal["json", "text"] = "json"


_LIMITS = BridgeLimits()


class BridgeSection(Section):
    """`[bridge]`: who this bridge is, and what bounds it."""

    #: Of this bridge alone: two of one name cut each other off.
    name: Name = "bridge-0"
    #: The bridges of one group share the work. Where devices are not trusted, its name is a secret.
    group: SecretStr = SecretStr("bridge")
    #: A file whose first line is the group's name.
    group_file: Path | None = None
    #: Messages held until Kafka has them; above the MQTT broker's `max_inflight_messages`.
    in_flight_max: int = _LIMITS.in_flight_max
    #: Messages stored together, up; records taken together, down. Below `in_flight_max`.
    batch_max: int = _LIMITS.batch_max
    #: Messages that each node may send a second, in the long run.
    rate_per_s: float = _LIMITS.rate_per_s
    #: Messages that each node may send at once.
    burst: float = _LIMITS.burst
    #: Bytes that each node may send a second, in the long run.
    bytes_per_s: float = _LIMITS.bytes_per_s
    #: Bytes that each node may send at once; at least the largest message.
    bytes_burst: float = _LIMITS.bytes_burst
    #: Dead letters kept of each node; the rest are only counted.
    letters_per_s: float = _LIMITS.letters_per_s
    #: Nodes whose use is remembered; of more, those silent longest are forgotten.
    nodes_max: int = _LIMITS.nodes_max
    #: After a failure of Kafka or of the connection, try again this much later.
    retry_s: float = _LIMITS.retry_s
    #: A cell that takes nothing for so long keeps the others of a bridge waiting no more.
    stuck_s: float = _LIMITS.stuck_s

    @model_validator(mode="after")
    def _can_be_kept(self) -> "BridgeSection":
        self.limits()
        return self

    def limits(self) -> BridgeLimits:
        """Give what bounds the bridge."""
        return BridgeLimits(**self.model_dump(exclude={"name", "group", "group_file"}))

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
    """`[agent.simulated]`: workers, GPUs and their owner as closed forms of time."""

    #: GPUs that the owner needs: always, or from each second of the (simulated) day on.
    demand_gpus: float | tuple[tuple[float, float], ...] = 0.0
    #: How long the day is that `demand_gpus` repeats after.
    day_s: Seconds = 86_400.0
    #: Failures of workers, as an average.
    failures_per_gpu_hour: Annotated[float, Field(ge=0.0)] = 0.0
    #: The share of checkpoints that fail.
    checkpoint_failure_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    #: How much real rates differ from what the job declares.
    rate_noise: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.07
    #: The same seed, the same noise and failures.
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
        return self


class AgentSection(Section):
    """`[agent]`: what an agent looks after. A key that is unset takes the role's default."""

    #: Of this agent alone: two of one name cut each other off. Must be set.
    name: Name | None = None
    #: The agent's memory; one file for each agent. Unset: NAME.db in the folder it starts in.
    state_file: Path | None = None
    #: Where it records, a JSON object a line, each effect that it carries out.
    effects_file: Path | None = None
    #: The pool that its nodes belong to. A cluster's must be set; an edge server's is edge.
    pool: Name | None = None
    #: Who owns the GPUs. A cluster's must be set; an edge server's is edge.
    pool_kind: PoolKind | None = None
    #: A cluster's nodes; an edge server is one node, named like its agent.
    nodes: Names = ()
    #: Of each of a cluster's nodes; must be set.
    gpus_per_node: Count | None = None
    #: Of an edge server.
    gpus: Count | None = None
    #: What the GPUs are.
    gpu_type: Name | None = None
    #: Memory of one GPU.
    gpu_memory_mib: Count | None = None
    #: How fast the GPUs are, against those that jobs declare their rates for.
    speed_factor: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    #: How fast checkpoints are moved, for the scheduler's plans and patience. Unset: 1000.
    transfer_mib_per_s: Annotated[float, Field(gt=0.0)] | None = None
    #: What the agent's memory outlives.
    durability: Durability | None = None
    #: By key id, the scheduler's public key: base64 of 32 bytes, or the path of a PEM file.
    trusted_keys: dict[str, str] = Field(default_factory=dict)
    schedule: Schedule = Field(default_factory=Schedule)
    limits: Limits = Field(default_factory=Limits)
    spool: SpoolLimit | None = None
    #: What runs the workers, as [agent.workers] says: processes of this machine, or a cluster. One
    #: that is `simulated` reports jobs as completed that nobody ran. Must be set.
    runs: Literal["simulated", "processes", "slurm", "kubernetes"] | None = None
    simulated: SimulatedSection = Field(default_factory=SimulatedSection)
    workers: WorkersSection | None = None
    slurm: SlurmSection = Field(default_factory=SlurmSection)
    kubernetes: KubernetesSection | None = None
    meter: MeterSection = Field(default_factory=MeterSection)
    load: LoadSection | None = None
    #: Who else needs the GPUs, as [agent.owner] says. `"none"`: nobody, they are always to be lent.
    #: Must be set where real workers run on an inference or edge pool.
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
