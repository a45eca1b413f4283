"""Until when the gangs of a silent node may still run: the end of its lease, with a margin.

What the engine does at that moment is in `due`. How an agent ends its gangs then is in
`runtime.core.agent`, and, if the agent itself is gone, in `runtime.executors.shim`.

A leader may give shorter leases than the one before it gave. Those that agents hold already do not
become shorter by that: until when they may last is recorded with the new leader.

An agent keeps the longest lease it was ever given. One with nodes of several kinds is given the
shorter one, but may hold a long one still, of when all its nodes were of edge pools.
"""

from scheduler.core.settings import Settings, settings_from
from scheduler.core.state import ClusterState, Node

#: By kind of pool, the key in the recorded settings under which longer leases of before are kept.
_KEPT = {"training": "lease_kept_until_s", "edge": "edge_lease_kept_until_s"}


def lease_end_s(state: ClusterState, settings: Settings, node: Node, heard_s: float) -> float:
    """Give when the workers of a node that was last heard at `heard_s` have surely ended."""
    kinds = tuple(_KEPT) if _may_hold_edge_lease(state, node) else ("training",)
    kept_s = max(state.leader.settings.get(_KEPT[kind], 0.0) for kind in kinds)
    lease_s = max(settings.lease_of(kind) for kind in kinds)
    return max(heard_s + lease_s, kept_s) + settings.lease_margin_s


def _may_hold_edge_lease(state: ClusterState, node: Node) -> bool:
    """Whether its agent has a node of an edge pool."""
    edge = [pool for pool in state.pools.values() if pool.kind == "edge"]
    agents = (state.nodes[name].agent for pool in edge for name in pool.nodes)
    return any(pool.id == node.pool for pool in edge) or node.agent in agents


def kept_leases(state: ClusterState, settings: Settings) -> dict[str, float]:
    """Give until when leases may last that are longer than those of these new settings."""
    former = settings_from(state.leader.settings)
    found: dict[str, float] = {}
    for kind, key in _KEPT.items():
        kept_s = state.leader.settings.get(key, 0.0)
        if state.leader.policy and former.lease_of(kind) > settings.lease_of(kind):
            kept_s = max(kept_s, state.now_s + former.lease_of(kind))
        if kept_s > state.now_s:
            found[key] = kept_s
    return found
