"""Which nodes are borrowed, since jobs would use them, and which go back, since none wants them."""

from collections.abc import Container, Sequence
from dataclasses import replace

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
from scheduler.policies.parts.allot import Allotment

_EDGE, _TRAINING = int(Kind.EDGE), int(Kind.TRAINING)
_LENDING, _LENT = int(LoanPhase.LENDING), int(LoanPhase.LENT)


def enough(
    seen: Snapshot, offered: Sequence[int], left: Ints, price: Floats, waits: Bools
) -> set[int]:
    """Return those offered nodes of whose pool GPUs are left that nobody wants.

    Not where a gang waits that is too large for what is left; nor of the edge: there a gang has one
    server, and what is left may be too small for it.

    Args:
        seen: What is known.
        offered: By owners, as indices into `Nodes`.
        left: (m,) GPUs of each pool that nobody is given.
        price: (m,) what one of them is worth to whoever got none there.
        waits: (n,) jobs that got nothing, though they may have GPUs.
    """
    jobs, pools, rows = seen.jobs, seen.pools, waits.nonzero()[0]
    large = jobs.sizes[(jobs.rate[rows] > 0).argmax(axis=1)][:, None] > left
    large &= jobs.affinity[rows] > 0
    large &= jobs.memory_mib[rows, None] <= pools.gpu_memory_mib
    plenty = (pools.kind != _EDGE) & (price == 0.0) & ~large.any(axis=0)
    pool, gpus = seen.nodes.pool[offered], seen.nodes.gpus[offered]
    found = plenty[pool] & (left[pool] >= gpus)
    return {node for node, is_enough in zip(offered, found.tolist(), strict=True) if is_enough}


def content(seen: Snapshot, offered: Sequence[int], given: Allotment) -> bool:
    """Whether each job that is given GPUs is as fast as it could be on any number of offered nodes.

    Then none of them would go there, and to share those nodes out need not be tried.

    Args:
        seen: What is known.
        offered: By owners, as indices into `Nodes`.
        given: What jobs are to have without them.
    """
    jobs, rows = seen.jobs, (given.gpus > 0).nonzero()[0]
    assert given.pool is not None
    level = np.minimum(jobs.sizes.searchsorted(given.gpus[rows]), len(jobs.sizes) - 1)
    rate, each = jobs.rate[rows], np.arange(len(rows))
    has = jobs.affinity[rows, given.pool[rows]] * rate[each, level]
    there = jobs.affinity[rows[:, None], sorted({*seen.nodes.pool[offered].tolist()})]
    return bool((has >= there.max(axis=1) * rate.max(axis=1)).all())


def taken(seen: Snapshot, offered: Sequence[int], waits: Bools) -> set[int]:
    """Return those offered nodes that jobs with nothing would fill in any case.

    It takes less time than to share out the GPUs that there would be, and matters where many wait.

    Args:
        seen: What is known.
        offered: By owners, as indices into `Nodes`.
        waits: (n,) jobs that got nothing, though they may have GPUs.
    """
    jobs, nodes, pools = seen.jobs, seen.nodes, seen.pools
    least = jobs.sizes[(jobs.rate > 0).argmax(axis=1)]
    coming: list[int] = (nodes.loan == _LENDING).nonzero()[0].tolist()
    found, waits = set[int](), waits.copy()
    # Whoever fits on nodes that are on their way, of any owner, needs no others.
    for group in (coming, offered):
        for pool in np.unique(nodes.pool[group]).tolist():
            edge = pools.kind[pool] == _EDGE
            ours = [node for node in group if nodes.pool[node] == pool]
            there = nodes.gpus[ours]
            may = waits & (jobs.affinity[:, pool] > 0) & (least <= there.min())
            may &= (jobs.memory_mib <= pools.gpu_memory_mib[pool]) & (jobs.edge_allowed | ~edge)
            rows = may.nonzero()[0]
            # A server at the edge runs one gang.
            fill = (np.ones_like(rows) if edge else least[rows]).cumsum()
            room = len(there) if edge else there.sum()
            filled = len(fill) > 0 and fill[-1] >= room
            if filled and group is offered:
                found.update(ours)
            if filled or group is coming:
                waits[rows[: fill.searchsorted(room) + 1]] = False
    return found


def as_lent(seen: Snapshot, offered: Sequence[int]) -> Snapshot:
    """Show what would be known if nodes that owners offer were on loan, and those on their way."""
    nodes = seen.nodes
    there = nodes.loan == _LENDING
    there[offered] = True
    lent = replace(
        nodes,
        loan=np.where(there, _LENT, nodes.loan),
        free=np.where(there, nodes.gpus, nodes.free),
        usable=nodes.usable | there,
    )
    return replace(seen, nodes=lent)


def used(seen: Snapshot, offered: Sequence[int], on: Container[str]) -> set[int]:
    """Return as many offered nodes as would be used, were they here, beside those on their way.

    With them comes one more of their pool, so that who comes next does not wait for a loan; not of
    the edge, where an unused server would go back at once.

    Args:
        seen: What is known.
        offered: By owners, as indices into `Nodes`.
        on: Names of the nodes that jobs would then be on.
    """
    nodes, found = seen.nodes, set[int]()
    for pool in np.unique(nodes.pool[offered]).tolist():
        coming = ((nodes.pool == pool) & (nodes.loan == _LENDING)).nonzero()[0].tolist()
        ours = [node for node in offered if nodes.pool[node] == pool]
        ours.sort(key=lambda node: nodes.ids[node] not in on)
        needed = sum(nodes.ids[node] in on for node in [*ours, *coming])
        if needed:
            needed += seen.pools.kind[pool] != _EDGE
            found.update(ours[: max(0, needed - len(coming))])
    return found


def idle(seen: Snapshot, loan_min_s: float) -> list[int]:
    """Return lent nodes, as indices into `Nodes`, on which nothing runs.

    Args:
        seen: What is known.
        loan_min_s: A younger loan goes on: a job may be on its way.
    """
    nodes, lent = seen.nodes, seen.nodes.loan == _LENT
    if not np.count_nonzero(lent):
        return []
    held = np.bincount(seen.holdings.node, minlength=len(nodes.ids)) > 0
    empty = (nodes.free == nodes.gpus) | (~nodes.usable & ~held)  # or closed, and left by all
    old = seen.now_s - nodes.lent_since_s >= loan_min_s
    found: list[int] = (lent & empty & old).nonzero()[0].tolist()
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
        if not nodes.usable[node] and node not in going:
            back.append(node)
        elif free and (edge or spare - gpus >= min(gpus, own)):
            left[pool] -= gpus
            spare -= 0 if edge else gpus
            back.append(node)
    return back


def why_back(seen: Snapshot, node: int) -> Reason:
    """Say why such a node goes back."""
    figures = (Figure("lent_s", seen.now_s - float(seen.nodes.lent_since_s[node])),)
    return Reason(seen.nodes.ids[node], "reclaims", "loans.unused", figures, (), ())
