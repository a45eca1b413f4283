"""When what a silent node runs has surely ended: leases, also those of leaders before.

A leader may give shorter leases than the one before it gave. Those that agents hold already do not
become shorter by that: until when they may last is recorded with the new leader.
"""

from scheduler.core.settings import Settings, settings_from
from scheduler.core.state import ClusterState, Node

#: By kind of pool, the key in the recorded settings under which longer leases of before are kept.
_KEPT = {"training": "lease_kept_until_s", "edge": "edge_lease_kept_until_s"}


def lease_end_s(state: ClusterState, settings: Settings, node: Node, heard_s: float) -> float:
    """Give when the workers of a node that was last heard at `heard_s` have surely ended."""
    kind = "edge" if state.pools[node.pool].kind == "edge" else "training"
    kept_s = state.leader.settings.get(_KEPT[kind], 0.0)
    return max(heard_s + settings.lease_of(kind), kept_s) + settings.lease_margin_s


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
