"""Which nodes are not borrowed, or go back to their owners, because nobody wants them."""

from collections.abc import Container, Sequence

import numpy as np

from scheduler.policies.interface import (
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    LoanPhase,
    Reason,
    Snapshot,
)
from scheduler.policies.parts.lending import MOVE_GAIN
from scheduler.policies.parts.loans import Loans
from scheduler.policies.tide.market import Market

_EDGE, _INFERENCE, _TRAINING = int(Kind.EDGE), int(Kind.INFERENCE), int(Kind.TRAINING)
_LENT = int(LoanPhase.LENT)


def faster_pools(seen: Snapshot, market: Market) -> Bools:
    """(m,) pools where some job that runs would be faster than at home, though no GPUs are lacking.

    Home may be slower, or have fewer GPUs in all than such a job can use.

    Args:
        seen: What is known.
        market: In which no GPU has a price.
    """
    jobs, pools = seen.jobs, seen.pools
    home, at, _ = market.here
    rows = market.rows[at]
    room = market.sizes.searchsorted(market.gpus[home], side="right") - 1
    best = np.maximum.reduce(jobs.rate[rows], axis=1)[:, None] * jobs.affinity[rows]
    best *= jobs.memory_mib[rows, None] <= pools.gpu_memory_mib
    faster = best > MOVE_GAIN * market.rate[home, at, room][:, None]
    found: Bools = np.logical_or.reduce(faster, axis=0) & (pools.kind == _INFERENCE)
    return found


def lend_only(loans: Loans, seen: Snapshot, pools: Bools) -> None:
    """Have only nodes of some pools lent; all others stay with their owners.

    Args:
        loans: What owners would lend; changed.
        seen: What is known.
        pools: (m,)
    """
    nodes = seen.nodes
    left = {nodes.ids[node] for node in loans.lend if not pools[nodes.pool[node]]}
    loans.lend = [node for node in loans.lend if nodes.ids[node] not in left]
    loans.reasons = [one for one in loans.reasons if one.subject not in left]


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
    found: list[int] = lent[old].tolist()
    return found


def unused(
    seen: Snapshot, empty: Sequence[int], left: Ints, price: Floats, going: Container[int]
) -> list[int]:
    """Return nodes that go back now.

    Whoever wants GPUs of such a node's pool finds them beside it. As many GPUs are left of
    training's own and other lent nodes, too, so that who comes next does not miss it; or as many as
    training has, where that is fewer. An edge server is missed by nobody who has none.

    Args:
        seen: What is known.
        empty: Those of `idle`.
        left: (m,) GPUs of each pool that nobody is given.
        price: (m,) what one of them is worth to whoever got none there.
        going: Nodes that this plan gives back already.
    """
    nodes, kind = seen.nodes, seen.pools.kind
    own, left = int(nodes.gpus[kind[nodes.pool] == _TRAINING].sum()), left.copy()
    spare, back = int(left[kind != _EDGE].sum()), []
    for node in empty:
        pool, gpus = nodes.pool[node], int(nodes.gpus[node])
        edge = kind[pool] == _EDGE
        free = node not in going and price[pool] == 0.0 and gpus <= left[pool]
        if free and (edge or spare - gpus >= min(gpus, own)):
            left[pool] -= gpus
            spare -= 0 if edge else gpus
            back.append(node)
    return back


def why_back(seen: Snapshot, node: int) -> Reason:
    """Say why such a node goes back."""
    figures = (Figure("lent_s", seen.now_s - float(seen.nodes.lent_since_s[node])),)
    return Reason(seen.nodes.ids[node], "reclaims", "loans.unused", figures, (), ())
