"""An agent for one edge server, which is its own lender and may be offline for hours.

Offline, the server works on until its lease ends, through reboots too, then saves and stops; what
it has to say waits in its spool and is published, in order, when the link is back: docs/offline.md.
"""

from dataclasses import dataclass, field
from pathlib import Path

from bus.clock import Clock
from bus.contract import Link
from runtime.build import MachineMaker, Options, build, check_nodes
from runtime.core import NodeSpec
from runtime.service import AgentService
from runtime.spool import SpoolLimit


def _edge_options() -> Options:
    # Disks are small at the edge: about a week of telemetry.
    return Options(spool=SpoolLimit(20_000, 16 * 1024 * 1024))


@dataclass(frozen=True, slots=True)
class EdgeAgentConfig:
    """What there is to say about an edge server; a value out of range raises and names the field.

    Node and agent have one name.
    """

    name: str
    pool: str = "edge"
    gpus: int = 1
    gpu_type: str = "L4"
    gpu_memory_mib: int = 24_576
    #: Training speed of one GPU here over one of the training pool.
    speed_factor: float = 0.4
    transfer_mib_per_s: float = 10.0
    options: Options = field(default_factory=_edge_options)

    def __post_init__(self) -> None:
        check_nodes(self.name, (self.spec(),))

    def spec(self) -> NodeSpec:
        """The server, as its birth reports it."""
        return NodeSpec(
            self.name,
            self.pool,
            "edge",
            self.gpus,
            self.gpu_type,
            self.gpu_memory_mib,
            self.speed_factor,
            self.transfer_mib_per_s,
        )


def build_agent(
    config: EdgeAgentConfig, bus: Link, clock: Clock, state_file: Path | str, make: MachineMaker
) -> AgentService:
    """Put the agent together; see `runtime.build.build` for what can go wrong."""
    return build(config.name, (config.spec(),), config.options, bus, clock, state_file, make)
