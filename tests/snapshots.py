"""Snapshots from a few numbers, for tests and benchmarks of policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from scheduler.policies.checked import Names, check_reasons, checked
from scheduler.policies.interface import (
    NOTE,
    Holdings,
    Jobs,
    Kind,
    Lender,
    LoanPhase,
    Nodes,
    Phase,
    Plan,
    Policy,
    Pools,
    Snapshot,
)

INF = float("inf")
NEVER = -INF
SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool and its nodes, called `<id>-<number>`."""

    id: str
    kind: Kind = Kind.TRAINING
    nodes: int = 1
    gpus: int = 8
    speed: float = 1.0
    memory_mib: float = 80_000.0
    transfer_mib_per_s: float = 1000.0
    loan: LoanPhase | Sequence[LoanPhase] = LoanPhase.OWNED
    lent_since_s: float = NEVER
    returned_s: float = NEVER
    #: Of a lender: GPUs needed in each slot; the last is the present. Edge: the same for each node.
    history: Sequence[float] = ()
    load_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job. Speed at size k is k ** power steps per second."""

    id: str
    work_s: float = 3600.0  #: remaining, on one GPU.
    sizes: Sequence[int] = (1, 2, 4, 8)
    power: float = 0.9
    rates: Sequence[float] = ()  #: instead of `power`, one per size.
    held: Mapping[str, int] = field(default_factory=dict)  #: node -> GPUs.
    moving: bool = False
    leaves: bool = False
    submit_s: float = 0.0
    deadline_s: float = INF
    priority: int = 0
    changed_s: float = NEVER
    waiting_since_s: float = 0.0
    backoff_until_s: float = NEVER
    checkpoint_age_steps: float = 0.0
    checkpoint_cost_s: float = 10.0
    start_cost_s: float = 20.0
    checkpoint_mib: float = 1000.0
    memory_mib: float = 10_000.0
    edge_allowed: bool = False


def snapshot(
    pools: Sequence[Pool],
    jobs: Sequence[Job],
    now_s: float = 10_000.0,
    slot_s: float = 300.0,
    sizes: Sequence[int] = SIZES,
) -> Snapshot:
    """Build a snapshot; nodes and jobs in the order that the interface promises."""
    names, node_pool, gpus, loan = [], [], [], []
    for index, pool in enumerate(pools):
        phases = [pool.loan] * pool.nodes if isinstance(pool.loan, LoanPhase) else pool.loan
        for number in range(pool.nodes):
            names.append(f"{pool.id}-{number:03}")
            node_pool.append(index)
            gpus.append(pool.gpus)
            loan.append(phases[number])
    order = sorted(range(len(names)), key=lambda i: names[i])
    ids = tuple(names[i] for i in order)
    at = {name: i for i, name in enumerate(ids)}
    pool_of = np.array([node_pool[i] for i in order], dtype=np.int64)
    phase = np.array([loan[i] for i in order], dtype=np.int64)
    kinds = np.array([pool.kind for pool in pools], dtype=np.int64)
    usable = (kinds[pool_of] == Kind.TRAINING) | (phase == LoanPhase.LENT)
    free = np.array([gpus[i] for i in order], dtype=np.int64)
    jobs = sorted(jobs, key=lambda job: (job.submit_s, job.id))
    held = [
        (i, at[node], count)
        for i, job in enumerate(jobs)
        for node, count in sorted(job.held.items())
    ]
    for _, node, count in held:
        free[node] -= count
    assert (free >= 0).all(), "the jobs hold more than there is"
    free[~usable] = 0
    lenders = []
    for index, pool in enumerate(pools):
        mine = np.flatnonzero(pool_of == index)
        history = np.array(pool.history, dtype=np.float64)
        needed = float(history[-1]) if len(history) else 0.0
        if pool.kind == Kind.INFERENCE:
            lenders.append(Lender(pool.id, mine, needed, pool.load_age_s, history, slot_s))
        elif pool.kind == Kind.EDGE:
            lenders.extend(
                Lender(ids[n], np.array([n]), needed, pool.load_age_s, history, slot_s)
                for n in mine
            )
    return Snapshot(
        now_s=now_s,
        jobs=_jobs(jobs, pools, ids, pool_of, sizes),
        pools=Pools(
            ids=tuple(pool.id for pool in pools),
            kind=kinds,
            speed=np.array([pool.speed for pool in pools]),
            gpu_memory_mib=np.array([pool.memory_mib for pool in pools]),
            transfer_mib_per_s=np.array([pool.transfer_mib_per_s for pool in pools]),
        ),
        nodes=Nodes(
            ids=ids,
            pool=pool_of,
            gpus=np.array([gpus[i] for i in order], dtype=np.int64),
            free=free,
            usable=usable,
            loan=phase,
            lent_since_s=np.array([pools[i].lent_since_s for i in pool_of]),
            returned_s=np.array([pools[i].returned_s for i in pool_of]),
        ),
        holdings=Holdings(
            job=np.array([row[0] for row in held], dtype=np.int64),
            node=np.array([row[1] for row in held], dtype=np.int64),
            gpus=np.array([row[2] for row in held], dtype=np.int64),
        ),
        lenders=tuple(sorted(lenders, key=lambda lender: lender.id)),
    )


def _jobs(
    jobs: Sequence[Job],
    pools: Sequence[Pool],
    nodes: Sequence[str],
    pool_of: np.ndarray,
    sizes: Sequence[int],
) -> Jobs:
    rate = np.zeros((len(jobs), len(sizes)))
    for i, job in enumerate(jobs):
        for j, size in enumerate(job.sizes):
            rate[i, sizes.index(size)] = job.rates[j] if job.rates else size**job.power
    at = {name: i for i, name in enumerate(nodes)}

    def column(name: str) -> np.ndarray:
        return np.array([getattr(job, name) for job in jobs], dtype=np.float64)

    phases = [
        Phase.MOVING if job.moving else Phase.RUNNING if job.held else Phase.WAITING for job in jobs
    ]
    return Jobs(
        ids=tuple(job.id for job in jobs),
        tenants=("tenant",) * len(jobs),
        phase=np.array(phases, dtype=np.int64),
        submit_s=column("submit_s"),
        deadline_s=column("deadline_s"),
        priority=np.array([job.priority for job in jobs], dtype=np.int64),
        remaining_steps=column("work_s"),
        attained_gpu_s=np.zeros(len(jobs)),
        held_s=np.zeros(len(jobs)),
        first_start_s=np.full(len(jobs), INF),
        restarts=np.zeros(len(jobs), dtype=np.int64),
        requested=np.array([min(job.sizes, default=1) for job in jobs], dtype=np.int64),
        waiting_since_s=column("waiting_since_s"),
        size=np.array([sum(job.held.values()) for job in jobs], dtype=np.int64),
        held=np.array([sum(job.held.values()) for job in jobs], dtype=np.int64),
        pool=np.array(
            [int(pool_of[at[min(job.held)]]) if job.held else -1 for job in jobs], dtype=np.int64
        ),
        changed_s=column("changed_s"),
        sizes=np.array(sizes, dtype=np.int64),
        rate=rate,
        rate_age_s=np.full(len(jobs), INF),
        checkpoint_age_steps=column("checkpoint_age_steps"),
        checkpoint_cost_s=column("checkpoint_cost_s"),
        start_cost_s=column("start_cost_s"),
        checkpoint_mib=column("checkpoint_mib"),
        memory_mib=column("memory_mib"),
        edge_allowed=np.array([job.edge_allowed for job in jobs], dtype=np.bool_),
        backoff_until_s=column("backoff_until_s"),
        refused=np.zeros(len(jobs), dtype=np.bool_),
        leaves=np.array([job.leaves for job in jobs], dtype=np.bool_),
        notes=np.full((len(jobs), NOTE), np.nan),
        affinity=np.tile(np.array([pool.speed for pool in pools]), (len(jobs), 1)),
    )


def alike(one: Any, other: Any) -> bool:
    """Whether two snapshots, or parts of them, are the same, bit for bit."""
    if is_dataclass(one):
        names = [item.name for item in fields(one)]
        return all(alike(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, np.ndarray):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and one.tobytes() == other.tobytes()
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def faults(seen: Snapshot, plan: Plan) -> list[str]:
    """Return every promise of `Plan` that a plan breaks; empty if it keeps them all.

    Raises:
        MalformedPlan: the engine would not adopt it.
    """
    assert checked(plan, Names(seen)) == plan
    check_reasons(plan.reasons)
    jobs, nodes, pools = seen.jobs, seen.nodes, seen.pools
    job_at = {name: i for i, name in enumerate(jobs.ids)}
    node_at = {name: i for i, name in enumerate(nodes.ids)}
    found: list[str] = []
    free = np.where(nodes.usable, nodes.free, 0)
    leaving = set(plan.reclaim)
    for i, node, gpus in zip(*map(np.ndarray.tolist, _triples(seen)), strict=True):
        named = jobs.ids[i] in plan.targets
        if named and nodes.usable[node]:
            free[node] += gpus
        goes = nodes.ids[node] in leaving or nodes.loan[node] == LoanPhase.RECLAIMING
        if goes and not named and jobs.phase[i] == Phase.RUNNING:
            found.append(f"{jobs.ids[i]} stays on {nodes.ids[node]}, which goes back")
    for name, target in plan.targets.items():
        i = job_at[name]
        if jobs.phase[i] == Phase.MOVING:
            found.append(f"{name} is moving and was touched")
        if target is None:
            if jobs.phase[i] == Phase.WAITING:
                found.append(f"{name} waits and was preempted")
            continue
        pool = pools.ids.index(target.pool)
        level = np.flatnonzero(jobs.sizes == target.size)
        if not len(level) or jobs.rate[i, level[0]] <= 0:
            found.append(f"{name} got {target.size} GPUs, which it does not allow")
        if jobs.memory_mib[i] > pools.gpu_memory_mib[pool]:
            found.append(f"{name} does not fit the memory of {target.pool}")
        if jobs.affinity[i, pool] <= 0:
            found.append(f"{name} cannot run in {target.pool}")
        if pools.kind[pool] == Kind.EDGE:
            if len(target.placement) != 1 or not jobs.edge_allowed[i]:
                found.append(f"{name} may not be at the edge like this: {target}")
        held = _held(seen, i)
        if dict(target.placement) == held:
            found.append(f"{name} was named but does not change")
        if jobs.backoff_until_s[i] > seen.now_s and not held:
            found.append(f"{name} was started while it backs off")
        for node_name, gpus in target.placement:
            node = node_at[node_name]
            if gpus <= 0 or nodes.pool[node] != pool:
                found.append(f"{name} has a wrong share of {node_name}: {gpus}")
            if not nodes.usable[node] or node_name in leaving:
                found.append(f"{name} was put on {node_name}, which takes no work")
            free[node] -= gpus
    found.extend(f"{nodes.ids[n]} is {-free[n]} over" for n in np.flatnonzero(free < 0).tolist())
    found.extend(
        f"{n} cannot be lent" for n in plan.lend if nodes.loan[node_at[n]] != LoanPhase.OWNED
    )
    theirs = (LoanPhase.LENDING, LoanPhase.LENT)
    found.extend(
        f"{n} cannot be reclaimed" for n in leaving if nodes.loan[node_at[n]] not in theirs
    )
    found.extend(
        f"{name} was declined, and does not wait"
        for name in plan.decline
        if name in plan.targets or jobs.phase[job_at[name]] != Phase.WAITING
    )
    subjects = [reason.subject for reason in plan.reasons]
    found.extend(
        f"{name} has no reason"
        for name in (*plan.targets, *plan.lend, *plan.reclaim)
        if subjects.count(name) != 1
    )
    # What a policy gives is written to the journal as JSON.
    found.extend(
        f"{reason.subject}: {name} is a {type(value).__name__}"
        for reason in plan.reasons
        for name, value in [
            *((item.name, item.value) for item in reason.figures),
            *((item.name, item.have) for item in reason.needs),
            *((item.name, item.want) for item in reason.needs),
        ]
        if type(value) not in (int, float)
    )
    found.extend(
        f"{name} has a placement of {type(gpus).__name__}"
        for name, target in plan.targets.items()
        for _, gpus in (target.placement if target is not None else ())
        if type(gpus) is not int
    )
    found.extend(
        f"{jobs.ids[i]} waits without a reason"
        for i in np.flatnonzero(jobs.phase == Phase.WAITING).tolist()
        if jobs.ids[i] not in plan.targets and subjects.count(jobs.ids[i]) != 1
    )
    return found


def decide(policy: Policy, seen: Snapshot) -> Plan:
    """Have a policy decide, and check that its plan keeps every promise."""
    plan = policy.plan(seen)
    assert faults(seen, plan) == []
    return plan


def rules(plan: Plan) -> dict[str, str]:
    """Return by which rule each subject of a plan fares as it does."""
    return {reason.subject: reason.rule for reason in plan.reasons}


def apply(seen: Snapshot, plan: Plan, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs as they are when all that a plan wants has come about."""
    after = []
    for job in jobs:
        if job.id in plan.targets:
            target = plan.targets[job.id]
            held = dict(target.placement) if target else {}
            job = replace(job, held=held, changed_s=seen.now_s)
        after.append(job)
    return after


def _triples(seen: Snapshot) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return seen.holdings.job, seen.holdings.node, seen.holdings.gpus


def _held(seen: Snapshot, job: int) -> dict[str, int]:
    mine = seen.holdings.job == job
    return {
        seen.nodes.ids[node]: gpus
        for node, gpus in zip(
            seen.holdings.node[mine].tolist(), seen.holdings.gpus[mine].tolist(), strict=True
        )
    }
