"""Virtual clusters: what a tenant owns is there for its gangs, whole, whoever uses it meanwhile."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies.interface import NOTE, Plan, Snapshot
from scheduler.policies.virtual_clusters import BONUS, GUARANTEED, VirtualClusters
from tests.snapshots import Job, Pool, apply, faults, snapshot

NODES, GPUS = 4, 8
RULE = VirtualClusters(nodes={"a": 2, "b": 2})
Notes = dict[str, tuple[float, ...]]


def seen(jobs: list[Job], notes: Notes | None = None, nodes: int = NODES) -> Snapshot:
    """Jobs are called `tenant-...`; a node has 8 GPUs."""
    one = snapshot([Pool("train", nodes=nodes)], jobs, sizes=(1, 2, 3, 4, 8, 16))
    rows = np.full((len(one.jobs.ids), NOTE), np.nan)
    for at, name in enumerate(one.jobs.ids):
        note = (notes or {}).get(name, ())
        rows[at, : len(note)] = note
    tenants = tuple(name.partition("-")[0] for name in one.jobs.ids)
    return replace(one, jobs=replace(one.jobs, tenants=tenants, notes=rows))


def decide(one: Snapshot, policy: VirtualClusters = RULE) -> Plan:
    plan = policy.plan(one)
    assert faults(one, plan) == []
    return plan


def sizes(plan: Plan) -> dict[str, int]:
    return {name: target.size if target else 0 for name, target in plan.targets.items()}


def spread(gpus: int, nodes: int = NODES) -> list[Job]:
    """One bonus job of b on each node."""
    held = [{f"train-{node:03}": gpus} for node in range(nodes)]
    return [Job(f"b-{n}", sizes=(gpus,), held=where) for n, where in enumerate(held)]


def test_a_gang_that_fits_its_own_nodes_gets_one_of_the_shared_cluster() -> None:
    """Every node has a job of b: 28 GPUs are free, and no node is. A quota of GPUs would not do."""
    jobs = [*spread(1), Job("a-new", sizes=(8,), submit_s=9.0)]
    plan = decide(seen(jobs, {"b-0": BONUS}))
    assert sizes(plan)["a-new"] == 8
    target = plan.targets["a-new"]
    assert target is not None
    assert len(target.placement) == 1
    (moved,) = set(plan.targets) - {"a-new"}
    assert plan.notes["a-new"] == GUARANTEED
    told = {reason.subject: reason for reason in plan.reasons}[moved]
    assert (told.rule, told.lost_to) == ("virtual_clusters.reclaim", ("a-new",))


def test_a_bonus_gang_that_gives_way_stops_only_if_there_is_no_room_elsewhere() -> None:
    jobs = [*spread(8), Job("a-new", sizes=(4,), submit_s=9.0)]
    plan = decide(seen(jobs))
    # b owns two of the nodes that it fills: jobs there are guaranteed, the latest of the rest goes.
    assert sizes(plan) == {"b-2": 0, "a-new": 4} or sizes(plan) == {"b-3": 0, "a-new": 4}
    assert [plan.notes[f"b-{n}"] for n in (0, 1)] == [GUARANTEED, GUARANTEED]
    few = decide(seen([*spread(2), Job("a-new", sizes=(8,), submit_s=9.0)]))
    assert 0 not in sizes(few).values()


def test_what_a_tenant_does_not_own_is_bonus_and_small_gangs_share_a_cell() -> None:
    jobs = [Job(f"a-{n}", sizes=(8,)) for n in range(3)]
    plan = decide(seen(jobs))
    assert [plan.notes[job.id] for job in jobs] == [GUARANTEED, GUARANTEED, BONUS]
    small = [Job("a-0", sizes=(4,)), Job("b-0", sizes=(2,)), Job("a-1", sizes=(2,))]
    plan = decide(seen(small))
    where = {name: target.placement[0][0] for name, target in plan.targets.items() if target}
    assert where["a-0"] == where["a-1"] != where["b-0"]


def test_a_gang_on_two_nodes_needs_two_that_its_tenant_has_not_bound() -> None:
    held = Job("a-0", sizes=(1,), held={"train-000": 1})
    wide = Job("a-wide", sizes=(16,), submit_s=1.0)
    plan = decide(seen([wide]))
    assert (sizes(plan), plan.notes["a-wide"]) == ({"a-wide": 16}, GUARANTEED)
    plan = decide(seen([held, wide], {"a-0": GUARANTEED}))
    assert plan.notes["a-wide"] == BONUS


def test_without_options_all_tenants_own_the_same() -> None:
    jobs = [Job(f"{tenant}-{n}", sizes=(8,)) for tenant in "ab" for n in range(3)]
    plan = decide(seen(jobs), VirtualClusters())
    ran = [name for name, size in sizes(plan).items() if size]
    assert ran == ["a-0", "a-1", "b-0", "b-1"]
    assert VirtualClusters().plan(snapshot([], [])).targets == {}


def check_cells(one: Snapshot, jobs: list[Job], notes: Notes) -> None:
    """Who waits does not fit the nodes its tenant owns; nobody has more cells than that."""
    for tenant, owned in RULE.nodes.items():
        mine = [job for job in jobs if job.id.startswith(tenant)]
        used: dict[str, int] = {}
        for job in mine:
            for node, gpus in job.held.items() if notes.get(job.id) == GUARANTEED else ():
                used[node] = used.get(node, 0) + gpus
        assert len(used) <= owned
        for job in mine:
            (size,) = job.sizes
            if not job.held:
                assert len(used) + math.ceil(size / GPUS) > owned
                assert size > GPUS or all(GPUS - gpus < size for gpus in used.values())


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_no_gang_waits_that_its_tenants_nodes_could_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs: list[Job] = []
    notes: Notes = {}
    for cycle in range(12):
        jobs = [job for job in jobs if not job.held or rng.random() > 0.25]
        for n in range(int(rng.integers(0, 5))):
            size = int(rng.choice([1, 1, 2, 3, 4, 8, 16]))
            name = f"{rng.choice(['a', 'b'])}-{cycle:02}-{n}"
            jobs.append(Job(name, sizes=(size,), submit_s=float(cycle)))
        one = seen(jobs, notes)
        plan = decide(one)
        stopped = [name for name, target in plan.targets.items() if target is None]
        assert all(notes.get(name) != GUARANTEED for name in stopped)
        notes.update(plan.notes)
        jobs = apply(one, plan, jobs)
        check_cells(one, jobs, notes)


@pytest.mark.parametrize("owned", [0, 5])
def test_a_tenant_that_owns_nothing_or_too_much_breaks_nothing(owned: int) -> None:
    plan = decide(seen([Job("a-0", sizes=(8,))]), VirtualClusters(nodes={"a": owned}))
    assert sizes(plan) == {"a-0": 8}
