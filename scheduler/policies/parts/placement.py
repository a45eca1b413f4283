"""Which nodes a gang gets: few of them, the fullest that fit, those it already holds."""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import Ints, Kind
from scheduler.policies.parts.capacity import Capacity

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
    members = capacity.members[site]
    if capacity.kind[site] == Kind.EDGE:
        return {int(members[0]): size}
    if prefer:
        kept = keep(capacity, size, prefer)
        if kept is not None:
            return kept
    room = capacity.room[members]
    best = _fullest(room, size, members, prefer)
    if best is not None:
        return {best: size}
    placement: dict[int, int] = {}
    rest = size
    while (most := int(room.max(initial=0))) and most < rest:
        alike = np.flatnonzero(room == most)
        held = [-prefer.get(node, 0) for node in members[alike].tolist()] if prefer else None
        ranked = alike if held is None else alike[np.argsort(held, kind="stable")]
        taken = ranked[: (rest - 1) // most]  # the last node holds the rest, by best fit
        placement.update(dict.fromkeys(members[taken].tolist(), most))
        rest -= most * len(taken)
        room[taken] = 0
    last = _fullest(room, rest, members, prefer) if rest else None
    if last is not None:
        placement[last] = rest
    return dict(sorted(placement.items()))


def _fullest(room: Ints, size: int, members: Ints, prefer: Mapping[int, int]) -> int | None:
    """Return the node that is fullest of those with room, one of `prefer` if any of it has."""
    held = [
        (-gpus, int(room[at]), node)
        for node, gpus in prefer.items()
        if room[at := int(members.searchsorted(node))] >= size
    ]
    if held:
        return min(held)[2]
    # What would be left over; where there is too little it wraps around to a huge number.
    at = int((room - size).view(np.uint64).argmin())
    return int(members[at]) if room[at] >= size else None


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
