"""The parts of policies, each against worked examples or brute force."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest

from scheduler.policies.parts import gang
from scheduler.policies.parts.forecast import ForecastOptions, forecast
from scheduler.policies.parts.gang import Backfill, Claim, Holder, reserve, start
from scheduler.policies.parts.placement import keep, place
from scheduler.policies.parts.victims import RULES, Occupant, assess, choose

# --- placement ------------------------------------------------------------------------------------


def where(*used: int, size: int, prefer: dict[int, int] | None = None) -> dict[int, int] | None:
    """Place a gang on nodes with 8 GPUs, so many of them used."""
    return place(8 - np.array(used), np.arange(len(used)), size, prefer or {})


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
    assert where(*used, size=size) == expected


def test_placement_keeps_what_a_job_holds() -> None:
    assert where(0, 4, 0, size=8, prefer={2: 8}) == {2: 8}
    assert where(0, 4, 0, size=2, prefer={2: 4}) == {2: 2}
    assert where(0, 4, 0, size=6, prefer={2: 4}) == {2: 6}
    free = np.array([8, 4, 8])
    assert keep(free, 5, {0: 4, 2: 2}) == {0: 4, 2: 1}
    assert keep(free, 8, {1: 4}) is None


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
    rigid = Occupant(base=8, held={0: 8})
    elastic = Occupant(base=4, held={1: 4, 2: 4}, shrink_cost=0.1)
    occupants, nodes = [rigid, elastic], [0, 1, 2, 3]
    assert choose(occupants, nodes, 1).nodes == (3,)
    two = choose(occupants, nodes, 2)
    assert (two.stopped, two.shrunk, two.cost) == ((), (1,), 0.1)
    three = choose(occupants, nodes, 3)
    assert (len(three.nodes), len(three.stopped)) == (3, 1)
    assert choose(occupants, nodes, 9).nodes == (0, 1, 2, 3)


def test_the_job_that_loses_least_falls() -> None:
    occupants = [Occupant(8, {0: 8}, stop_cost=900.0), Occupant(8, {1: 8}, stop_cost=100.0)]
    assert choose(occupants, [0, 1], 1).nodes == (1,)


def random_occupants(rng: np.random.Generator, nodes: int, jobs: int, unit: bool) -> list[Occupant]:
    occupants = []
    for _ in range(jobs):
        span = int(rng.integers(1, 5))
        first = int(rng.integers(0, nodes))
        held = {(first + step) % nodes: int(rng.integers(1, 4)) for step in range(span)}
        extra = 0 if unit else int(rng.integers(0, 3))
        base = max(1, sum(held.values()) - extra)
        cost = 1.0 if unit else float(rng.uniform(1, 10))
        occupants.append(Occupant(base, held, cost, 0.0 if unit else 0.1))
    return occupants


@pytest.mark.parametrize("unit", [True, False])
def test_victims_are_close_to_the_best(unit: bool) -> None:
    """Against all subsets. The bound is well above what was measured: see the assertion."""
    rng = np.random.default_rng(11)
    found = best = 0.0
    for _ in range(120):
        occupants = random_occupants(rng, 8, 8, unit)
        need = int(rng.integers(1, 7))
        found += choose(occupants, range(8), need).cost
        best += min(assess(occupants, nodes).cost for nodes in combinations(range(8), need))
    assert best <= found <= best * 1.02


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(ValueError, match="'cheap' is not known; choose among fraction"):
        choose([Occupant(1, {0: 1})], [0], 1, rules=("cheap",))
    assert RULES == ("fraction", "count", "ratio")


# --- gangs ----------------------------------------------------------------------------------------


def by_pace(claims: list[Claim]) -> Callable[[int, Sequence[int]], Sequence[float]]:
    paces = {claim.job: claim.pace for claim in claims}
    return lambda job, _: paces[job]


def test_backfill_modes() -> None:
    def outcomes(mode: Backfill, sizes: list[int], runs: list[float]) -> list[str]:
        # 6 GPUs come free at 100 s; 4 are free now.
        claims = [
            Claim(job, *pair, (1.0,)) for job, pair in enumerate(zip(sizes, runs, strict=True))
        ]
        holders = [Holder(100.0, 9, 6)]
        found = start(0.0, claims, [4], [holders].__getitem__, mode, by_pace(claims))
        assert all((one.pool >= 0) == (one.rule in ("start", "backfilled")) for one in found)
        return [outcome.rule for outcome in found]

    told = outcomes("strict", [8, 2, 2, 2], [50.0, 200.0, 80.0, 200.0])
    assert told == ["capacity", "strict", "strict", "strict"]
    # Then 10 are free, 2 more than the head needs: one long job may use those, the other not.
    told = outcomes("easy", [8, 2, 2, 1], [50.0, 200.0, 200.0, 80.0])
    assert told == ["capacity", "backfilled", "backfill", "backfilled"]


def test_who_holds_gpus_is_only_asked_where_a_gang_must_wait() -> None:
    asked: list[int] = []

    def holders(pool: int) -> list[Holder]:
        asked.append(pool)
        return [Holder(50.0, 9, 4)]

    claims = [Claim(job, gpus, 10.0, (1.0, 1.0, 0.0)) for job, gpus in enumerate((4, 4, 6, 6))]
    found = start(0.0, claims[:2], [4, 4, 4], holders, "easy", by_pace(claims))
    assert [outcome.pool for outcome in found] == [0, 1]
    assert asked == []
    found = start(0.0, claims, [6, 4, 9], holders, "easy", by_pace(claims))
    assert [outcome.rule for outcome in found] == ["start", "start", "capacity", "capacity"]
    assert asked == [0, 1], "for the first that waits, in the pools where it may run"


def test_gangs_that_never_fit_do_not_cost_a_look_at_all_holders_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,000 of them beside 4,000 gangs that run took a cycle 2.7 s."""
    looks: list[int] = []

    def looked(
        gpus: int, room: Sequence[int], holders: dict[int, list[Holder]]
    ) -> tuple[int, float, int]:
        looks.append(gpus)
        return reserve(gpus, room, holders)

    monkeypatch.setattr(gang, "reserve", looked)
    holders = [Holder(float(number), number, 1) for number in range(10)]
    sizes = (99, 15, 1, 99, 14, 4)
    claims = [Claim(100 + number, size, 10.0, [1.0]) for number, size in enumerate(sizes)]
    found = start(0.0, claims, [4], lambda _: holders, "easy", lambda *_: [1.0])
    assert looks == [14], "14 are there in all"
    assert [one.rule for one in found][:5] == [
        "capacity",
        "capacity",
        "start",
        "capacity",
        "capacity",
    ]
    assert found[5].behind == 104
