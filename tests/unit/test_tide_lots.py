"""Sites that are about as fast have one price: nobody goes to and fro between them."""

import numpy as np
import pytest

from tests.markets import opened
from tests.snapshots import Job, Pool, snapshot

HOUR_S = 3600.0


@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0), (1.0, 1.05, 0.97)])
def test_who_runs_moves_to_no_site_that_is_as_good_and_full(speeds: tuple[float, ...]) -> None:
    """Nine waves of jobs that come, and grow: with a price a site, dozens would move each time."""
    rng, moved, ran = np.random.default_rng(7), 0, 0
    pools = [Pool(name, nodes=4, speed=speed) for name, speed in zip("abc", speeds, strict=True)]
    for _ in range(9):
        jobs = []
        for pool in pools:
            for node in range(pool.nodes):
                held = {f"{pool.id}-{node:03}": 4}
                work_s = float(rng.lognormal(8.5, 1.0))
                jobs += [
                    Job(f"{pool.id}{node}{n}", work_s=work_s * (1 + n), sizes=(2, 4, 8), held=held)
                    for n in range(2)
                ]
        jobs += [
            Job(f"new{n}", work_s=float(rng.lognormal(8.5, 1.0)), sizes=(1, 2, 4))
            for n in range(20)
        ]
        got = opened(snapshot(pools, jobs)).got()
        runs = [job for job in jobs if job.held and job.id in got]
        moved += sum(got[job.id][0] != job.id[0] for job in runs)
        ran += len(runs)
    assert ran > 100
    assert moved <= 9, f"{moved} of {ran}"


def test_who_comes_goes_where_most_room_is_left() -> None:
    pools = [Pool("a", nodes=2), Pool("b", nodes=2), Pool("c", nodes=2)]
    runs = [Job("r0", HOUR_S, sizes=(8,), held={"a-000": 8}),
            Job("r1", HOUR_S, sizes=(4,), held={"b-000": 4})]  # fmt: skip
    come = [Job(f"j{n}", 2 * HOUR_S + n, sizes=(4,)) for n in range(9)]
    found = opened(snapshot(pools, [*runs, *come]))
    assert found.got()["r0"] == ("a", 8)
    assert found.got()["r1"] == ("b", 4)
    where = [site for name, (site, _) in found.got().items() if name.startswith("j")]
    assert [where.count(name) for name in "abc"] == [2, 3, 4]
    assert len(set(found.found.price.tolist())) == 1


def test_jobs_that_crowd_one_site_move_to_one_that_is_empty() -> None:
    pools = [Pool("a", nodes=2), Pool("b", nodes=2)]
    jobs = [
        Job(f"j{n}", 30 * HOUR_S + n, sizes=(1, 2, 4), held={f"a-{n // 8:03}": 1})
        for n in range(16)
    ]
    got = opened(snapshot(pools, jobs)).got()
    there = [name for name, (site, _) in got.items() if site == "b"]
    assert 4 <= len(there) <= 8
    assert all(got[name][1] > 1 for name in there)
    assert sum(gpus for _, gpus in got.values()) > 24


@pytest.mark.parametrize(("speed", "lots"), [(0.99, 1), (0.87, 1), (0.8, 2), (1.1, 1), (1.3, 2)])
def test_sites_are_one_lot_where_no_job_would_move_for_the_difference(
    speed: float, lots: int
) -> None:
    seen = snapshot([Pool("a"), Pool("b", speed=speed)], [Job("j", HOUR_S, sizes=(1, 2, 4, 8))])
    market = opened(seen).market
    assert len(market.lots) == lots
    assert market.lot.tolist() == [0, lots - 1, -1], "the last is for who is at no site"


def test_a_job_that_only_one_site_of_a_lot_can_run_goes_there() -> None:
    pools = [Pool("a", nodes=2, memory_mib=16_000.0), Pool("b", nodes=2)]
    runs = [Job("r", HOUR_S, sizes=(8,), held={"b-000": 8})]
    some = [Job(f"j{n}", HOUR_S + n, sizes=(4,)) for n in range(2)]
    large = Job("large", 3 * HOUR_S, sizes=(8,), memory_mib=50_000.0)
    found = opened(snapshot(pools, [*runs, *some, large]))
    assert len(found.market.lots) == 1
    assert found.got()["large"] == ("b", 8)
    assert {found.got()[f"j{n}"][0] for n in range(2)} == {"a"}


@pytest.mark.parametrize("order", ["small gangs are dearer", "large gangs are dearer"])
def test_who_comes_with_a_small_gang_leaves_room_for_a_large_one(order: str) -> None:
    """The site with most room is the only one that can hold the gang of 8."""
    hours = (1.0, 2.0) if order == "small gangs are dearer" else (2.0, 1.0)
    jobs = [
        Job("small", hours[0] * HOUR_S, sizes=(2,)),
        Job("large", hours[1] * HOUR_S, sizes=(8,)),
    ]
    got = opened(snapshot([Pool("a", gpus=4), Pool("b")], jobs)).got()
    assert got == {"small": ("a", 2), "large": ("b", 8)}


@pytest.mark.parametrize("hours", [1.0, 4.0, 10.0])
def test_who_runs_makes_room_for_a_job_that_cannot_use_what_is_idle_in_the_lot(
    hours: float,
) -> None:
    """One of two moves to the idle site: the job that waits needs more memory than is there."""
    pools = [Pool("a"), Pool("b", memory_mib=16_000.0)]
    runs = [Job(f"r{n}", HOUR_S, sizes=(4,), held={"a-000": 4}) for n in range(2)]
    large = Job("large", hours * HOUR_S, sizes=(4,), memory_mib=50_000.0)
    seen = snapshot(pools, [*runs, large])
    got = opened(seen).got()
    assert got["large"] == ("a", 4)
    assert sorted(got[f"r{n}"] for n in range(2)) == [("a", 4), ("b", 4)]


def test_gangs_come_together_at_one_site_where_a_large_one_waits_for_the_other() -> None:
    runs = [Job(f"r{name}", HOUR_S, sizes=(8,), held={f"{name}-000": 8}) for name in "ab"]
    pools = [Pool("a", nodes=2), Pool("b", nodes=2)]
    got = opened(snapshot(pools, [*runs, Job("large", 2 * HOUR_S, sizes=(16,))])).got()
    assert got["large"][1] == 16
    assert got["ra"] == got["rb"]


def test_nobody_moves_for_a_job_that_gains_less_than_that_costs() -> None:
    """A pause of minutes, for minutes of work that can wait."""
    pools = [Pool("a"), Pool("b", memory_mib=16_000.0)]
    runs = [
        Job(f"r{n}", HOUR_S, sizes=(4,), held={"a-000": 4}, checkpoint_cost_s=400.0)
        for n in range(2)
    ]
    large = Job("large", 40 * HOUR_S, sizes=(1,), memory_mib=50_000.0)
    got = opened(snapshot(pools, [*runs, large])).got()
    assert got == {"r0": ("a", 4), "r1": ("a", 4)}
