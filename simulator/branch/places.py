"""The nodes of a recorded cell, as gangs see them: places by number, more of which may come."""

from collections.abc import Mapping, Sequence
from typing import cast

from scheduler.core.state import ClusterState, Job, site_id
from schemas.events import NodeBorn, PoolKind
from simulator.physics.base import Placement

#: A node as it is declared; its pool's kind is an edge pool's or not.
Place = NodeBorn


class Places:
    """Where gangs run. A *site* is what one agent has in a pool, or one edge server."""

    def __init__(self, state: ClusterState) -> None:
        """Take the nodes of a state."""
        self.nodes: list[Place] = []
        self.at: dict[str, int] = {}
        self._sites: dict[str, int] = {}
        self._named: list[str] = []
        self._first: dict[int, int] = {}  # by site, a node of it
        for name in sorted(state.nodes):
            node = state.nodes[name]
            self.add(
                NodeBorn.model_construct(
                    node=node.id,
                    agent=node.agent,
                    pool=node.pool,
                    pool_kind=cast(PoolKind, state.pools[node.pool].kind),
                    gpu_count=node.gpu_count,
                    gpu_type=node.gpu_type,
                    gpu_memory_mib=node.gpu_memory_mib,
                    speed_factor=node.speed_factor,
                    transfer_mib_per_s=node.transfer_mib_per_s,
                    held=[],
                    loan=node.loan,
                )
            )

    def add(self, born: NodeBorn) -> None:
        """Take in a node, or what it says anew."""
        number = self.at.setdefault(born.node, len(self.nodes))
        self.nodes[number : number + 1] = [born]
        site = self._sites.setdefault(_site(born), len(self._sites))
        self._first.setdefault(site, number)

    def __getitem__(self, node: str) -> Place:
        """Give a node by name."""
        return self.nodes[self.at[node]]

    def of_agent(self, agent: str) -> list[Place]:
        """List the nodes that an agent speaks for."""
        return [place for place in self.nodes if place.agent == agent]

    def in_pool(self, pool: str) -> list[Place]:
        """List the nodes of a pool, by name."""
        return sorted((one for one in self.nodes if one.pool == pool), key=lambda one: one.node)

    def placement(self, allocation: Mapping[str, Sequence[int]]) -> Placement:
        """Count the GPUs that are held on each node."""
        return tuple(sorted((self.at[node], len(gpus)) for node, gpus in allocation.items()))

    def site(self, placement: Placement) -> int:
        """Number the site that a gang is at."""
        return self._sites[_site(self.nodes[placement[0][0]])]

    def site_of(self, job: Job) -> int:
        """Number the site where a job has its checkpoint, as far as is known; -1: it has none."""
        held = job.allocation or job.leaving
        if held:
            return self.site(self.placement(held))
        agents = {*job.agents}
        return next((self._sites[_site(one)] for one in self.nodes if one.agent in agents), -1)

    def speed(self, site: int, affinity: Mapping[str, float]) -> float:
        """Return the speed at a site of a job that has its own speed in some pools."""
        first = self.nodes[self._first[site]]
        return affinity.get(first.pool, first.speed_factor)

    def agent_of(self, node: int) -> str:
        """Name a node's agent."""
        return self.nodes[node].agent

    def travel_s(self, mib: float, before: int, after: int) -> float:
        """Say how long a checkpoint takes from site to site."""
        rates = (self.nodes[self._first[site]].transfer_mib_per_s for site in (before, after))
        return mib / min(rates)


def _site(node: Place) -> str:
    return f"edge {node.node}" if node.pool_kind == "edge" else site_id(node.pool, node.agent)
