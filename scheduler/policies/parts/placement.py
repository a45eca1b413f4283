"""Which nodes each gang gets: few of them, the fullest that fit, those it already holds."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scheduler.policies.interface import Ints, Plan, Reason, Target
from scheduler.policies.parts.changes import changes
from scheduler.policies.parts.draft import Draft

#: (free GPUs of all nodes, job, its pool, GPUs, node -> GPUs that it held there) -> its nodes.
Placing = Callable[[Ints, int, int, int, Mapping[int, int]], dict[int, int] | None]


def finish(
    draft: Draft, level: Ints, waits: Sequence[Reason], placing: Placing | None = None
) -> Plan:
    """Place every job that changes, and write the plan.

    Args:
        draft: With `pool` decided.
        level: (n,) of jobs that shall run; ignored for others.
        waits: Why each job that waits does so.
        placing: How gangs are placed; None: by `placement.place`.

    Raises:
        RuntimeError: more GPUs were given out than a pool has; a bug of the policy.
    """
    seen, jobs, nodes = draft.seen, draft.seen.jobs, draft.seen.nodes
    runs, size = draft.pool >= 0, draft.curve.sizes[level]
    same = runs & (draft.pool == draft.was) & ~draft.forced & (size == jobs.size)
    changed: list[int] = ((runs | (draft.was >= 0)) & ~same).nonzero()[0].tolist()
    old: dict[int, dict[int, int]] = {job: {} for job in changed}
    free = np.where(draft.closed, 0, nodes.free)
    columns = (
        column.tolist() for column in (seen.holdings.job, seen.holdings.node, seen.holdings.gpus)
    )
    for job, node, gpus in zip(*columns, strict=True):
        if job in old and draft.was[job] >= 0 and not draft.closed[node]:
            old[job][node] = gpus
            free[node] += gpus

    def rank(job: int) -> tuple[bool, int, int]:
        """Those that shrink keep what they can first; then the large ones, for whole nodes."""
        stays = draft.pool[job] == draft.was[job]
        grows = not stays or size[job] > sum(old[job].values())
        return bool(grows), -int(size[job]), job

    targets: dict[int, Target | None] = dict.fromkeys(changed)
    for job in sorted(changed, key=rank):
        pool, gpus = int(draft.pool[job]), int(size[job])
        if pool < 0:
            continue
        held = old[job] if pool == draft.was[job] else {}
        members = (nodes.pool == pool).nonzero()[0]
        found = placing(free, job, pool, gpus, held) if placing else None
        found = found or place(free, members, gpus, held)
        if found is None:
            raise RuntimeError(
                f"job {jobs.ids[job]} shall get {gpus} GPUs of {free[members].sum()} free ones; "
                "a policy gave GPUs out twice"
            )
        for node, taken in found.items():
            free[node] -= taken
        placement = tuple((nodes.ids[node], taken) for node, taken in found.items())
        targets[job] = Target(seen.pools.ids[pool], placement)
    after = np.where(runs, size, 0)[changed]
    told = changes(draft, np.array(changed, dtype=np.int64), after)
    return Plan(
        targets={jobs.ids[job]: target for job, target in targets.items()},
        lend=tuple(nodes.ids[node] for node in sorted(draft.loans.lend)),
        reclaim=draft.reclaim,
        reasons=(*draft.loans.reasons, *told, *waits),
    )


def place(free: Ints, members: Ints, size: int, prefer: Mapping[int, int]) -> dict[int, int] | None:
    """Find nodes for a gang in one pool; takes nothing.

    As few nodes as possible: the node with the most free GPUs first, so that a large gang gets
    whole nodes, and the fullest node that holds the rest last (best fit). Best fit also keeps the
    base gangs in a lent pool on few nodes, which leaves others that a reclaim can empty by
    scaling in alone. Among equals, nodes of `prefer` come first, then the lowest index.

    Args:
        free: (p,) free GPUs of all nodes; a job that shall move gives up its GPUs first.
        members: Nodes of the pool, ascending.
        size: GPUs wanted, at least 1.
        prefer: What the job held there, node -> GPUs. Kept as it is if that has `size`.

    Returns:
        node -> GPUs, by node; None if the pool has fewer than `size` free GPUs.
    """
    room = free[members]
    if room.sum() < size:
        return None
    if kept := keep(free, size, prefer):
        return kept
    placement: dict[int, int] = {}
    rest = size
    while (most := int(room.max())) < rest:
        alike = np.flatnonzero(room == most)
        held = [-prefer.get(node, 0) for node in members[alike].tolist()]
        ranked = alike[np.argsort(held, kind="stable")]
        taken = ranked[: (rest - 1) // most]  # the last node holds the rest, by best fit
        placement.update(dict.fromkeys(members[taken].tolist(), most))
        rest -= most * len(taken)
        room[taken] = 0
    placement[_fullest(room, rest, members, prefer)] = rest
    return dict(sorted(placement.items()))


def _fullest(room: Ints, size: int, members: Ints, prefer: Mapping[int, int]) -> int:
    """Return the node that is fullest of those with room, one of `prefer` if any of it has."""
    held = [
        (-gpus, int(room[at]), node)
        for node, gpus in prefer.items()
        if room[at := int(members.searchsorted(node))] >= size
    ]
    if held:
        return min(held)[2]
    # What would be left over; where there is too little it wraps around to a huge number.
    return int(members[(room - size).view(np.uint64).argmin()])


def keep(free: Ints, size: int, held: Mapping[int, int]) -> dict[int, int] | None:
    """Choose `size` GPUs from those a job holds: on as few nodes as possible.

    Returns:
        node -> GPUs, by node; None if less than `size` of what it holds is free.
    """
    usable = {node: min(gpus, int(free[node])) for node, gpus in held.items()}
    if sum(usable.values()) < size:
        return None
    placement: dict[int, int] = {}
    for node in sorted(usable, key=lambda node: (-usable[node], node)):
        placement[node] = min(size, usable[node])
        size -= placement[node]
        if not size:
            break
    return dict(sorted(placement.items()))
