"""What every policy promises, on random clusters."""

import math
import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import assume, example, given, settings, strategies as st

from scheduler.policies.interface import (
    Holdings,
    Kind,
    Lender,
    LoanPhase,
    Phase,
    Plan,
    Pools,
    Snapshot,
)
from scheduler.policies.registry import POLICIES, make_policy
from scheduler.policies.tide.market import open_market
from tests.drawn import Draw, drawn
from tests.effort import examples
from tests.markets import opened
from tests.snapshots import NEVER, Job, Pool, apply, faults, snapshot

NOW_S = 200_000.0
TENANTS = ("a", "a/x", "a/y", "b", "c/z")


def random_pools(rng: np.random.Generator) -> list[Pool]:
    pools = [Pool("train", nodes=int(rng.integers(1, 5)), gpus=int(rng.choice([4, 8])))]
    if rng.random() < 0.3:
        pools.append(Pool("fast", nodes=2, gpus=4, speed=2.0, memory_mib=20_000))
    if rng.random() < 0.8:
        count = int(rng.integers(1, 6))
        pools.append(
            Pool(
                "infer",
                Kind.INFERENCE,
                nodes=count,
                speed=float(rng.uniform(0.3, 1.2)),
                memory_mib=float(rng.choice([16_000, 80_000])),
                loan=[LoanPhase(int(x)) for x in rng.integers(0, 4, count)],
                lent_since_s=NOW_S - float(rng.integers(0, 5000)),
                returned_s=float(rng.choice([NEVER, NOW_S - 100])),
                history=rng.uniform(0, 8 * count, int(rng.integers(1, 400))).tolist(),
                load_age_s=float(rng.choice([1.0, 5000.0])),
            )
        )
    pools.extend(
        Pool(
            f"edge{edge}",
            Kind.EDGE,
            nodes=int(rng.integers(1, 4)),
            gpus=int(rng.integers(1, 5)),
            speed=float(rng.uniform(0.1, 0.9)),
            memory_mib=16_000,
            transfer_mib_per_s=float(rng.uniform(1, 100)),
            loan=LoanPhase(int(rng.choice([0, 2, 2, 2, 3]))),
            lent_since_s=NOW_S - float(rng.integers(0, 5000)),
            history=(rng.uniform(0, 1, 50) * (rng.random() < 0.3)).tolist(),
        )
        for edge in range(int(rng.integers(0, 4)))
    )
    return pools


def random_jobs(rng: np.random.Generator, pools: list[Pool]) -> list[Job]:
    free = {
        (p, f"{pool.id}-{n:03}"): pool.gpus
        for p, pool in enumerate(pools)
        for n in range(pool.nodes)
        if pool.kind == Kind.TRAINING
        or (pool.loan if isinstance(pool.loan, LoanPhase) else pool.loan[n])
        in (LoanPhase.LENT, LoanPhase.RECLAIMING)
    }
    jobs = []
    for number in range(int(rng.integers(0, 25))):
        low = int(rng.integers(0, 4))
        sizes = (1, 2, 4, 8, 16)[low : low + int(rng.integers(1, 5))]
        edge = bool(rng.random() < 0.4)
        memory = float(rng.choice([8_000, 16_000, 40_000]))
        held: dict[str, int] = {}
        if rng.random() < 0.6:
            pool = int(rng.integers(len(pools)))
            want = int(rng.choice(sizes))
            allowed = memory <= pools[pool].memory_mib
            if pools[pool].kind == Kind.EDGE:
                allowed = allowed and edge
            nodes = [key for key in free if key[0] == pool and free[key]]
            if pools[pool].kind == Kind.EDGE:
                nodes = [key for key in nodes if free[key] >= want][:1]
            if allowed and sum(free[key] for key in nodes) >= want:
                for key in nodes:
                    take = min(free[key], want)
                    if take:
                        held[key[1]] = take
                        free[key] -= take
                        want -= take
        rates = np.cumsum(rng.uniform(-0.2, 1.0, len(sizes)).clip(0.01)) * sizes[0]
        jobs.append(
            Job(
                f"job-{number:02}",
                work_s=float(rng.uniform(0, 50_000)),
                sizes=sizes if rng.random() < 0.97 else (),
                rates=rates.tolist() if rng.random() < 0.5 else (),
                held=held,
                moving=bool(held) and bool(rng.random() < 0.2),
                submit_s=float(rng.integers(0, 100)),
                deadline_s=NOW_S + float(rng.uniform(-2000, 40_000))
                if rng.random() < 0.5
                else float("inf"),
                priority=int(rng.integers(0, 3)),
                changed_s=NOW_S - float(rng.choice([10, 100, 5000])),
                waiting_since_s=NOW_S - float(rng.integers(0, 10_000)),
                backoff_until_s=NOW_S + float(rng.choice([NEVER, 50])),
                checkpoint_age_steps=float(rng.uniform(0, 500)),
                checkpoint_cost_s=float(rng.uniform(1, 100)),
                memory_mib=memory,
                edge_allowed=edge,
            )
        )
    return jobs


def random_past(rng: np.random.Generator, seen: Snapshot) -> Snapshot:
    """Give jobs tenants, a past and a liking of pools, which the builder leaves alike.

    A job does not run at all where its affinity is 0; a few are there all the same.
    """
    n = len(seen.jobs.ids)
    liking = rng.spawn(1)[0]
    shape = seen.jobs.affinity.shape
    affinity = seen.jobs.affinity * liking.choice([0.0, 0.5, 1.0, 1.0, 1.5], shape)
    here = (seen.jobs.pool >= 0) & (liking.random(n) < 0.95)
    rows, pools = np.flatnonzero(here), seen.jobs.pool[here]
    affinity[rows, pools] = np.maximum(affinity[rows, pools], 0.3)
    attained = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(1.0, 1e5, n))
    jobs = replace(
        seen.jobs,
        tenants=tuple(rng.choice(TENANTS, n).tolist()),
        requested=rng.integers(1, 17, n),
        attained_gpu_s=attained,
        held_s=attained / 4,
        first_start_s=np.where(attained > 0, attained, np.inf),
        restarts=rng.integers(0, 6, n),
        affinity=affinity,
    )
    return replace(seen, jobs=jobs)


def out_of_contact(seen: Snapshot, node: int) -> Snapshot:
    """Return the snapshot as the engine shows it while a node is silent: its jobs are MOVING."""
    free, usable, held = seen.nodes.free.copy(), seen.nodes.usable.copy(), seen.holdings
    free[node], usable[node] = 0, False
    kept = held.node != node
    phase = seen.jobs.phase.copy()
    phase[held.job[~kept]] = Phase.MOVING
    return replace(
        seen,
        jobs=replace(seen.jobs, phase=phase),
        nodes=replace(seen.nodes, free=free, usable=usable),
        holdings=Holdings(held.job[kept], held.node[kept], held.gpus[kept]),
    )


def random_snapshot(rng: np.random.Generator) -> Snapshot:
    pools = random_pools(rng)
    seen = random_past(rng, snapshot(pools, random_jobs(rng, pools), now_s=NOW_S))
    if rng.random() < 0.2:
        return out_of_contact(seen, int(rng.integers(len(seen.nodes.ids))))
    return seen


@st.composite
def snapshots(draw: Draw) -> Snapshot:
    return random_snapshot(drawn(draw))


def columns(value: Any) -> Any:
    """Return a snapshot as plain values, to compare."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple):
        return tuple(columns(item) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        return tuple(columns(getattr(value, field.name)) for field in fields(value))
    return value


@given(seen=snapshots())
@settings(max_examples=examples(100))
def test_every_plan_keeps_every_promise(seen: Snapshot) -> None:
    before = columns(seen)
    for name in sorted(POLICIES):
        plan = make_policy(name).plan(seen)
        assert faults(seen, plan) == [], name
        assert columns(seen) == before, f"{name} changed its snapshot"


@given(seen=snapshots())
@settings(max_examples=examples(40))
def test_equal_snapshots_give_equal_plans(seen: Snapshot) -> None:
    again: Snapshot = pickle.loads(pickle.dumps(seen))
    for name in sorted(POLICIES):
        first, second = make_policy(name).plan(seen), make_policy(name).plan(again)
        assert first == second, name
        assert list(first.targets) == list(second.targets), name


def with_empty_pool(seen: Snapshot, kind: Kind, at: int) -> Snapshot:
    """Return the snapshot as it is once all nodes of one more pool are gone."""
    jobs, nodes, pools = seen.jobs, seen.nodes, seen.pools
    best = {"speed": 3.0, "gpu_memory_mib": 1e6, "transfer_mib_per_s": 1e6, "kind": kind}
    columns = {name: np.insert(getattr(pools, name), at, value) for name, value in best.items()}
    affinity = np.insert(jobs.affinity, at, 3.0, axis=1)
    lender = Lender("none", np.zeros(0, dtype=np.int64), 0.0, 1.0, np.zeros(9), 300.0)
    return replace(
        seen,
        jobs=replace(jobs, pool=jobs.pool + (jobs.pool >= at), affinity=affinity),
        pools=Pools(ids=(*pools.ids[:at], "none", *pools.ids[at:]), **columns),
        nodes=replace(nodes, pool=nodes.pool + (nodes.pool >= at)),
        lenders=(*seen.lenders, lender) if kind == Kind.INFERENCE else seen.lenders,
    )


@given(seen=snapshots(), kind=st.sampled_from(Kind), at=st.integers(0, 9))
@settings(max_examples=examples(40))
def test_a_pool_without_nodes_changes_nothing(seen: Snapshot, kind: Kind, at: int) -> None:
    more = with_empty_pool(seen, kind, min(at, len(seen.pools.ids)))
    for name in sorted(POLICIES):
        policy = make_policy(name)
        assert policy.plan(more) == policy.plan(seen), name


@st.composite
def jobs_in(draw: Draw, pools: list[Pool]) -> list[Job]:
    return random_jobs(drawn(draw), pools)


RESTS = [Pool("train", nodes=4), Pool("infer", Kind.INFERENCE, nodes=2, loan=LoanPhase.LENT)]
#: Three of these jobs took turns at two like sites, for ever.
TURNS = random_jobs(np.random.default_rng(7463), RESTS)


@given(jobs=jobs_in(RESTS))
@example(jobs=TURNS)
@settings(max_examples=examples(100))
def test_tide_comes_to_rest(jobs: list[Job]) -> None:
    """Asked again with its own plan carried out, it changes ever less, and then nothing.

    Within minutes: in hours, who waits becomes dearer than who runs.
    """
    jobs = [
        Job(job.id, work_s=job.work_s + 100, sizes=job.sizes or (1,), submit_s=job.submit_s)
        for job in jobs
    ]
    policy = make_policy("tide")
    plan = Plan()
    for cycle in range(10):
        if cycle >= 6:  # a change that came lately is an advantage to stay, which fades
            jobs = [replace(job, changed_s=NEVER) for job in jobs]
        seen = snapshot(RESTS, jobs, now_s=NOW_S + 60 * cycle)
        plan = policy.plan(seen)
        assert faults(seen, plan) == []
        jobs = apply(seen, plan, jobs)
    assert dict(plan.targets) == {}


TWO = [Pool("train", nodes=4), Pool("other", nodes=2)]


@given(jobs=jobs_in(TWO), later_s=st.floats(60.0, 7200.0))
@settings(max_examples=examples(100))
def test_what_tide_changes_is_worth_more_than_what_was(jobs: list[Job], later_s: float) -> None:
    """Some time after its own plan, everything that a change costs counted; all of one class."""
    jobs = [replace(job, deadline_s=math.inf, priority=0) for job in jobs]
    seen = snapshot(TWO, jobs, now_s=NOW_S)
    jobs = apply(seen, make_policy("tide").plan(seen), jobs)
    seen = snapshot(TWO, jobs, now_s=NOW_S + later_s)
    assume(len(open_market(seen, {}).rows))
    found = opened(seen)
    each = np.arange(len(found.market.rows))
    then = found.value[found.found.site, each, found.found.level].sum()
    assert then >= found.value[found.market.here].sum() * (1 - 1e-12)
