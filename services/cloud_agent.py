"""`tidegate cloud-agent`: looks after a cluster's nodes, over Kafka or a file."""

from bus.clock import SystemClock
from cloud_agent.agent import CloudAgentConfig, build_agent
from runtime.build import Options
from services.agents import (
    AgentRole,
    machine_of,
    machine_settings,
    of_driver,
    options_of,
    state_file,
)
from services.backends import kafka_of, open_bus_of
from services.config import Config
from services.logs import Log
from services.probe import BusProbe
from services.process import serve


def main(config: Config) -> int:
    """Run a cluster's agent until it is told to end; give the exit code."""
    said = machine_settings(
        config,
        needed=("name", "pool", "pool_kind", "nodes", "gpus_per_node"),
        foreign=("gpus",),
        has_flags=True,
    )
    about = CloudAgentConfig(
        **of_driver(config.agent) | said, options=options_of(config, Options())
    )
    options, clock = kafka_of(config), SystemClock()

    def make(log: Log) -> AgentRole:
        bus = open_bus_of(config, options, clock, config.cell)
        machine, real = machine_of(config, lendable=about.pool_kind != "training")
        agent = build_agent(about, bus, clock, state_file(config), machine)
        name = "the file of the bus" if options is None else f"Kafka at {options.bootstrap}"
        probe = BusProbe(bus, name)
        return AgentRole("cloud-agent", agent, bus, clock, config, log, probe=probe, machine=real)

    return serve("cloud-agent", about.name, config, make)
