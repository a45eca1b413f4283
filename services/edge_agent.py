"""`tidegate edge-agent`: looks after one edge server, over MQTT."""

from dataclasses import replace

from bus.clock import SystemClock
from bus.mqtt import MqttLink
from edge_agent.agent import EdgeAgentConfig, build_agent
from services.agents import (
    AgentRole,
    machine_of,
    machine_settings,
    of_driver,
    options_of,
    state_file,
)
from services.backends import open_bus_of
from services.config import Config, ConfigError
from services.logs import Log
from services.process import serve


def main(config: Config) -> int:
    """Run an edge server's agent until it is told to end; give the exit code."""
    said = machine_settings(
        config,
        needed=("name",),
        optional=("pool", "gpus"),
        foreign=("nodes", "gpus_per_node"),
        has_flags=True,
    )
    if config.agent.pool_kind not in (None, "edge"):
        raise ConfigError("agent.pool_kind: an edge server's is edge; a cluster has cloud-agent")
    if config.agent.runs in ("slurm", "kubernetes"):
        raise ConfigError(f"agent.runs: {config.agent.runs} is a cluster's; say processes")
    usual = EdgeAgentConfig(**of_driver(config.agent) | said)
    about = replace(usual, options=options_of(config, usual.options))
    # On a single machine an edge agent may do without MQTT.
    on_file, clock = config.bus.startswith("sqlite:"), SystemClock()
    options = None if on_file else config.mqtt.options()

    def make(log: Log) -> AgentRole:
        machine, real = machine_of(config, lendable=True)
        if options is None:
            bus = open_bus_of(config, None, clock, config.cell)
            agent = build_agent(about, bus, clock, state_file(config), machine)
            return AgentRole("edge-agent", agent, bus, clock, config, log, machine=real)
        link = MqttLink.open(options, clock, about.name, config.cell)
        agent = build_agent(about, link, clock, state_file(config), machine)
        return AgentRole(
            "edge-agent", agent, link, clock, config, log, line=link.client, machine=real
        )

    return serve("edge-agent", about.name, config, make)
