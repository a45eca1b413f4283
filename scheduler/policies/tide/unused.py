"""Which lent nodes go back to their owners because nobody wants them."""

from collections.abc import Container

from scheduler.policies.interface import Figure, Floats, Ints, Kind, LoanPhase, Reason, Snapshot

_INFERENCE, _LENT, _TRAINING = int(Kind.INFERENCE), int(LoanPhase.LENT), int(Kind.TRAINING)


def unused(
    seen: Snapshot, left: Ints, price: Floats, going: Container[int], loan_min_s: float
) -> list[int]:
    """Return nodes, as indices into `Nodes`, that go back now.

    Nothing runs on such a node, and whoever wants GPUs of its pool finds them beside it. As many
    of training's own GPUs are left, too, so that who comes next does not miss it; or all of them,
    where training has fewer than such a node.

    Args:
        seen: What is known.
        left: (m,) GPUs of each pool that nobody is given.
        price: (m,) what one of them is worth to whoever got none there.
        going: Nodes that this plan gives back already.
        loan_min_s: A younger loan goes on: a job may be on its way.
    """
    nodes, kind = seen.nodes, seen.pools.kind
    empty = (nodes.loan == _LENT) & (nodes.free == nodes.gpus) & (kind[nodes.pool] == _INFERENCE)
    empty &= (seen.now_s - nodes.lent_since_s >= loan_min_s) & (price[nodes.pool] == 0.0)
    if not empty.any():
        return []
    own, left = int(left[kind == _TRAINING].sum()), left.copy()
    all_own = int(nodes.gpus[kind[nodes.pool] == _TRAINING].sum())
    back = []
    for node in empty.nonzero()[0].tolist():
        pool, gpus = nodes.pool[node], nodes.gpus[node]
        if node not in going and gpus <= left[pool] and min(gpus, all_own) <= own:
            left[pool] -= gpus
            back.append(node)
    return back


def why_back(seen: Snapshot, node: int) -> Reason:
    """Say why such a node goes back."""
    figures = (Figure("lent_s", seen.now_s - float(seen.nodes.lent_since_s[node])),)
    return Reason(seen.nodes.ids[node], "reclaims", "loans.unused", figures, (), ())
