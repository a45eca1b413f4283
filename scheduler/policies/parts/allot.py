"""From sizes to a plan: places the gangs that change, and says of each job what became of it.

Most policies of the literature only decide how many GPUs each job has; this is the rest. A job
whose size and pool stay keeps its GPUs. The others give theirs up, then are placed anew.
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import (
    MOVING,
    WAITING,
    Bools,
    Figure,
    Ints,
    Kind,
    LoanPhase,
    Need,
    Plan,
    Reason,
    Snapshot,
    Target,
)
from scheduler.policies.parts.free_gpus import FreeGpus, Style
from scheduler.policies.parts.repack import Repack, Stayers

#: A size that means: leave this job as it is.
KEEP = -1
_RECLAIMING, _EDGE = LoanPhase.RECLAIMING.value, Kind.EDGE.value


@dataclass(slots=True)  # frozen ones take three times as long to make
class Because:
    """What decided about a job."""

    rule: str
    lost_to: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    needs: tuple[Need, ...] = ()


@dataclass(slots=True)
class Allotment:
    """What a policy wants. n jobs."""

    gpus: Ints  #: (n,) GPUs each job shall hold, 0 for none; `KEEP`.
    rule: str  #: What decided, where `why` says nothing else.
    pool: Ints | None = None  #: (n,) pool to be in; None: the first training pool.
    style: Style = "pack"
    order: Sequence[int] | None = None  #: In which gangs are placed; None: large ones first.
    #: Says who may be moved to make room for whom; None: nobody.
    repack: Callable[[], Repack] | None = None
    why: Mapping[int, Because] = field(default_factory=dict)
    #: Of jobs that wait, in the place of `why`: the whole reason.
    waits: Mapping[int, Reason] = field(default_factory=dict)
    notes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    lend: tuple[str, ...] = ()
    reclaim: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()  #: About nodes.


def training_pool(seen: Snapshot) -> int:
    """Return the first training pool that has nodes, -1 if there is none."""
    found = np.flatnonzero(seen.pools.occupied(seen.nodes) & (seen.pools.kind == Kind.TRAINING))
    return int(found[0]) if len(found) else -1


def no_pool(seen: Snapshot, job: int) -> Need:
    """Return what a job would need that no pool can run."""
    most = float(seen.pools.gpu_memory_mib[seen.nodes.pool].max(initial=0.0))
    return Need("gpu_memory_mib", most, float(seen.jobs.memory_mib[job]))


def closing(seen: Snapshot, reclaim: Mapping[str, float] | None = None) -> Ints:
    """Return (p,) 1 for nodes that go back, or may not be used: nobody may stay there."""
    closed = ~seen.nodes.usable | (seen.nodes.loan == _RECLAIMING)
    for name in reclaim or ():
        closed[seen.nodes.ids.index(name)] = True
    found: Ints = closed.astype(np.int64)
    return found


def allot(seen: Snapshot, wanted: Allotment) -> Plan:
    """Write the plan.

    Raises:
        RuntimeError: more GPUs were given out than a pool has; a bug of the policy.
    """
    jobs = seen.jobs
    pool = np.full(len(jobs.ids), training_pool(seen)) if wanted.pool is None else wanted.pool
    closed = closing(seen, wanted.reclaim)
    holdings = seen.holdings
    ousted = np.zeros(len(jobs.ids), dtype=np.bool_)
    ousted[holdings.job[closed[holdings.node] > 0]] = True
    shown = np.bincount(holdings.job, holdings.gpus, len(jobs.ids))
    able = (jobs.phase == WAITING) | ((jobs.phase != MOVING) & (shown == jobs.size))
    size = np.where(wanted.gpus == KEEP, jobs.size, wanted.gpus)
    moves = (size != jobs.size) | ((size > 0) & (ousted | (pool != jobs.pool)))
    ready = able & moves
    changed: list[int] = ready.nonzero()[0].tolist()
    targets: dict[str, Target | None] = {}
    moved: dict[int, int] = {}
    if changed:
        stays = able & ~moves & ~ousted & (size > 0)
        targets, moved = _targets(seen, wanted, size, pool, ready, changed, closed, stays)
    changed = [job for job in sorted([*changed, *moved]) if jobs.ids[job] in targets]
    why = wanted.why
    if moved:
        said = {job: Because("gang.repack", (jobs.ids[by],)) for job, by in moved.items()}
        why = {**why, **said}
    reasons = [*wanted.reasons, *_reasons(seen, wanted, size, changed, pool, why)]
    return Plan(
        targets=targets,
        lend=wanted.lend,
        reclaim=wanted.reclaim,
        reasons=tuple(reasons),
        notes=wanted.notes,
    )


def _targets(
    seen: Snapshot,
    wanted: Allotment,
    size: Ints,
    pool: Ints,
    ready: Bools,
    changed: Sequence[int],
    closed: Ints,
    stays: Bools,
) -> tuple[dict[str, Target | None], dict[int, int]]:
    """Place the gangs that change, on what is free and what these give up.

    A gang at the edge has one node. Servers may together have room that none of them has: who then
    finds none gets nothing; its `size` is set to 0.

    Returns:
        The targets, and who of those that would stay moves for whom.
    """
    jobs, nodes, holdings = seen.jobs, seen.nodes, seen.holdings
    gives = ready[holdings.job]
    held: dict[int, dict[int, int]] = {job: {} for job in changed}
    for job, node, gpus in zip(
        holdings.job[gives].tolist(),
        holdings.node[gives].tolist(),
        holdings.gpus[gives].tolist(),
        strict=True,
    ):
        held[job][node] = gpus
    free = np.where(closed, 0, nodes.free)
    gives &= closed[holdings.node] == 0
    np.add.at(free, holdings.node[gives], holdings.gpus[gives])
    sizes: list[int] = size.tolist()
    pools: list[int] = pool.tolist()
    order = sorted((-sizes[job], job) for job in changed if sizes[job])
    if wanted.order is not None:
        order = [(at, job) for at, job in enumerate(wanted.order) if sizes[job] and ready[job]]
    stayers = Stayers(seen, wanted.repack, stays) if wanted.repack and stays.any() else None
    moved: dict[int, int] = {}
    targets: dict[str, Target | None] = {}
    edge: list[bool] = (seen.pools.kind == _EDGE).tolist()
    rooms = {
        p: FreeGpus(free, (nodes.pool == p).nonzero()[0]) for p in sorted({*pool[ready].tolist()})
    }
    for at, (_, job) in enumerate(order):
        there = pools[job]
        if edge[there] and not rooms[there].fits(sizes[job]):
            size[job] = sizes[job] = 0
            continue
        if stayers is not None and not edge[there]:
            leave = stayers.leave_for(job, sizes[job], there, rooms[there])
            for other, (node, gpus) in leave.items():
                held[other], moved[other] = {node: gpus}, job
                insort(order, (-gpus, other), at + 1)  # smaller than this one: its turn comes
        found = rooms[there].take(sizes[job], held[job], wanted.style)
        if found is None:
            raise RuntimeError(
                f"{jobs.ids[job]} shall get {size[job]} GPUs of "
                f"{rooms[there].gpus} free ones; GPUs were given out twice"
            )
        if found == held[job] and job in moved:
            del moved[job]
            continue
        placement = tuple((nodes.ids[node], gpus) for node, gpus in sorted(found.items()))
        targets[jobs.ids[job]] = Target(seen.pools.ids[there], placement)
    targets.update((jobs.ids[job], None) for job in changed if not sizes[job] and jobs.size[job])
    ordered = (jobs.ids[job] for job in sorted([*changed, *moved]))
    return {name: targets[name] for name in ordered if name in targets}, moved


def _reasons(
    seen: Snapshot,
    wanted: Allotment,
    size: Ints,
    changed: Sequence[int],
    pool: Ints,
    whys: Mapping[int, Because],
) -> list[Reason]:
    jobs, rows = seen.jobs, np.array(changed, dtype=np.int64)
    usual = Because(wanted.rule)
    moved = (pool[rows] != jobs.pool[rows]).tolist()
    found = []
    for job, before, after, elsewhere in zip(
        changed, jobs.size[rows].tolist(), size[rows].tolist(), moved, strict=True
    ):
        why = whys.get(job, usual)
        if not after:
            verb = "preempts"
        elif not before:
            verb = "starts"
        elif after == before or elsewhere:
            verb = "migrates"
        else:
            verb = "scales_out" if after > before else "scales_in"
        figures = (Figure("gpus_before", before), Figure("gpus_after", after), *why.figures)
        found.append(Reason(jobs.ids[job], verb, why.rule, figures, why.lost_to, why.needs))

    def waits(job: int) -> Reason:
        why = whys.get(job, usual)
        return Reason(jobs.ids[job], "waits", why.rule, why.figures, why.lost_to, why.needs)

    told = wanted.waits.get
    waiting: list[int] = ((jobs.phase == WAITING) & (size == 0)).nonzero()[0].tolist()
    found += [told(job) or waits(job) for job in waiting]
    return found
