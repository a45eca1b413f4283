"""When nodes fail, made from a seed."""

import numpy as np

from simulator.layout import Layout
from simulator.pools import Failure

#: Begins the names of the streams of chance here: those of owners' demand have smaller numbers.
_STREAM = 1_000_000


def failures(
    layout: Layout, mtbf_h: float, repair_s: float, seed: int, until_s: float
) -> tuple[Failure, ...]:
    """Draw the failures of all nodes until a moment of the run.

    Each node is up for a time drawn from an exponential distribution, gone for `repair_s`, and so
    on. Nodes fail alone, each by a stream of its own: nothing that a policy does moves a failure,
    and more nodes leave the failures of the others as they were.

    Args:
        layout: The nodes.
        mtbf_h: Hours that a node is up between two failures, on average; inf: none fails.
        repair_s: How long a node is gone.
        seed: The only chance.
        until_s: No failure begins after it.
    """
    found: list[Failure] = []
    for node, name in enumerate(layout.ids):
        kind, number = int(layout.node_pool(node).kind), int(name.rpartition("-")[2])
        rng = np.random.Generator(np.random.PCG64([seed, _STREAM + kind, number]))
        at_s = rng.exponential(mtbf_h * 3600.0)
        while at_s < until_s:
            found.append(Failure(at_s, name, repair_s))
            at_s += repair_s + rng.exponential(mtbf_h * 3600.0)
    return tuple(found)
