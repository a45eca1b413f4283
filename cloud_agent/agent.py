"""An agent for a cluster: many like nodes of one pool, and their owner if they have one."""

from dataclasses import dataclass, field
from pathlib import Path

from bus.clock import Clock
from bus.contract import Bus
from runtime.build import MachineMaker, Options, build, check_nodes
from runtime.core import NodeSpec
from runtime.service import AgentService
from schemas.events import PoolKind


@dataclass(frozen=True, slots=True)
class CloudAgentConfig:
    """What there is to say about a cluster; a value out of range raises and names the field."""

    name: str
    pool: str
    pool_kind: PoolKind
    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_type: str = "A100"
    gpu_memory_mib: int = 81_920
    #: Training speed of one GPU here over one of the training pool.
    speed_factor: float = 1.0
    transfer_mib_per_s: float = 1000.0
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        if self.pool_kind not in ("training", "inference"):
            raise ValueError(
                f"pool_kind: a cluster is 'training' or 'inference', not {self.pool_kind!r}; "
                "an edge server has an agent of its own"
            )
        check_nodes(self.name, self.specs())

    def specs(self) -> tuple[NodeSpec, ...]:
        """The nodes, as births report them."""
        return tuple(
            NodeSpec(
                node,
                self.pool,
                self.pool_kind,
                self.gpus_per_node,
                self.gpu_type,
                self.gpu_memory_mib,
                self.speed_factor,
                self.transfer_mib_per_s,
            )
            for node in sorted(self.nodes)
        )


def build_agent(
    config: CloudAgentConfig, bus: Bus, clock: Clock, state_file: Path | str, make: MachineMaker
) -> AgentService:
    """Put the agent together; see `runtime.build.build` for what can go wrong."""
    return build(config.name, config.specs(), config.options, bus, clock, state_file, make)
