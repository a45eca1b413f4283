"""One price a lot: who goes where, with how much, and how near the best that is."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase
from scheduler.policies.tide.commitments import PROMISED
from scheduler.policies.tide.prices import ROUNDS
from tests.markets import Opened, noted, opened
from tests.snapshots import Job, Pool, snapshot

NOW_S = 10_000.0
HOUR_S = 3600.0


def lent(name: str = "infer", **more: object) -> Pool:
    return Pool(name, **{"kind": Kind.INFERENCE, "loan": LoanPhase.LENT, **more})  # type: ignore[arg-type]


def test_a_site_with_room_for_all_has_no_price() -> None:
    found = opened(snapshot([Pool("train")], [Job("a", sizes=(4,)), Job("b", sizes=(4,))]))
    assert found.found.price.tolist() == [0.0]
    assert found.found.missing.tolist() == [0, 0]


def test_the_price_is_what_the_first_that_gets_none_would_gain() -> None:
    jobs = [Job(f"j{n}", work_s=1000.0 * (n + 1), sizes=(4,)) for n in range(4)]
    found = opened(snapshot([Pool("train")], jobs))
    assert found.got() == {"j0": ("train", 4), "j1": ("train", 4)}
    assert found.found.price[0] == pytest.approx(found.value[0, 2, 3] / 4)
    assert found.found.missing.tolist() == [0, 0, 4, 8]
    assert found.value[0, 2, 3] < found.value[0, 1, 3]


def test_jobs_spread_over_sites_until_prices_are_alike() -> None:
    jobs = [Job(f"j{n:02}", work_s=5000.0 + n, sizes=(2,)) for n in range(12)]
    found = opened(snapshot([Pool("a"), Pool("b"), Pool("c")], jobs))
    assert sorted(at for at, _ in found.got().values()) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4


@pytest.mark.parametrize("name", ["a", "z"])
def test_of_sites_that_are_as_good_nobody_takes_a_lent_one(name: str) -> None:
    pools = sorted([lent(name), Pool("train")], key=lambda pool: pool.id)
    assert opened(snapshot(pools, [Job("j", sizes=(8,))])).got() == {"j": ("train", 8)}


@pytest.mark.parametrize(("work_s", "moves"), [(20 * HOUR_S, True), (60.0, False)])
def test_a_job_leaves_a_slow_site_when_that_pays(work_s: float, moves: bool) -> None:
    pools = [Pool("slow", speed=0.4), Pool("train")]
    job = Job("a", work_s=work_s, sizes=(8,), held={"slow-000": 8})
    assert opened(snapshot(pools, [job])).got() == {"a": ("train" if moves else "slow", 8)}
    alike = [Pool("slow", speed=0.95), Pool("train")]
    assert opened(snapshot(alike, [job])).got() == {"a": ("slow", 8)}, "not worth a move"


@pytest.mark.parametrize(("since_s", "moves"), [(300.0, False), (1500.0, True)])
def test_who_changed_lately_leaves_for_faster_gpus_only_later(since_s: float, moves: bool) -> None:
    """A move takes 90 s: to and fro every few minutes, it would do little else."""
    pools = [Pool("slow", speed=0.5), Pool("train")]
    job = Job("a", 20 * HOUR_S, sizes=(8,), held={"slow-000": 8}, start_cost_s=90.0)
    seen = snapshot(pools, [replace(job, changed_s=NOW_S - since_s)], NOW_S)
    assert opened(seen).got() == {"a": ("train" if moves else "slow", 8)}


def test_a_job_leaves_a_dear_site_for_one_that_is_as_good_for_it() -> None:
    """The other can only run where both could; the first goes and is not slower for it."""
    first = Job("first", work_s=20 * HOUR_S, sizes=(8,), held={"train-000": 8})
    large = Job("large", work_s=HOUR_S, sizes=(8,), memory_mib=50_000.0)
    pools = [lent(memory_mib=16_000.0), Pool("train")]
    found = opened(snapshot(pools, [first, large]))
    assert found.got() == {"first": ("infer", 8), "large": ("train", 8)}


def test_who_is_promised_is_bound_to_its_site() -> None:
    job = Job("a", 4 * HOUR_S, sizes=(4,), held={"train-000": 4}, deadline_s=NOW_S + 9 * HOUR_S)
    pools = [Pool("fast", speed=4.0), Pool("train")]
    seen = noted(snapshot(pools, [job]), a=(PROMISED,))
    assert opened(seen).got() == {"a": ("train", 4)}
    assert opened(snapshot([lent("fast", speed=4.0), pools[1]], [job])).promises.bound[0] == 1


def test_what_is_left_goes_to_who_got_nothing_where_it_bid() -> None:
    """All but one want the fast site; a gang that gets none of it takes what is left elsewhere."""
    jobs = [Job(f"j{n}", work_s=3000.0 + 10 * n, sizes=(8,)) for n in range(4)]
    found = opened(snapshot([Pool("a", speed=1.6), lent("b", nodes=3)], jobs))
    assert len(found.got()) == 4
    assert found.found.missing.max() == 0 or len(found.got()) == 4


def best(found: Opened) -> float:
    """Return the most that any sites and levels are worth, by trying all."""
    market, value = found.market, found.value
    sites, rows, levels = value.shape
    options = [
        [(0, 0, 0.0)]
        + [
            (at, int(market.sizes[level]), float(value[at, row, level]))
            for at in range(sites)
            for level in range(1, levels)
            if value[at, row, level] > 0
        ]
        for row in range(rows)
    ]
    most = 0.0
    for picked in product(*options):
        used = [sum(gpus for at, gpus, _ in picked if at == one) for one in range(sites)]
        if (np.array(used) <= market.gpus).all():
            most = max(most, sum(worth for _, _, worth in picked))
    return most


def test_it_is_near_the_best_there_is() -> None:
    """Two sites of 4 GPUs and 4 jobs, some of which run: 92 % of the best over all, none below
    60 %. Gangs as large as a site are what is hardest: often one fits no rest."""
    rng = np.random.default_rng(4)
    ratios = []
    pools = [lent(gpus=4, speed=0.7), Pool("train", gpus=4)]
    for _ in range(120):
        free = {"infer-000": 4, "train-000": 4}
        jobs = []
        for n in range(4):
            sizes = [(1, 2, 4), (2, 4), (1,), (4,)][int(rng.integers(4))]
            node, gpus = str(rng.choice(list(free))), int(rng.choice(sizes))
            held = {node: gpus} if rng.random() < 0.4 and free[node] >= gpus else {}
            free[node] -= held.get(node, 0)
            work_s, power = float(rng.uniform(600, 90_000)), float(rng.uniform(0.4, 1.0))
            jobs.append(Job(f"j{n}", work_s=work_s, sizes=sizes, power=power, held=held))
        found = opened(snapshot(pools, jobs, sizes=(1, 2, 4)))
        rows, level, site = np.arange(4), found.found.level, found.found.site
        got = float(found.value[site, rows, level].sum())
        used = np.bincount(site, found.market.sizes[level], 2)
        assert (used <= found.market.gpus).all()
        ratios.append(got / best(found))
    assert np.mean(ratios) >= 0.92
    assert min(ratios) >= 0.6
    assert max(ratios) <= 1.0 + 1e-9


def test_a_few_rounds_suffice() -> None:
    """Not more: two sites alike must not pass jobs to and fro."""
    jobs = [Job(f"j{n:02}", work_s=5000.0, sizes=(1, 2, 4, 8)) for n in range(40)]
    found = opened(snapshot([Pool("a", nodes=2), Pool("b", nodes=2)], jobs))
    low, high = sorted(found.found.price.tolist())
    assert 0 < high <= 1.3 * low
    assert 2 <= ROUNDS <= 20
    assert sum(gpus for _, gpus in found.got().values()) == 32
