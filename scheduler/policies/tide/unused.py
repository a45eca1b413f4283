"""Which lent nodes go back to their owners because nobody wants them."""

from collections.abc import Container, Sequence

from scheduler.policies.interface import Figure, Floats, Ints, Kind, LoanPhase, Reason, Snapshot

_INFERENCE, _LENT, _TRAINING = int(Kind.INFERENCE), int(LoanPhase.LENT), int(Kind.TRAINING)


def idle(seen: Snapshot, loan_min_s: float) -> list[int]:
    """Return lent nodes, as indices into `Nodes`, on which nothing runs.

    Args:
        seen: What is known.
        loan_min_s: A younger loan goes on: a job may be on its way.
    """
    nodes = seen.nodes
    lent = ((nodes.loan == _LENT) & (nodes.free == nodes.gpus)).nonzero()[0]
    if not len(lent):
        return []
    old = seen.now_s - nodes.lent_since_s[lent] >= loan_min_s
    found: list[int] = lent[old & (seen.pools.kind[nodes.pool[lent]] == _INFERENCE)].tolist()
    return found


def unused(
    seen: Snapshot, empty: Sequence[int], left: Ints, price: Floats, going: Container[int]
) -> list[int]:
    """Return nodes that go back now.

    Whoever wants GPUs of such a node's pool finds them beside it. As many of training's own GPUs
    are left, too, so that who comes next does not miss it; or all of them, where training has
    fewer than such a node.

    Args:
        seen: What is known.
        empty: Those of `idle`.
        left: (m,) GPUs of each pool that nobody is given.
        price: (m,) what one of them is worth to whoever got none there.
        going: Nodes that this plan gives back already.
    """
    nodes, kind = seen.nodes, seen.pools.kind
    own, left = int(left[kind == _TRAINING].sum()), left.copy()
    all_own = int(nodes.gpus[kind[nodes.pool] == _TRAINING].sum())
    back = []
    for node in empty:
        pool, gpus = nodes.pool[node], nodes.gpus[node]
        free = node not in going and price[pool] == 0.0
        if free and gpus <= left[pool] and min(gpus, all_own) <= own:
            left[pool] -= gpus
            back.append(node)
    return back


def why_back(seen: Snapshot, node: int) -> Reason:
    """Say why such a node goes back."""
    figures = (Figure("lent_s", seen.now_s - float(seen.nodes.lent_since_s[node])),)
    return Reason(seen.nodes.ids[node], "reclaims", "loans.unused", figures, (), ())
