"""What every policy promises, for options other than the defaults, over several cycles."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies.capacity_queues import CapacityQueues
from scheduler.policies.drf import Drf
from scheduler.policies.fifo import Fifo
from scheduler.policies.gavel import Gavel
from scheduler.policies.gittins import Gittins
from scheduler.policies.interface import Kind, Policy, Snapshot
from scheduler.policies.queue_tree import Queue
from scheduler.policies.shortest import Sjf, Srtf
from scheduler.policies.sia import Sia
from scheduler.policies.themis import Themis
from tests.property.test_policies import NOW_S, columns, random_jobs, random_pools
from tests.snapshots import Job, Pool, apply, faults, snapshot

TENANTS = ("a", "a/x", "a/y", "b", "c/z")
QUEUES = (
    Queue("a", 0.5),
    Queue("a/x", 0.6, maximum=0.8),
    Queue("a/y", 0.4, user_limit=1.5, order="shortest"),
    Queue("b", 0.3, preemptible=False),
    Queue("c", 0.1, maximum=0.5),
)
VARIANTS: dict[str, Callable[[], Policy]] = {
    "fifo strict": lambda: Fifo(backfill="strict"),
    "fifo fit_first": lambda: Fifo(backfill="fit_first", sizes="requested"),
    "fifo conservative": lambda: Fifo(backfill="conservative", sizes="requested"),
    "sjf": Sjf,
    "sjf strict": lambda: Sjf(measure="gpus", passing=False),
    "srtf": Srtf,
    "srtf plain": lambda: Srtf(patience=0),
    "srtf gpu_time": lambda: Srtf(measure="gpu_time"),
    "drf": lambda: Drf(weights={"a": 2.0}, behind="job"),
    "drf stop": lambda: Drf(behind="stop"),
    "capacity": lambda: CapacityQueues(grace_s=0.0, cooldown_s=0.0),
    "capacity tree": lambda: CapacityQueues(
        queues=QUEUES, leaf_of={"a/x": "a/x", "a/y": "a/y", "b": "b"}, default_leaf="c"
    ),
    "capacity eager": lambda: CapacityQueues(
        queues=QUEUES, leaf_of={"a/x": "a/x", "a/y": "a/y"}, dead_zone=0.0, round_most=1.0
    ),
    "gittins": lambda: Gittins(samples=(100.0, 5000.0, 90_000.0), thresholds=(3000.0,)),
    "gittins quantum": lambda: Gittins(samples=(100.0, 5000.0), quantum=3250.0, settle=0.0),
    "themis": Themis,
    "themis fair": lambda: Themis(fairness=1.0, lease_s=300.0),
    "gavel": Gavel,
    "gavel makespan": lambda: Gavel(objective="makespan", round_s=100.0),
    "sia": Sia,
    "sia exact": lambda: Sia(gap=0.0, growth=8.0),
}


def seen_at(
    pools: list[Pool],
    jobs: list[Job],
    now_s: float,
    extra: dict[str, tuple[str, int, float]],
    notes: dict[str, tuple[float, ...]],
) -> Snapshot:
    """A snapshot with the columns that the builder leaves alike."""
    seen = snapshot(pools, jobs, now_s=now_s)
    mine = [extra[name] for name in seen.jobs.ids]
    noted = [[*notes.get(name, ()), *[np.nan] * 4][:4] for name in seen.jobs.ids]
    filled = replace(
        seen.jobs,
        tenants=tuple(row[0] for row in mine),
        requested=np.array([row[1] for row in mine], dtype=np.int64),
        attained_gpu_s=np.array([row[2] for row in mine]),
        held_s=np.array([row[2] / 4 for row in mine]),
        first_start_s=np.array([row[2] or np.inf for row in mine]),
        restarts=np.array([row[1] // 3 for row in mine], dtype=np.int64),
        notes=np.array(noted, dtype=np.float64).reshape(-1, 4),
    )
    return replace(seen, jobs=filled)


@pytest.mark.parametrize("name", sorted(VARIANTS))
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_a_variant_keeps_every_promise(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools = random_pools(rng)
    if rng.random() < 0.5:
        pools.append(Pool("fast", Kind.TRAINING, nodes=2, gpus=4, speed=2.0, memory_mib=20_000))
    jobs = random_jobs(rng, pools)
    extra = {
        job.id: (
            str(rng.choice(TENANTS)),
            int(rng.integers(1, 17)),
            float(rng.choice([0.0, rng.uniform(1, 1e5)])),
        )
        for job in jobs
    }
    policy = VARIANTS[name]()
    notes: dict[str, tuple[float, ...]] = {}
    for cycle in range(2):
        seen = seen_at(pools, jobs, NOW_S + 400.0 * cycle, extra, notes)
        before = columns(seen)
        plan = policy.plan(seen)
        plan.check_notes()
        assert faults(seen, plan) == []
        assert columns(seen) == before, "the policy changed its snapshot"
        notes.update(plan.notes)
        jobs = apply(seen, plan, jobs)
