"""What the GPUs of a node or a pool are used for."""

from collections.abc import Sequence
from enum import StrEnum

from explain.rows import NodeRow
from scheduler.core.lenders import lenders_in
from scheduler.core.state import ClusterState, Node
from scheduler.core.transitions import LoanState, NodeState


class Use(StrEnum):
    """One way that a GPU is used, in words."""

    TRAINING = "training"
    SERVING = "serving"
    LENT = "lent, free"
    IDLE = "idle"
    LEAVING = "going back"
    SILENT = "silent"
    OWNED = "its owner's"  #: Of one node only the owner knows which GPUs serve and which are idle.


#: Those of a pool, in the order in which they are shown.
USES = (Use.SERVING, Use.TRAINING, Use.LEAVING, Use.LENT, Use.IDLE, Use.SILENT)
#: Those of nodes.
NODE_USES = (Use.TRAINING, Use.OWNED, Use.LENT, Use.LEAVING, Use.IDLE, Use.SILENT)


def uses_of_node(node: NodeRow) -> dict[Use, int]:
    """Count a node's GPUs by use; those that its owner has are not told apart."""
    if node.kind != "training" and node.loan_state is None and node.state == NodeState.ALIVE:
        return {Use.OWNED: node.gpu_count}
    return _without_owner(node, node.holders)


def _without_owner(node: Node | NodeRow, holders: Sequence[str | None]) -> dict[Use, int]:
    """Count a node's GPUs by use, without its owner's own."""
    held = sum(holder is not None for holder in holders)
    free = node.gpu_count - held
    if node.state != NodeState.ALIVE:
        return {Use.SILENT: node.gpu_count}
    if node.loan_state in (LoanState.RECLAIMING, LoanState.RETURNING):
        return {Use.LEAVING: node.gpu_count}
    if node.loan_state == LoanState.LENT:
        return {Use.TRAINING: held, Use.LENT: free}
    return {Use.TRAINING: held, Use.IDLE: free}


def uses_of_pool(state: ClusterState, pool: str) -> dict[Use, int]:
    """Count a pool's GPUs by use."""
    found = dict.fromkeys(USES, 0)
    nodes = [state.nodes[name] for name in state.pools[pool].nodes]
    for node in nodes:
        for use, count in _without_owner(node, node.holder).items():
            found[use] += count
    if state.pools[pool].kind != "training":
        need = sum(lender.gpus_needed for lender in lenders_in(state, pool))
        # What owners need and their own idle GPUs can serve; edge owners use all or nothing.
        serving = min(found[Use.IDLE], round(need))
        found[Use.SERVING] += serving
        found[Use.IDLE] -= serving
    return found
