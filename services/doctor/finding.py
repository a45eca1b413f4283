"""What a check says: what was found, how bad it is, and what to do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bus.clock import Clock
from services.agents import state_file as state_file_of
from services.config import Config
from services.install.layout import STATE
from services.install.systemd import Unit

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found about one thing."""

    check: str
    verdict: Verdict
    found: str
    #: What to do; empty where nothing need be done.
    fix: str = ""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check goes by: the configuration, and the agent's service if there is one."""

    config: Config
    clock: Clock
    #: The configuration's file; None where flags say all.
    file: Path | None = None
    #: The installed service, where the configuration is that of one.
    unit: Unit | None = None
    #: Whether an agent of this configuration runs here now.
    is_running: bool = False
    #: What that agent's readiness probe answers.
    readiness: dict[str, Any] | None = None
    #: How many commands that agent has refused since its start, by why.
    refused: Mapping[str, int] = field(default_factory=dict)

    @property
    def state_file(self) -> Path | None:
        """The agent's state file; None where the configuration names no agent."""
        if self.config.agent.name is None:
            return None
        # A relative path is relative to the folder that the agent starts in.
        return (Path.cwd() if self.unit is None else STATE) / state_file_of(self.config)

    @property
    def is_agents(self) -> bool:
        """Whether it is an agent's: it has [agent], or names an MQTT broker and no Kafka."""
        config = self.config
        has_kafka = bool(config.kafka.bootstrap) or config.bus != "kafka:"
        has_mqtt = bool(config.mqtt.url.get_secret_value())
        return bool(config.agent.model_fields_set) or (has_mqtt and not has_kafka)

    @property
    def is_cluster(self) -> bool:
        """Whether it is a cluster's agent: it says what no edge server's may."""
        section = self.config.agent
        return (
            bool(section.nodes)
            or section.gpus_per_node is not None
            or section.pool_kind not in (None, "edge")
            or section.runs in ("slurm", "kubernetes")
        )

    @property
    def brokers(self) -> tuple[str, ...]:
        """The sections of brokers that are in use; a file for several roles may have more."""
        if self.config.bus.startswith("sqlite:"):
            return ()
        if not self.is_agents:
            return ("kafka", "mqtt")
        return ("kafka",) if self.is_cluster else ("mqtt",)


#: Checks one thing; it may block, and is abandoned when it does so for too long.
Check = Callable[[CheckContext], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Reporter:
    """Makes the findings of one check."""

    check: str

    def ok(self, found: str) -> Finding:
        """Say that something is as it should be."""
        return Finding(self.check, "ok", found)

    def warning(self, found: str, fix: str) -> Finding:
        """Say that something may cause trouble later."""
        return Finding(self.check, "warning", found, fix)

    def problem(self, found: str, fix: str) -> Finding:
        """Say that something does not work."""
        return Finding(self.check, "problem", found, fix)
