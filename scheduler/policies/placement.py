"""Which nodes a gang gets: few of them, the fullest that fit, those it already holds."""

from collections.abc import Mapping

from scheduler.policies.capacity import Capacity
from scheduler.policies.interface import Kind

_NOTHING: Mapping[int, int] = {}


def place(
    capacity: Capacity, site: int, size: int, prefer: Mapping[int, int] = _NOTHING
) -> dict[int, int] | None:
    """Find nodes for a gang in one site; takes nothing.

    As few nodes as possible: the node with the most free GPUs first, so that a large gang gets
    whole nodes, and the fullest node that holds the rest last (best fit). Best fit also keeps the
    base gangs in a lent pool on few nodes, which leaves others that a reclaim can empty by
    scaling in alone. Among equals, nodes of `prefer` come first, then the lowest index.

    Args:
        capacity: What is free; a job that shall move gives up its GPUs first.
        site: Where the gang shall live; one node, if that is an edge site.
        size: GPUs wanted, at least 1.
        prefer: What the job held, node -> GPUs. Kept as it is if that has `size`.

    Returns:
        node -> GPUs, by node; None if the site has fewer than `size` free GPUs.
    """
    if size <= 0:
        raise ValueError(f"size is {size}; a gang needs at least 1 GPU")
    if capacity.site_free[site] < size:
        return None
    free = capacity.free
    if capacity.kind[site] == Kind.EDGE:
        return {capacity.site_nodes[site][0]: size}
    if prefer:
        kept = keep(capacity, size, prefer)
        if kept is not None:
            return kept
    nodes = [node for node in capacity.site_nodes[site] if free[node] > 0]
    fits = [node for node in nodes if free[node] >= size]
    if fits:
        return {min(fits, key=lambda node: (-prefer.get(node, 0), free[node], node)): size}
    placement: dict[int, int] = {}
    rest = size
    for node in sorted(nodes, key=lambda node: (-free[node], -prefer.get(node, 0), node)):
        if free[node] >= rest:
            break
        placement[node] = free[node]
        rest -= free[node]
    last = [node for node in nodes if free[node] >= rest and node not in placement]
    if rest:
        placement[min(last, key=lambda node: (-prefer.get(node, 0), free[node], node))] = rest
    return dict(sorted(placement.items()))


def keep(capacity: Capacity, size: int, held: Mapping[int, int]) -> dict[int, int] | None:
    """Choose `size` GPUs from those a job holds: on as few nodes as possible.

    Returns:
        node -> GPUs, by node; None if what it holds on open nodes is less than `size`.
    """
    usable = {
        node: min(gpus, capacity.free[node]) for node, gpus in held.items() if capacity.open[node]
    }
    if sum(usable.values()) < size:
        return None
    placement: dict[int, int] = {}
    rest = size
    for node in sorted(usable, key=lambda node: (-usable[node], node)):
        placement[node] = min(rest, usable[node])
        rest -= placement[node]
        if not rest:
            break
    return dict(sorted(placement.items()))
