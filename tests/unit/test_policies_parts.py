"""The parts of policies, each against worked examples or brute force."""

from itertools import combinations

import numpy as np
import pytest

from scheduler.policies.interface import Floats, Ints, Kind, LoanPhase
from scheduler.policies.parts.capacity import Capacity
from scheduler.policies.parts.forecast import ForecastOptions, forecast
from scheduler.policies.parts.gang import Backfill, Claim, Holder, start
from scheduler.policies.parts.placement import keep, place
from scheduler.policies.parts.victims import RULES, Tenant, assess, choose
from tests.snapshots import Job, Pool, snapshot

# --- capacity and placement -----------------------------------------------------------------------


def test_rollback_undoes_everything() -> None:
    seen = snapshot(
        [Pool("train", nodes=3)], [Job("a", held={"train-000": 4, "train-001": 2}), Job("b")]
    )
    capacity = Capacity(seen)
    mark = capacity.checkpoint()
    assert capacity.give(0) == {0: 4, 1: 2}
    capacity.take(1, {0: 8, 2: 1})
    capacity.close(0)
    capacity.give(1)
    capacity.close(2)
    assert (capacity.free, capacity.site_free) == ([0, 8, 0], [8])
    capacity.rollback(mark)
    assert (capacity.free, capacity.site_free) == ([4, 6, 8], [18])
    assert [capacity.held(job) for job in (0, 1)] == [{0: 4, 1: 2}, {}]
    assert capacity.open == [True, True, True]


def test_nothing_is_taken_that_is_not_free() -> None:
    capacity = Capacity(snapshot([Pool("train", nodes=2)], [Job("a")]))
    with pytest.raises(ValueError, match="node 1 has 8 free GPUs, 9 were asked for"):
        capacity.take(0, {0: 8, 1: 9})
    assert capacity.free == [8, 8]


def spread(*used: int) -> Capacity:
    """Return a training pool of nodes with 8 GPUs, so many of them used."""
    jobs = [
        Job(f"fill-{n}", sizes=(u,), held={f"train-{n:03}": u}) for n, u in enumerate(used) if u
    ]
    sizes = tuple(range(1, 9))
    return Capacity(snapshot([Pool("train", nodes=len(used))], jobs, sizes=sizes))


@pytest.mark.parametrize(
    ("used", "size", "expected"),
    [
        ((0, 4, 6), 2, {2: 2}),  # best fit
        ((0, 4, 6), 4, {1: 4}),
        ((0, 4, 6), 8, {0: 8}),
        ((4, 0, 0, 6), 16, {1: 8, 2: 8}),  # whole nodes
        ((4, 0, 0, 6), 18, {1: 8, 2: 8, 3: 2}),  # the rest by best fit
        ((4, 5, 6), 5, {0: 4, 2: 1}),  # no single node: fewest
        ((8, 8), 1, None),
    ],
)
def test_placement(used: tuple[int, ...], size: int, expected: dict[int, int] | None) -> None:
    assert place(spread(*used), 0, size) == expected


def test_placement_keeps_what_a_job_holds() -> None:
    capacity = spread(0, 4, 0)
    assert place(capacity, 0, 8, prefer={2: 8}) == {2: 8}
    assert place(capacity, 0, 2, prefer={2: 4}) == {2: 2}
    assert place(capacity, 0, 6, prefer={2: 4}) == {2: 6}
    assert keep(capacity, 5, {0: 4, 2: 2}) == {0: 4, 2: 1}
    assert keep(capacity, 8, {1: 4}) is None


def test_an_edge_gang_is_on_one_node() -> None:
    pool = Pool("edge", Kind.EDGE, nodes=2, gpus=2, loan=LoanPhase.LENT)
    capacity = Capacity(snapshot([pool], []))
    assert [nodes.tolist() for nodes in capacity.members] == [[0], [1]]
    assert place(capacity, 1, 2) == {1: 2}
    assert place(capacity, 1, 3) is None


# --- forecast -------------------------------------------------------------------------------------


def test_day_one_with_nothing_known_is_the_present() -> None:
    seen = forecast(np.full((2, 10), np.nan), np.array([3.0, 0.0]), 300.0, 900.0)
    assert seen.demand_gpus.tolist() == [[3.0] * 4, [0.0] * 4]
    assert seen.burst_gpus.tolist() == [0.0, 0.0]
    empty = forecast(np.zeros((1, 0)), np.array([2.0]), 300.0, 900.0)
    assert empty.peak(empty.soon(900.0))[0] == 2.0


def test_a_rise_is_carried_on_and_a_fall_is_not() -> None:
    rise = forecast(np.arange(10.0)[None], np.array([9.0]), 300.0, 900.0)
    assert rise.demand_gpus[0] == pytest.approx([9, 10, 11, 12])
    assert rise.needs_from_s(0, 10.5) == 600.0
    assert rise.needs_from_s(0, 12.5) == np.inf
    fall = forecast(np.arange(10.0)[None, ::-1], np.array([0.0]), 300.0, 900.0)
    assert (np.diff(fall.demand_gpus[0]) == 0).all()
    assert fall.peak(fall.soon(900.0))[0] > 0, "the moving average remembers"


def test_yesterday_comes_again_at_todays_level() -> None:
    day = 288
    history = np.full(2 * day, 10.0)
    history[day + 1 : day + 4] = 40.0  # soon after this time yesterday
    history = history[: 2 * day]
    same = forecast(history[None], np.array([10.0]), 300.0, 1800.0)
    assert same.peak(same.soon(1800.0))[0] == pytest.approx(40.0)
    assert same.needs_from_s(0, 20.0) <= 600.0
    history[-12:] = 20.0
    twice = forecast(history[None], np.array([20.0]), 300.0, 1800.0)
    assert twice.peak(twice.soon(1800.0))[0] == pytest.approx(21.0 * 41 / 11 - 1.0)
    views = ForecastOptions(season=None)
    twice = forecast(history[None], np.array([20.0]), 300.0, 1800.0, views)
    assert twice.peak(twice.soon(1800.0))[0] == pytest.approx(40.0 * 241 / 121)


def test_headroom_is_a_quantile_of_rises() -> None:
    history = np.zeros((1, 40))
    history[0, [5, 15, 25, 35]] = 6.0
    options = ForecastOptions(burst_quantile=0.8)
    assert forecast(history, np.zeros(1), 300.0, 600.0, options).burst_gpus[0] == 6.0
    assert forecast(np.full((1, 40), 5.0), np.full(1, 5.0), 300.0, 600.0).burst_gpus[0] == 0.0


def test_gaps_in_the_history_are_not_zeros() -> None:
    rng = np.random.default_rng(0)
    history = rng.uniform(5, 6, (3, 700))
    history[:, ::3] = np.nan
    seen = forecast(history, np.full(3, 5.5), 300.0, 1800.0)
    assert np.isfinite(seen.demand_gpus).all()
    assert (seen.demand_gpus >= 5.0).all()
    assert (seen.demand_gpus <= 8.0).all()


# --- victims --------------------------------------------------------------------------------------


def test_free_nodes_first_then_extras_then_jobs() -> None:
    rigid = Tenant(base=8, held={0: 8})
    elastic = Tenant(base=4, held={1: 4, 2: 4}, shrink_cost=0.1)
    tenants, nodes = [rigid, elastic], [0, 1, 2, 3]
    assert choose(tenants, nodes, 1).nodes == (3,)
    two = choose(tenants, nodes, 2)
    assert (two.stopped, two.shrunk, two.cost) == ((), (1,), 0.1)
    three = choose(tenants, nodes, 3)
    assert (len(three.nodes), len(three.stopped)) == (3, 1)
    assert choose(tenants, nodes, 9).nodes == (0, 1, 2, 3)


def test_the_job_that_loses_least_falls() -> None:
    tenants = [Tenant(8, {0: 8}, stop_cost=900.0), Tenant(8, {1: 8}, stop_cost=100.0)]
    assert choose(tenants, [0, 1], 1).nodes == (1,)


def random_tenants(rng: np.random.Generator, nodes: int, jobs: int, unit: bool) -> list[Tenant]:
    tenants = []
    for _ in range(jobs):
        span = int(rng.integers(1, 5))
        first = int(rng.integers(0, nodes))
        held = {(first + step) % nodes: int(rng.integers(1, 4)) for step in range(span)}
        extra = 0 if unit else int(rng.integers(0, 3))
        base = max(1, sum(held.values()) - extra)
        cost = 1.0 if unit else float(rng.uniform(1, 10))
        tenants.append(Tenant(base, held, cost, 0.0 if unit else 0.1))
    return tenants


@pytest.mark.parametrize("unit", [True, False])
def test_victims_are_close_to_the_best(unit: bool) -> None:
    """Against all subsets. The bound is well above what was measured: see the assertion."""
    rng = np.random.default_rng(11)
    found = best = 0.0
    for _ in range(120):
        tenants = random_tenants(rng, 8, 8, unit)
        need = int(rng.integers(1, 7))
        found += choose(tenants, range(8), need).cost
        best += min(assess(tenants, nodes).cost for nodes in combinations(range(8), need))
    assert best <= found <= best * 1.02


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(ValueError, match="'cheap' is not known; choose among fraction"):
        choose([Tenant(1, {0: 1})], [0], 1, rules=("cheap",))
    assert RULES == ("fraction", "count", "ratio")


# --- gangs ----------------------------------------------------------------------------------------


def outcomes(mode: str, sizes: list[int], runs: list[float], slack: int, holders: list[Holder]):  # type: ignore[no-untyped-def]
    claims = [Claim(job, size, run) for job, (size, run) in enumerate(zip(sizes, runs))]  # noqa: B905
    found = start(
        0.0,
        claims,
        np.array([slack]),
        lambda job, slack: np.ones(1),
        [holders].__getitem__,
        mode,  # type: ignore[arg-type]
    )
    assert all((one.site >= 0) == (one.rule in ("start", "backfilled")) for one in found)
    return [outcome.rule for outcome in found]


def test_backfill_modes() -> None:
    holders = [Holder(100.0, 9, 6)]  # 6 GPUs come free at 100 s; 4 are free now
    sizes, runs = [8, 2, 2, 2], [50.0, 200.0, 80.0, 200.0]
    told = outcomes("strict", sizes, runs, 4, holders)
    assert told == ["capacity", "strict", "strict", "strict"]
    told = outcomes("fit_first", sizes, runs, 4, holders)
    assert told == ["capacity", "backfilled", "backfilled", "capacity"]
    # Then 10 are free, 2 more than the head needs: one long job may use those, the other not.
    told = outcomes("easy", [8, 2, 2, 1], [50.0, 200.0, 200.0, 80.0], 4, holders)
    assert told == ["capacity", "backfilled", "backfill", "backfilled"]


@pytest.mark.parametrize("mode", ["strict", "fit_first", "easy"])
def test_knowing_where_claims_may_run_changes_nothing(mode: Backfill) -> None:
    rng = np.random.default_rng(8)
    for _ in range(100):
        count, sites = int(rng.integers(1, 20)), int(rng.integers(1, 12))
        speed = rng.choice([0.0, 1.0, 2.0], (count, sites))
        claims = [Claim(n, int(rng.integers(1, 9)), float(rng.uniform(1, 9))) for n in range(count)]
        slack = rng.integers(-2, 20, sites)
        holders = [[Holder(float(rng.uniform(1, 9)), 99, 5)] for _ in range(sites)]

        def speeds(job: int, slack: Ints, speed: Floats = speed) -> Floats:
            found: Floats = speed[job] * (1.0 + 0.01 * np.maximum(slack, 0))
            return found

        left, able = slack.copy(), speed > 0
        asked = start(0.0, claims, left, speeds, holders.__getitem__, mode, True)
        known = start(0.0, claims, slack, speeds, holders.__getitem__, mode, True, able)
        assert asked == known
        assert left.tolist() == slack.tolist()


def test_who_holds_gpus_is_only_asked_where_a_gang_must_wait() -> None:
    asked: list[int] = []

    def holders(site: int) -> list[Holder]:
        asked.append(site)
        return [Holder(50.0, 9, 4)]

    def speeds(job: int, slack: Ints) -> Floats:
        return np.array([1.0, 1.0, 0.0])

    claims = [Claim(0, 4, 10.0), Claim(1, 4, 10.0), Claim(2, 6, 10.0), Claim(3, 6, 10.0)]
    found = start(0.0, claims[:2], np.array([4, 4, 4]), speeds, holders, "easy")
    assert [outcome.site for outcome in found] == [0, 1]
    assert asked == []
    found = start(0.0, claims, np.array([6, 4, 9]), speeds, holders, "easy")
    assert [outcome.rule for outcome in found] == ["start", "start", "capacity", "capacity"]
    assert asked == [0, 1], "for the first that waits, at the sites where it may run"
