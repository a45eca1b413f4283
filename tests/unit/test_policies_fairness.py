"""Fair and index policies: DRF in a tree, the Gittins index, finish-time fairness."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler.policies.interface import Snapshot
from scheduler.policies.literature.drf import Drf, Tree
from scheduler.policies.literature.gittins import Gittins, gittins_rank
from scheduler.policies.literature.themis import Themis
from tests.effort import examples
from tests.markets import columns, noted, sizes
from tests.snapshots import Job, Pool, decide, snapshot

NOW_S = 10_000.0
INF = float("inf")


def of_tenants(seen: Snapshot, tenants: dict[str, str]) -> Snapshot:
    named = tuple(tenants[job] for job in seen.jobs.ids)
    return replace(seen, jobs=replace(seen.jobs, tenants=named))


# --- dominant resource fairness -------------------------------------------------------------------


def fill(tree: Tree, demand: dict[str, list[float]]) -> list[str]:
    """Serve endless queues until the next task does not fit."""
    for path in demand:
        tree.leaf(path).queue = [0]
    tree.refresh()
    served = []
    while leaf := tree.next():
        ask = np.array(demand[leaf.path])
        if (tree.root.total + ask > tree.capacity + 1e-9).any():
            break
        tree.grant(leaf, ask)
        served.append(leaf.path)
    return served


def test_two_users_get_equal_dominant_shares() -> None:
    """9 CPUs, 18 GB; tasks of (1, 4) and of (3, 1), so shares of 2/9 and 1/3 a task.

    Equal shares x * 2/9 = y / 3 within x + 3 y <= 9 give x = 3, y = 2: two thirds for both.
    """
    tree = Tree(np.array([9.0, 18.0]), ["a", "b"], {})
    served = fill(tree, {"a": [1.0, 4.0], "b": [3.0, 1.0]})
    assert (served.count("a"), served.count("b")) == (3, 2)
    assert tree.leaf("a").share == pytest.approx(2 / 3)
    assert tree.leaf("b").share == pytest.approx(2 / 3)


def test_the_smaller_dominant_share_goes_first() -> None:
    """One holds 0.4 of the memory and 0.2 of the GPUs, the other 0.5 of the GPUs."""
    tree = Tree(np.array([10.0, 100.0]), ["job1", "job2"], {})
    tree.grant(tree.leaf("job1"), np.array([2.0, 40.0]))
    tree.grant(tree.leaf("job2"), np.array([5.0, 10.0]))
    for path in ("job1", "job2"):
        tree.leaf(path).queue = [0]
    tree.refresh()
    assert [tree.leaf(path).share for path in ("job1", "job2")] == [0.4, 0.5]
    found = tree.next()
    assert found is not None
    assert found.path == "job1"


def test_groups_are_equal_whatever_is_below_them() -> None:
    paths = ["a/x", "a/y", "b"]
    flat = fill(Tree(np.array([12.0]), paths, {}), {path: [1.0] for path in paths})
    assert [flat.count(path) for path in paths] == [3, 3, 6]
    heavy = Tree(np.array([12.0]), ["a/x", "b"], {"a": 2.0})
    assert fill(heavy, {"a/x": [1.0], "b": [1.0]}).count("a/x") == 8


def test_a_group_is_not_held_back_by_a_saturated_resource_below_it() -> None:
    """H-DRF's point: `a/y` wants memory only, which `a/x`, on GPUs, does not use.

    Summed up as held, `a` would have the share of `a/x` alone and `a/y` would starve behind `b`.
    """
    tree = Tree(np.array([10.0, 10.0]), ["a/x", "a/y", "b"], {})
    tree.grant(tree.leaf("a/x"), np.array([6.0, 0.0]))
    tree.grant(tree.leaf("b"), np.array([0.0, 2.0]))
    tree.leaf("a/y").queue = tree.leaf("b").queue = [0]
    tree.refresh()
    found = tree.next()
    assert found is not None
    assert found.path == "a/y"


def test_drf_serves_tenants_by_share_and_gpu_memory_counts() -> None:
    jobs = [Job(f"a{k}", sizes=(2,), memory_mib=10_000) for k in range(4)]
    jobs += [Job(f"b{k}", sizes=(2,), memory_mib=10_000, submit_s=1) for k in range(4)]
    tenants = {job.id: job.id[0] for job in jobs}
    seen = of_tenants(snapshot([Pool("train")], jobs), tenants)
    assert sizes(decide(Drf(), seen)) == {"a0": 2, "a1": 2, "b0": 2, "b1": 2}
    assert sizes(decide(Drf(weights={"a": 3.0}), seen)) == {"a0": 2, "a1": 2, "a2": 2, "b0": 2}


def test_behind_a_gang_that_does_not_fit_no_gpu_is_idle() -> None:
    jobs = [
        Job("a-run", sizes=(2,), held={"train-000": 2}),
        Job("a0", sizes=(8,), submit_s=1),
        Job("a1", sizes=(1,), submit_s=2),
        Job("b0", sizes=(4,), submit_s=3),
        Job("b1", sizes=(1,), submit_s=4),
    ]
    seen = of_tenants(snapshot([Pool("train")], jobs), {job.id: job.id[0] for job in jobs})
    assert sizes(decide(Drf(), seen)) == {"a1": 1, "b0": 4, "b1": 1}


def test_a_group_may_have_jobs_of_its_own() -> None:
    jobs = [Job(name, sizes=(2,)) for name in "abcdef"]
    tenants = dict(zip("abcdef", ["g", "g", "g", "g/x", "g/x", "h"], strict=True))
    seen = of_tenants(snapshot([Pool("train")], jobs), tenants)
    assert sizes(decide(Drf(), seen)) == {"a": 2, "d": 2, "e": 2, "f": 2}


# --- the Gittins index ----------------------------------------------------------------------------

SERVICE = st.integers(1_000, 10**8).map(lambda thousandths: thousandths / 1000.0)


def brute_force(attained: float, samples: list[float]) -> float:
    """The definition, over every D at which P or E has a corner."""
    left = [size - attained for size in samples if size > attained]
    return max(sum(rest <= D for rest in left) / sum(min(rest, D) for rest in left) for D in left)


@given(samples=st.lists(SERVICE, min_size=1, max_size=30), attained=SERVICE)
@settings(max_examples=examples(300))
def test_the_index_is_the_one_of_the_definition(samples: list[float], attained: float) -> None:
    known = attained < max(samples)
    want = brute_force(attained, samples) if known else 1 / attained
    found = gittins_rank(np.array([attained]), np.array(samples))
    assert found[0] == pytest.approx(want, rel=1e-6)


def test_many_jobs_are_ranked_as_each_alone() -> None:
    rng = np.random.default_rng(1)
    samples, attained = rng.lognormal(8, 2, 3000), rng.lognormal(7, 2, 1000)
    together = gittins_rank(attained, samples)
    alone = [float(gittins_rank(attained[k : k + 1], samples)[0]) for k in range(0, 1000, 50)]
    assert together[::50].tolist() == alone


def test_gittins_prefers_who_is_about_to_end() -> None:
    """Jobs take 100 or 10,000 GPU-seconds: at 90 one is nearly done, at 200 it is a long one."""
    jobs = [Job("late", sizes=(8,), held={"train-000": 8}), Job("early", sizes=(8,), submit_s=1)]
    samples = (100.0, 100.0, 100.0, 10_000.0)
    policy = Gittins(samples=samples)
    for attained, want in (([200.0, 90.0], {"late": 0, "early": 8}), ([90.0, 200.0], {})):
        seen = snapshot([Pool("train")], jobs)
        seen = columns(seen, attained_gpu_s=np.array(attained))
        assert sizes(decide(policy, seen)) == want
        fresh = columns(seen, changed_s=np.array([NOW_S - 59, -INF]))
        assert sizes(decide(policy, fresh)) == {}


@pytest.mark.parametrize(
    ("attained", "left", "want"),
    [((5000.0, 4000.0), (5000.0, 6000.0), {}), ((200.0, 0.0), (9800.0, 100.0), {"a": 0, "b": 8})],
)
def test_gittins_learns_from_the_jobs_there_are(
    attained: tuple[float, float], left: tuple[float, float], want: dict[str, int]
) -> None:
    """Who had less goes first only where jobs as short as what it had were seen."""
    jobs = [
        Job("a", work_s=left[0], sizes=(8,), power=1.0, held={"train-000": 8}),
        Job("b", work_s=left[1], sizes=(8,), power=1.0, submit_s=1),
    ]
    seen = snapshot([Pool("train")], jobs)
    assert sizes(decide(Gittins(), columns(seen, attained_gpu_s=np.array(attained)))) == want


# --- finish-time fairness -------------------------------------------------------------------------


def test_themis_offers_to_the_worst_off_first() -> None:
    """Both want all; `old` has waited long for little work, so its rho is far larger."""
    jobs = [
        Job("old", work_s=1000, sizes=(8,), submit_s=NOW_S - 9000),
        Job("new", work_s=9000, sizes=(8,), submit_s=NOW_S - 10),
    ]
    plan = decide(Themis(), snapshot([Pool("train")], jobs))
    assert sizes(plan) == {"old": 8}
    assert plan.notes["old"] == (1000.0, NOW_S + 1200)
    assert plan.notes["new"] == (9000.0, NOW_S)


@pytest.mark.parametrize(("left_s", "want"), [(1.0, {}), (0.0, {"runs": 0, "waits": 8})])
def test_themis_keeps_a_lease_until_it_ends(left_s: float, want: dict[str, int]) -> None:
    jobs = [
        Job("runs", work_s=5000, sizes=(8,), submit_s=NOW_S - 100, held={"train-000": 8}),
        Job("waits", work_s=500, sizes=(8,), submit_s=NOW_S - 5000),
    ]
    seen = noted(snapshot([Pool("train")], jobs), runs=(6000.0, NOW_S + left_s))
    assert sizes(decide(Themis(), seen)) == want


def test_themis_gives_steps_where_they_help_most() -> None:
    """Alike but for their curves, all asked for 8: the one that scales gets more."""
    jobs = [
        Job("flat", work_s=5000, sizes=(1, 2, 4), power=0.1),
        Job("steep", work_s=5000, sizes=(1, 2, 4), power=1.0),
    ]
    seen = snapshot([Pool("train", gpus=5)], jobs, now_s=100.0)
    seen = columns(seen, requested=np.array([4, 4]))
    assert sizes(decide(Themis(fairness=0.0), seen)) == {"flat": 1, "steep": 4}


def test_themis_lets_no_gpu_idle_that_somebody_can_use() -> None:
    jobs = [Job(f"j{k}", sizes=(2, 4), submit_s=NOW_S - 100 * k) for k in range(5)]
    seen = snapshot([Pool("train")], jobs)
    assert sum(sizes(decide(Themis(), columns(seen, requested=np.full(5, 4)))).values()) == 8
