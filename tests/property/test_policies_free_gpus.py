"""Nodes found by how many free GPUs they have are those that a look at all of them finds."""

from collections.abc import Mapping

import numpy as np
from hypothesis import given, strategies as st

from scheduler.policies.interface import Ints
from scheduler.policies.parts.free_gpus import FreeGpus, Style


def looked(
    free: Ints, members: Ints, size: int, own: Mapping[int, int], style: Style
) -> dict[int, int] | None:
    """Look at all nodes."""
    room = dict(zip(members.tolist(), free[members].tolist(), strict=True))
    if sum(room.values()) < size:
        return None
    fits = [node for node in room if room[node] >= size]
    if style == "pack" and fits:
        return {min(fits, key=lambda node: (room[node], -own.get(node, 0), node)): size}
    found: dict[int, int] = {}
    for node in sorted(room, key=lambda node: (-room[node], node)):
        rest = size - sum(found.values())
        if style == "pack" and room[node] >= rest > 0:
            fits = [other for other in room if other not in found and room[other] >= rest]
            node = min(fits, key=lambda other: (room[other], other))
        if rest:
            found[node] = min(rest, room[node])
    return found


@given(
    free=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    others=st.sets(st.integers(0, 11)),
    gangs=st.lists(
        st.tuples(
            st.integers(1, 24), st.dictionaries(st.integers(0, 11), st.integers(1, 8), max_size=4)
        ),
        max_size=12,
    ),
    style=st.sampled_from(("pack", "most_free")),
)
def test_gangs_get_the_nodes_that_a_look_at_all_finds(
    free: list[int], others: set[int], gangs: list[tuple[int, dict[int, int]]], style: Style
) -> None:
    left = np.array(free, dtype=np.int64)
    members = np.array([node for node in range(len(free)) if node not in others], dtype=np.int64)
    room = FreeGpus(left, members)
    for size, own in gangs:
        assert room.gpus == left[members].sum()
        assert room.fits(size) == bool((left[members] >= size).any())
        found = looked(left, members, size, own, style)
        assert room.take(size, own, style) == found
        for node, gpus in (found or {}).items():
            left[node] -= gpus
