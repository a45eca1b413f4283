"""Simulated workers and owner: their physics is a closed form of time."""

from collections.abc import Callable

import pytest

from runtime.core import (
    CheckpointDone,
    CheckpointLost,
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
    NodeDrained,
    NodeHandedBack,
    NodeSpec,
    Placement,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    WorkersLeft,
)
from runtime.simulated import (
    Physics,
    SimulatedExecutor,
    draw,
    hidden_steps,
    rate_at,
    resize_pause_s,
)
from runtime.simulated_owner import SimulatedMeter, SimulatedOwner
from schemas.events import RatePoint
from tests.gangs import spec

EXACT = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)
SPEC = spec(rates=[RatePoint(gpus=1, samples_per_s=10.0), RatePoint(gpus=4, samples_per_s=25.0)])
ONE = {"n1": (0,)}
FOUR = {"n1": (0, 1, 2, 3)}


def begin(
    placement: Placement | None = None,
    *,
    physics: Physics = EXACT,
    step: int = 0,
    transfer_s: float = 0.0,
    runs: bool = False,
) -> SimulatedExecutor:
    """One with a gang; it steps from 30 s on, and with `runs` that is now."""
    executor = SimulatedExecutor({"n1": 1.0, "slow": 0.5}, physics)
    executor.start(StartWorkers("j", 1, placement or ONE, SPEC, step, transfer_s), 0.0)
    if runs:
        executor.advance(30.0)
    return executor


def finish(executor: SimulatedExecutor) -> list[tuple[float, Report]]:
    """Follow the executor from due moment to due moment until nothing is under way."""
    told: list[tuple[float, Report]] = []
    while (due_s := executor.next_due_s()) is not None:
        told += [(due_s, report) for report in executor.advance(due_s)]
    return told


def test_a_job_without_a_total_ends_alike_for_all_of_its_model() -> None:
    undeclared = spec(total_steps=None)
    steps = [hidden_steps(undeclared, 0, f"j{number}") for number in range(50)]
    assert max(steps) < 1.51 * min(steps)
    assert len(set(steps)) > 40
    assert 0.2 * 3600.0 <= min(steps) <= max(steps) <= 4.8 * 3600.0, "a step a second"
    executor = SimulatedExecutor({"n1": 1.0}, EXACT)
    executor.start(StartWorkers("j0", 1, ONE, undeclared, 0, 0.0), 0.0)
    assert finish(executor) == [
        (30.0, GangStarted("j0", 1, 0)),
        (30.0 + steps[0], GangCompleted("j0", 1, int(steps[0]))),
    ]


# --- rates and pauses ----------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "rate"), [(1, 10.0), (2, 15.0), (4, 25.0), (8, 25.0)], ids=str)
def test_rates_between_points_are_linear_and_flat_above(gpus: int, rate: float) -> None:
    assert rate_at(SPEC.rates, gpus) == pytest.approx(rate)


def test_rates_below_the_first_point_go_through_zero() -> None:
    assert rate_at([RatePoint(gpus=4, samples_per_s=40.0)], 1) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("old", "new", "pause_s"),
    [
        (FOUR, ONE, 3.0),  # shrink: next
        (ONE, FOUR, 3.0 + 20.0),  # grow 1 -> 4: next + floor(27 * 3/4)
        (ONE, {"n2": (0,)}, 30.0),  # moved: first
        (ONE, ONE, 0.0),
    ],
)
def test_resizing_costs_what_deepboot_says(
    old: dict[str, tuple[int, ...]], new: dict[str, tuple[int, ...]], pause_s: float
) -> None:
    assert resize_pause_s(SPEC, old, new, 0.1) == pytest.approx(pause_s)


def test_draws_depend_on_the_key_alone() -> None:
    assert draw(1, "a") == draw(1, "a")
    values = [draw(1, index) for index in range(1000)]
    assert 0.47 < sum(values) / 1000 < 0.53
    assert 0 <= min(values) < max(values) < 1


# --- gangs ---------------------------------------------------------------------------------------


def test_a_job_ends_when_the_closed_form_says() -> None:
    assert finish(begin(FOUR, step=100, transfer_s=12.0)) == [
        (42.0, GangStarted("j", 1, 100)),
        (42.0 + 900 / 2.5, GangCompleted("j", 1, 1000)),
    ]


def test_a_gang_goes_at_the_pace_of_its_slowest_node() -> None:
    executor = begin({"n1": (0, 1), "slow": (0, 1)}, runs=True)
    (progress,) = executor.progress(30.0 + 40.0)
    assert (progress.step, progress.samples_per_s) == (50, 12.5)


def test_noise_is_the_jobs_own_and_bounded() -> None:
    ends = set()
    for seed in range(20):
        executor = begin(physics=Physics(seed=seed, rate_noise=0.1, failures_per_gpu_hour=0.0))
        end_s = finish(executor)[-1][0]
        assert 1000 / 1.1 <= end_s - 30 <= 1000 / 0.9
        ends.add(end_s)
    assert len(ends) == 20


def test_scaling_conserves_steps() -> None:
    executor = begin(runs=True)
    executor.scale(ScaleWorkers("j", 2, FOUR), 130.0)  # 100 steps done
    assert finish(executor) == [
        (153.0, GangStarted("j", 2, 100)),
        (153.0 + 900 / 2.5, GangCompleted("j", 2, 1000)),
    ]


def test_leavers_go_before_the_new_allocation_starts() -> None:
    executor = begin(FOUR, runs=True)
    executor.scale(ScaleWorkers("j", 2, {"n1": (0,), "slow": (0, 1, 2)}), 70.0)
    told = finish(executor)
    assert told[:2] == [
        (73.0, WorkersLeft("j", 1, 100)),
        (93.0, GangStarted("j", 2, 100)),
    ]


def test_a_checkpoint_pauses_and_keeps_the_steps() -> None:
    executor = begin(runs=True)
    executor.checkpoint(CheckpointWorkers("j", 1), 80.5)
    executor.checkpoint(CheckpointWorkers("j", 1), 82.0)
    done = CheckpointDone("j", 1, 50, "simulated:j/50", 100, 5.0)
    assert finish(executor) == [(85.5, done), (1035.0, GangCompleted("j", 1, 1000))]


def test_a_stop_saves_within_the_grace() -> None:
    executor = begin(runs=True)
    executor.stop(StopWorkers("j", 1, True, 60.0), 80.0)
    assert [(at, type(report)) for at, report in finish(executor)] == [
        (85.0, CheckpointDone),
        (85.0, GangStopped),
    ]


def test_a_stop_whose_checkpoint_takes_too_long_loses_the_steps_since_the_last() -> None:
    executor = begin(step=7, runs=True)
    executor.stop(StopWorkers("j", 1, True, 4.0), 80.0)
    assert finish(executor) == [(84.0, GangStopped("j", 1, 7))]


def test_a_stop_waits_for_the_checkpoint_under_way() -> None:
    executor = begin(runs=True)
    executor.checkpoint(CheckpointWorkers("j", 1), 80.0)
    executor.stop(StopWorkers("j", 1, True, 2.5), 83.0)
    assert [type(report) for _, report in finish(executor)] == [CheckpointDone, GangStopped]


def test_a_stop_can_be_hurried() -> None:
    executor = begin(runs=True)
    executor.stop(StopWorkers("j", 1, True, 60.0), 80.0)
    executor.stop(StopWorkers("j", 1, False, 60.0), 81.0)
    assert finish(executor) == [(81.0, GangStopped("j", 1, 0))]


def test_a_gang_that_never_ran_has_nothing_to_save() -> None:
    executor = begin(step=7)
    executor.stop(StopWorkers("j", 1, True, 60.0), 10.0)
    assert finish(executor) == [(10.0, GangStopped("j", 1, 7))]


def test_failures_come_at_the_seeded_rate() -> None:
    fails_s = []
    for seed in range(300):
        physics = Physics(seed=seed, rate_noise=0.0, failures_per_gpu_hour=10.0)
        at_s, report = finish(begin(FOUR, physics=physics))[-1]
        fails_s.append(at_s if isinstance(report, GangFailed) else None)
    # 40 per hour for the gang, and 430 s until it would be done: e^-4.8 get that far.
    early = [at for at in fails_s if at is not None]
    assert 0.97 <= len(early) / 300 <= 1.0
    assert 70 < sum(early) / len(early) < 110


def test_checkpoints_fail_at_the_given_share() -> None:
    lost = 0
    for seed in range(200):
        physics = Physics(seed=seed, failures_per_gpu_hour=0.0, checkpoint_failure_share=0.25)
        executor = begin(physics=physics, runs=True)
        executor.checkpoint(CheckpointWorkers("j", 1), 50.0)
        (report,) = executor.advance(55.0)
        lost += isinstance(report, CheckpointLost)
    assert 30 <= lost <= 70


def test_a_fault_on_purpose_ends_the_gang() -> None:
    executor = begin(runs=True)
    executor.fail("j", "unplugged", 44.0)
    assert finish(executor) == [(44.0, GangFailed("j", 1, "unplugged"))]


# --- owner and meter -----------------------------------------------------------------------------


def owner(demand: float = 10.0) -> SimulatedOwner:
    return SimulatedOwner("serve", {"s1": 8, "s2": 8}, lambda _: demand, 0.0)


def test_draining_takes_capacity_at_once_and_reports_later() -> None:
    pool = owner()
    pool.drain("s1", 100.0)
    pool.drain("s1", 110.0)
    assert pool.gpus_serving == 8
    assert pool.advance(119.0) == []
    assert pool.next_due_s() == 120.0
    assert pool.advance(120.0) == [NodeDrained("s1")]
    assert pool.next_due_s() is None


def test_a_returned_node_is_handed_back_at_once_and_serves_when_warm() -> None:
    pool = owner()
    pool.drain("s1", 0.0)
    pool.advance(20.0)
    pool.hand_back("s1", 50.0)
    assert pool.advance(50.0) == [NodeHandedBack("s1")]
    assert pool.gpus_serving == 8
    assert pool.advance(80.0) == []
    assert pool.gpus_serving == 16


def test_a_drain_can_be_called_off() -> None:
    pool = owner()
    pool.drain("s1", 0.0)
    pool.hand_back("s1", 5.0)
    assert pool.advance(40.0) == [NodeHandedBack("s1")]
    assert pool.gpus_serving == 16


def test_shortfall_is_exact_for_constant_demand() -> None:
    pool = owner(demand=10.0)
    pool.drain("s1", 100.0)  # 8 GPUs for 10: 2 short, until 30 s after it is handed back
    pool.advance(120.0)
    pool.hand_back("s1", 200.0)
    pool.advance(300.0)
    (load,) = pool.loads(500.0)
    assert load.shortfall_gpu_s == pytest.approx(2 * (230 - 100))
    assert (load.pool, load.node) == ("serve", None)
    assert (load.gpus_needed, load.gpus_serving) == (10, 16)


def test_shortfall_of_a_rising_demand_counts_from_where_it_crosses() -> None:
    pool = SimulatedOwner("edge", {"e1": 4}, lambda t: t / 10, 0.0, per_node=True)
    (load,) = pool.loads(80.0)
    assert load.shortfall_gpu_s == pytest.approx(0.5 * 40 * 4)
    assert load.node == "e1"


def test_the_owners_figures_agree() -> None:
    pool = owner(demand=20.0)
    (load,) = pool.loads(60.0)
    assert load.requests_running == 16 * 16
    assert load.requests_waiting == 4 * 16
    assert load.request_rate_per_s == pytest.approx(40.0)
    assert load.latency_p99_s == pytest.approx(0.8 / 0.05)
    assert load.kv_cache_use == pytest.approx(0.95)
    (idle,) = owner(demand=0.0).loads(60.0)
    assert (idle.requests_running, idle.requests_waiting, idle.latency_p99_s) == (0, 0, None)


def test_readings_follow_from_what_runs() -> None:
    specs = [NodeSpec(n, "serve", "inference", 2, "A100", 1000) for n in ("n1", "s1")]
    executor = begin({"n1": (0,)})
    pool = SimulatedOwner("serve", {"n1": 2, "s1": 2}, lambda _: 1.0, 0.0)
    pool.drain("n1", 0.0)
    meter = SimulatedMeter(specs, executor, pool)
    starting, _ = meter.measure(10.0, 60.0)
    assert starting.gpu_utilisation == [0.05, 0.0]
    executor.advance(30.0)
    n1, s1 = meter.measure(40.0, 60.0)
    assert n1.gpu_utilisation == [0.9, 0.0]
    assert n1.gpu_memory_used_mib == [800, 0]
    assert s1.gpu_utilisation == [0.5, 0.5]
    assert s1.gpu_power_w == pytest.approx([230.0, 230.0])
    assert s1.window_s == 60.0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Physics(rate_noise=1.0), "rate_noise"),
        (lambda: Physics(failures_per_gpu_hour=-1.0), "failures_per_gpu_hour"),
    ],
)
def test_physics_out_of_range_names_the_field(make: Callable[[], Physics], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
