"""What every policy promises, for options other than the defaults, over several cycles."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler.policies.interface import NOTE, Kind, Policy, Snapshot
from scheduler.policies.literature.afs import Afs
from scheduler.policies.literature.aryl import Aryl
from scheduler.policies.literature.capacity_queues import CapacityQueues
from scheduler.policies.literature.deepboot import DeepBoot
from scheduler.policies.literature.drf import Drf
from scheduler.policies.literature.edf import Edf
from scheduler.policies.literature.elasticflow import ElasticFlow
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.literature.gandiva import Gandiva
from scheduler.policies.literature.gavel import Gavel
from scheduler.policies.literature.gittins import Gittins
from scheduler.policies.literature.optimus import Optimus
from scheduler.policies.literature.pollux import Pollux
from scheduler.policies.literature.shortest import Sjf, Srtf
from scheduler.policies.literature.sia import Sia
from scheduler.policies.literature.themis import Themis
from scheduler.policies.parts.queue_tree import Queue, grow_tree
from tests.drawn import Draw, drawn
from tests.effort import examples
from tests.property.test_policies import NOW_S, columns, random_jobs, random_past, random_pools
from tests.snapshots import Job, Pool, apply, decide, snapshot

Notes = dict[str, tuple[float, ...]]
#: What a job of the next cycle has from this one.
PAST = ("tenants", "requested", "attained_gpu_s", "held_s", "first_start_s", "restarts", "affinity")
QUEUES = (
    Queue("a", 0.5),
    Queue("a/x", 0.6, maximum=0.8),
    Queue("a/y", 0.4, user_limit=1.5, order="shortest"),
    Queue("b", 0.3, preemptible=False),
    Queue("c", 0.1, maximum=0.5),
)
TREE = CapacityQueues(
    queues=QUEUES, leaf_of={"a/x": "a/x", "a/y": "a/y", "b": "b"}, default_leaf="c"
)
VARIANTS: dict[str, Callable[[], Policy]] = {
    "fifo strict": lambda: Fifo(backfill="strict", sizes="requested"),
    "edf": Edf,
    "edf largest": lambda: Edf(most="largest"),
    "elasticflow": ElasticFlow,
    "gandiva": Gandiva,
    "optimus exact": lambda: Optimus(solver="exact"),
    "afs unknown": lambda: Afs(lengths="unknown"),
    "pollux": Pollux,
    "pollux sum": lambda: Pollux(power=1.0),
    "pollux logs": lambda: Pollux(power=0.0, doubling=False),
    "aryl fraction": lambda: Aryl(rules=("fraction",)),
    "deepboot free": lambda: DeepBoot(doubling=False, interval_s=0.0),
    "sjf": Sjf,
    "srtf": Srtf,
    "drf": lambda: Drf(weights={"a": 2.0}),
    "capacity": lambda: CapacityQueues(grace_s=0.0, cooldown_s=0.0),
    "capacity tree": lambda: TREE,
    "capacity eager": lambda: CapacityQueues(
        queues=QUEUES, leaf_of={"a/x": "a/x", "a/y": "a/y"}, dead_zone=0.0, round_most=1.0
    ),
    "gittins": lambda: Gittins(samples=(100.0, 5000.0, 90_000.0), settle=0.0),
    "themis": Themis,
    "themis fair": lambda: Themis(fairness=1.0, lease_s=300.0),
    "gavel": Gavel,
    "gavel short rounds": lambda: Gavel(round_s=100.0),
    "sia": Sia,
    "sia exact": lambda: Sia(gap=0.0, growth=8.0),
}


def again(seen: Snapshot, pools: list[Pool], jobs: list[Job], notes: Notes) -> Snapshot:
    """Show jobs as they are 400 s later, with the past they had and what was noted."""
    fresh = snapshot(pools, jobs, now_s=seen.now_s + 400.0)
    kept = {name: getattr(seen.jobs, name) for name in PAST}
    rows = [[*notes.get(name, ()), *[np.nan] * NOTE][:NOTE] for name in fresh.jobs.ids]
    noted = np.array(rows, dtype=np.float64).reshape(-1, NOTE)
    return replace(fresh, jobs=replace(fresh.jobs, notes=noted, **kept))


World = tuple[list[Pool], list[Job], Snapshot]


@st.composite
def worlds(draw: Draw) -> World:
    """Draw pools, jobs, and what is seen of them."""
    rng = drawn(draw)
    pools = random_pools(rng)
    jobs = random_jobs(rng, pools)
    return pools, jobs, random_past(rng, snapshot(pools, jobs, now_s=NOW_S))


@pytest.mark.parametrize("name", sorted(VARIANTS))
@given(world=worlds())
@settings(max_examples=examples(15), deadline=None)
def test_a_variant_keeps_every_promise(name: str, world: World) -> None:
    pools, jobs, seen = world
    policy = VARIANTS[name]()
    notes: Notes = {}
    for _ in range(2):
        before = columns(seen)
        plan = decide(policy, seen)
        assert columns(seen) == before, "the policy changed its snapshot"
        assert policy.plan(seen) == plan
        notes.update(plan.notes)
        jobs = apply(seen, plan, jobs)
        seen = again(seen, pools, jobs, notes)


@given(world=worlds())
@settings(max_examples=examples(60), deadline=None)
def test_no_plan_brings_a_queue_or_a_user_over_its_maximum(world: World) -> None:
    pools, jobs, seen = world
    after = snapshot(pools, apply(seen, TREE.plan(seen), jobs), now_s=NOW_S)
    trains = (seen.pools.kind[seen.nodes.pool] == Kind.TRAINING) & seen.nodes.usable
    cluster = int(seen.nodes.gpus[trains].sum())
    tenants = seen.jobs.tenants
    trees = []
    for size, pool in ((seen.jobs.size, seen.jobs.pool), (after.jobs.size, after.jobs.pool)):
        tree = grow_tree(QUEUES, TREE.leaf_of, TREE.default_leaf, tenants, cluster)
        for job in np.flatnonzero((size > 0) & (seen.pools.kind[pool] == Kind.TRAINING)).tolist():
            tree.leaf(tenants[job]).add(int(size[job]), tenants[job])
        trees.append(tree)
    for was, now in zip(trees[0].branches[1:], trees[1].branches[1:], strict=True):
        assert now.used <= max(was.used, now.most + 1e-6), now.rule.path
        for user, gpus in now.by_user.items():
            assert gpus <= max(was.by_user.get(user, 0), now.user_most() + 1e-6), user
