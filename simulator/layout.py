"""What never changes of a fleet: nodes by name, their pools, and how far it is between them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scheduler.policies.interface import Ints, Kind, Pools
from simulator.physics.base import Cluster, Placement
from simulator.pools import SimulatedPool, node_ids

#: The training pool that every run has, and the prefix of its nodes' names.
TRAIN, TRAIN_NODE = "train", "node"
#: What stands for memory without end, and for a path of any width.
_MEMORY_MOST, _PATH_MOST = 2**40, 1e6


class Layout:
    """The nodes of all pools. A *site* is where a checkpoint may be: an agent's nodes."""

    def __init__(self, cluster: Cluster, pools: tuple[SimulatedPool, ...] = ()) -> None:
        """Name the nodes of the training pool, and of those beside it.

        Raises:
            ValueError: Two pools, two nodes, or two pools' agents have one name.
        """
        train = SimulatedPool(
            TRAIN,
            Kind.TRAINING,
            cluster.nodes,
            cluster.gpus_per_node,
            memory_mib=cluster.memory_mib,
            transfer_mib_per_s=cluster.transfer_mib_per_s,
            agents=cluster.agents,
        )
        self.all_pools = every = (train, *pools)
        prefixes = [TRAIN_NODE, *(pool.id for pool in pools)]
        named = sorted(
            (name, m) for m, pool in enumerate(every) for name in node_ids(prefixes[m], pool.nodes)
        )
        self.ids = tuple(name for name, _ in named)
        self.at = {name: node for node, name in enumerate(self.ids)}
        self.pool_at = {pool.id: m for m, pool in enumerate(every)}
        if len(self.at) < len(named) or len(self.pool_at) < len(every):
            raise ValueError("pools: two of them, or of their nodes, have the same name")
        self.pool: Ints = np.array([m for _, m in named], dtype=np.int64)
        self.gpus: Ints = np.array([every[m].gpus_per_node for _, m in named], dtype=np.int64)
        self._agent, self._site = self._agents()  # of each node
        whose = set(zip(self._agent, self.pool.tolist(), strict=True))
        if len(whose) > len(set(self._agent)):
            raise ValueError("pools: agents of two of them have the same name")
        self.total = int(self.gpus.sum())
        self.pools = Pools(
            ids=tuple(pool.id for pool in every),
            kind=np.array([int(pool.kind) for pool in every]),
            speed=np.array([pool.speed for pool in every]),
            gpu_memory_mib=np.array([pool.memory_mib for pool in every]),
            transfer_mib_per_s=np.array([pool.transfer_mib_per_s for pool in every]),
        )

    def _agents(self) -> tuple[list[str], list[int]]:
        """Name each node's agent, and number its site.

        A pool of one agent is a site by its own number; else each agent's nodes are one, numbered
        after all pools by the first of them.
        """
        agents, sites = list[str](), list[int]()
        before, first = Counter[int](), dict[str, int]()
        for node, m in enumerate(self.pool.tolist()):
            pool, agent, site = self.all_pools[m], self.all_pools[m].id, m
            if pool.kind == Kind.EDGE or pool.agents > 1:
                part = before[m] * pool.agents // pool.nodes
                agent = self.ids[node] if pool.kind == Kind.EDGE else f"{pool.id}-{part}"
                site = len(self.all_pools) + first.setdefault(agent, node)
            agents.append(agent)
            sites.append(site)
            before[m] += 1
        return agents, sites

    def site(self, placement: Placement) -> int:
        """Number the site that a gang is at."""
        return self._site[placement[0][0]]

    def pool_of(self, site: int) -> int:
        """Return the pool that a site is in."""
        many = len(self.all_pools)
        return site if site < many else int(self.pool[site - many])

    def is_edge(self, site: int) -> bool:
        """Say whether a site is an edge server."""
        return self.all_pools[self.pool_of(site)].kind == Kind.EDGE

    def speed(self, site: int, affinity: Mapping[str, float]) -> float:
        """Return the speed at a site of a job that has its own speed in some pools."""
        pool = self.all_pools[self.pool_of(site)]
        return affinity.get(pool.id, pool.speed)

    def node_pool(self, node: int) -> SimulatedPool:
        """Return the pool that a node is in."""
        return self.all_pools[int(self.pool[node])]

    def agent_of(self, node: int) -> str:
        """Name a node's agent: each edge server has its own; a pool has one, or `agents`."""
        return self._agent[node]

    def placement(self, allocation: Mapping[str, Sequence[int]]) -> Placement:
        """Count the GPUs that are held on each node."""
        return tuple(sorted((self.at[node], len(gpus)) for node, gpus in allocation.items()))

    def spec(self, node: int) -> dict[str, Any]:
        """Describe a node as its agent does, by the names of `NodeSpec` and `NodeBorn`."""
        pool = self.node_pool(node)
        return {
            "node": self.ids[node],
            "pool": pool.id,
            "pool_kind": pool.kind.name.lower(),
            "gpu_count": pool.gpus_per_node,
            "gpu_type": "simulated",
            "gpu_memory_mib": int(min(pool.memory_mib, _MEMORY_MOST)),
            "speed_factor": pool.speed,
            "transfer_mib_per_s": min(pool.transfer_mib_per_s, _PATH_MOST),
        }

    def travel_s(self, mib: float, before: int, after: int) -> float:
        """Say how long a checkpoint takes from site to site."""
        rate = self.pools.transfer_mib_per_s
        return mib / float(min(rate[self.pool_of(before)], rate[self.pool_of(after)]))
