"""The owner's demand model: what it asks for, and that it is never fooled into asking less."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from runtime.metering.demand import DemandModel, DemandSettings, ReplicaLoad, gpus_for, need_of

SETTINGS = DemandSettings(latency_target_s=5.0, concurrency_per_gpu=10.0)
CALM = ReplicaLoad("r", gpus=1, silent_s=1.0)


def needed(*replicas: ReplicaLoad, settings: DemandSettings = SETTINGS) -> int:
    return gpus_for(replicas, settings.concurrency_per_gpu, 16, settings)


# --- examples ---


def test_requests_that_run_take_their_places_and_the_headroom() -> None:
    busy = replace(CALM, running=24.0)
    assert need_of(busy, 10.0, SETTINGS) == pytest.approx(2.88)
    assert needed(busy) == 3
    assert needed(busy, replace(busy, name="s")) == 6


R4 = ReplicaLoad("r", 4, 1.0)
LATE = replace(R4, running=1.0, latency_p99_s=7.5)


@pytest.mark.parametrize(
    ("one", "gpus"),
    [
        # Little's law counts where the moment shows less.
        (replace(CALM, running=1.0, rate_per_s=20.0, service_s=2.0), 5),
        (replace(CALM, running=60.0, rate_per_s=20.0, service_s=2.0), 8),
        # A queue is to be gone in time: 300 requests of 3 s in 30 s are 30 places.
        (replace(CALM, waiting=300.0, service_s=3.0), 4),
        # Not known how long they take, or longer than the time: a place each.
        (replace(CALM, waiting=60.0), 8),
        (replace(CALM, waiting=60.0, service_s=90.0), 8),
        # Latency above the target asks for more than there is: for 6, in replicas of 4.
        (LATE, 8),
        (replace(LATE, latency_p99_s=math.inf), 8),
        (replace(LATE, latency_p99_s=4.9), 4),
        # So does a full cache.
        (replace(R4, kv_cache_use=1.0), 8),
        (replace(R4, kv_cache_use=0.8), 4),
        # Without load the least stays, in whole replicas.
        (CALM, 1),
        (R4, 4),
        # One that never had metrics counts as full from the start.
        (ReplicaLoad("r", 4, 0.0, known=False), 4),
    ],
)
def test_what_one_replica_needs(one: ReplicaLoad, gpus: int) -> None:
    assert needed(one) == gpus


def test_the_least_may_be_nothing() -> None:
    assert needed(CALM, settings=replace(SETTINGS, gpus_min=0)) == 0


def test_a_replica_not_heard_counts_as_full_and_then_as_everything() -> None:
    others = [replace(CALM, name=f"r{n}", running=8.0) for n in range(4)]
    silent = [replace(others[0], running=0.0, silent_s=age_s) for age_s in (1, 16, 37.5, 60, 1e9)]
    assert [needed(one, *others[1:]) for one in silent] == [3, 5, 10, 16, 16]


def test_doubt_doubles_the_headroom() -> None:
    assert need_of(replace(CALM, running=10.0), 10.0, SETTINGS) == pytest.approx(1.2)
    assert need_of(replace(CALM, running=10.0, doubtful=True), 10.0, SETTINGS) == pytest.approx(1.4)


def test_a_need_falls_only_when_it_was_lower_for_long() -> None:
    model = DemandModel(SETTINGS, 16)
    high, low = replace(CALM, running=60.0), replace(CALM, running=10.0)
    asked = [
        model.update(float(now_s), [high if now_s <= 100 or now_s == 350 else low]).gpus_needed
        for now_s in range(0, 1001, 50)
    ]
    assert asked[: asked.index(2)] == [8] * 14  # until 300 s after the last peak, at 350 s
    assert set(asked[14:]) == {2}
    assert model.update(1001.0, [high]).gpus_needed == 8


def test_no_replica_at_all_is_blindness_not_calm() -> None:
    model = DemandModel(replace(SETTINGS, stabilization_window_s=0.0), 16)
    assert [model.update(now_s, []).gpus_needed for now_s in (0.0, 15.0, 60.0)] == [1, 1, 16]
    assert model.update(70.0, [CALM]).gpus_needed == 1


def test_a_replica_that_joins_the_others_raises_no_need_until_it_is_heard() -> None:
    """Else a node handed back kept the next one from being lent, for `stabilization_window_s`."""
    model = DemandModel(SETTINGS, 16)
    there = replace(R4, running=8.0)
    joins = ReplicaLoad("s", 4, 0.0, known=False)
    assert model.update(0.0, [there]).gpus_needed == 4
    asked = model.update(5.0, [there, joins])
    assert (asked.gpus_needed, asked.targets_down) == (4, ())
    # It is not slow to come any more: it does not answer.
    late = model.update(21.0, [there, replace(joins, silent_s=16.0)])
    assert (late.gpus_needed, late.targets_down) == (8, ("s",))


def test_who_was_heard_once_or_was_there_at_the_first_look_may_have_any_load() -> None:
    there, other = replace(R4, running=8.0), ReplicaLoad("s", 4, 0.0, known=False)
    assert DemandModel(SETTINGS, 16).update(0.0, [there, other]).gpus_needed == 8
    heard = replace(other, known=True)
    model = DemandModel(replace(SETTINGS, stabilization_window_s=0.0), 16)
    asked = [
        model.update(now_s, replicas).gpus_needed
        for now_s, replicas in enumerate(
            ([there], [there, heard], [there, replace(heard, running=30.0)])
        )
    ]
    assert asked == [4, 4, 8]


def test_places_are_learned_from_what_was_served_within_the_target() -> None:
    model = DemandModel(SETTINGS, 16)
    served = replace(CALM, running=40.0, rate_per_s=20.0, service_s=2.0, latency_p99_s=3.0)
    assert model.update(0.0, [served]).concurrency_per_gpu == 40.0
    # A moment's peak that the minute's rate does not bear out proves nothing.
    peak = replace(served, running=400.0)
    assert model.update(1.0, [peak]).concurrency_per_gpu == pytest.approx(40.0, rel=0.01)
    missed = replace(served, running=20.0, rate_per_s=5.0, service_s=4.0, latency_p99_s=6.0)
    assert model.update(20.0, [missed]).concurrency_per_gpu == pytest.approx(18.0)
    long_after_s = 2.0 + 100 * SETTINGS.capacity_decay_s
    assert model.update(long_after_s, [CALM]).concurrency_per_gpu == pytest.approx(10)


def test_with_a_queue_what_runs_is_all_that_can() -> None:
    model = DemandModel(SETTINGS, 16)
    full = ReplicaLoad("r", 1, 1.0, True, 6.0, 50.0, 3.0, 2.0, latency_p99_s=20.0)
    assert model.update(0.0, [full]).concurrency_per_gpu == 6.0
    # Some that wait for a moment, and are served in time, show nothing.
    moment = replace(full, running=2.0, rate_per_s=1.0, waiting=1.0, latency_p99_s=2.5)
    assert model.update(1.0, [moment]).concurrency_per_gpu == pytest.approx(6.0, rel=0.01)
    long_after_s = 1.0 + 100 * SETTINGS.capacity_recovery_s
    assert model.update(long_after_s, [CALM]).concurrency_per_gpu == pytest.approx(10)


@pytest.mark.parametrize(("latency_s", "of_s"), [(30.0, 0.0), (7.0, 60.0)])
def test_an_ebb_is_not_held_to_be_guilty_of_the_floods_lateness(
    latency_s: float, of_s: float
) -> None:
    """What ends late, or was late in the minute that the server tells of, came in the flood."""
    model = DemandModel(SETTINGS, 16)
    flood = ReplicaLoad("r", 2, 1.0, running=24.0, waiting=9.0, latency_p99_s=latency_s)
    flood = replace(flood, latency_of_s=of_s)
    assert model.update(0.0, [flood]).concurrency_per_gpu == pytest.approx(10.0)
    ebb = replace(flood, running=1.0, waiting=0.0)
    assert model.update(29.0, [ebb]).concurrency_per_gpu == pytest.approx(10.0)
    # Late for longer than the flood explains, it is the replica itself.
    assert model.update(90.0, [ebb]).concurrency_per_gpu == pytest.approx(0.5)


def test_it_is_forgiven_sooner_than_it_is_forgotten() -> None:
    good, bad = DemandModel(SETTINGS, 16), DemandModel(SETTINGS, 16)
    good.update(0.0, [replace(CALM, running=20.0, latency_p99_s=1.0)])
    bad.update(0.0, [replace(CALM, running=5.0, waiting=9.0, latency_p99_s=9.0)])
    assert good.update(7200.0, [CALM]).concurrency_per_gpu > 19.0
    assert bad.update(7200.0, [CALM]).concurrency_per_gpu > 9.0


def test_one_request_that_is_always_late_does_not_make_places_vanish() -> None:
    model = DemandModel(SETTINGS, 16)
    late = ReplicaLoad("r", 4, 1.0, running=1.0, latency_p99_s=60.0)
    learned = [model.update(float(second), [late]).concurrency_per_gpu for second in range(100)]
    assert learned[-1] == 0.25


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("latency_target_s", 0.0),
        ("concurrency_per_gpu", 0.0),
        ("headroom", -0.1),
        ("stabilization_window_s", math.inf),
        ("cache_target", 1.5),
        ("metrics_timeout_s", 15.0),
        ("gpus_min", -1),
        ("stale_s", math.nan),
    ],
)
def test_settings_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        DemandSettings(**{"latency_target_s": 5.0, field: value})  # type: ignore[arg-type]


# --- properties ---

amounts = st.floats(0.0, 1e5)
maybe = st.none() | st.floats(0.0, 1e4)
replicas_ = st.builds(
    ReplicaLoad,
    name=st.just("r"),
    gpus=st.integers(1, 8),
    silent_s=st.floats(0.0, 200.0),
    known=st.booleans(),
    running=amounts,
    waiting=amounts,
    rate_per_s=maybe,
    service_s=maybe,
    latency_p99_s=maybe | st.just(math.inf),
    kv_cache_use=st.none() | st.floats(0.0, 1.0),
    doubtful=st.booleans(),
)
fleets = st.lists(replicas_, min_size=1, max_size=6)
places_ = st.floats(0.1, 1000.0)
LOAD = ("running", "waiting", "rate_per_s", "service_s", "latency_p99_s", "kv_cache_use")


@given(fleets, places_, st.integers(1, 1000), st.sampled_from(LOAD), st.floats(0.0, 1e5))
def test_more_load_never_needs_less(
    fleet: list[ReplicaLoad], places: float, total: int, name: str, more: float
) -> None:
    before = getattr(fleet[0], name)
    # A service time of which nothing is known counts as the longest, so learning it may lower.
    assume(not (name == "service_s" and before is None))
    change: dict[str, Any] = {name: (before or 0.0) + more}
    heavier = [replace(fleet[0], **change), *fleet[1:]]
    least = gpus_for(fleet, places, total, SETTINGS)
    assert gpus_for(heavier, places, total, SETTINGS) >= least


@given(fleets, places_, st.integers(1, 1000))
def test_the_need_is_never_below_what_runs_nor_above_what_there_is(
    fleet: list[ReplicaLoad], places: float, total: int
) -> None:
    need = gpus_for(fleet, places, total, SETTINGS)
    runs = math.ceil(math.fsum(one.running for one in fleet) / places - 1e-6)
    assert min(total, max(1, runs)) <= need <= total


@given(fleets, places_, st.integers(1, 1000), st.integers(0, 5), st.floats(0.0, 1e4))
def test_silence_never_lowers_the_need(
    fleet: list[ReplicaLoad], places: float, total: int, which: int, longer_s: float
) -> None:
    one = fleet[which % len(fleet)]
    silent = replace(one, silent_s=one.silent_s + longer_s)
    quieter = [silent if other is one else other for other in fleet]
    heard = gpus_for(fleet, places, total, SETTINGS)
    assert gpus_for(quieter, places, total, SETTINGS) >= heard
    if silent.silent_s > SETTINGS.stale_s:
        assert gpus_for(quieter, places, total, SETTINGS) >= min(total, one.gpus)
    if silent.silent_s >= SETTINGS.metrics_timeout_s:
        assert gpus_for(quieter, places, total, SETTINGS) == total


@given(fleets, places_, st.integers(1, 1000), st.integers(0, 5))
def test_doubt_never_lowers_the_need(
    fleet: list[ReplicaLoad], places: float, total: int, which: int
) -> None:
    one = fleet[which % len(fleet)]
    sure = [replace(one, doubtful=False) if other is one else other for other in fleet]
    unsure = [replace(one, doubtful=True) if other is one else other for other in fleet]
    low, high = (gpus_for(some, places, total, SETTINGS) for some in (sure, unsure))
    assert low <= high


@given(st.lists(st.tuples(st.floats(0.0, 400.0), st.lists(replicas_, max_size=3)), max_size=8))
def test_over_time_the_need_is_at_least_that_of_now_and_places_stay_in_reason(
    story: list[tuple[float, list[ReplicaLoad]]],
) -> None:
    model, now_s = DemandModel(SETTINGS, 64), 0.0
    for passed_s, fleet in story:
        now_s += passed_s
        demand = model.update(now_s, fleet)
        assert 1 <= demand.gpus_now <= demand.gpus_needed <= 64
        assert 1 / 8 <= demand.concurrency_per_gpu < math.inf
