"""The made-up day: equal for equal seeds, and with the statistics that its pages promise."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator.generate import Demand, generate
from simulator.scenario import Scenario, default_scenario, scenario_for
from simulator.tides import SLOT_S, edge_tide, pool_tide, tide_of_services
from simulator.workload import Workload
from tests.contended import loads

ROOT = Path(__file__).resolve().parents[2]


def rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def fingerprint(scenario: Scenario) -> str:
    parts = [repr(scenario.pools), repr(scenario.notes)]
    parts += [submission.model_dump_json() for _, submission in scenario.workload.submissions(1e9)]
    parts += [f"{at_s!r}" for at_s, _ in scenario.workload.submissions(1e9)]
    for name, tide in scenario.tides.items():
        parts += [name, tide.load.tobytes().hex(), tide.needed.tobytes().hex()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@pytest.mark.process
def test_equal_seed_equal_bytes_under_any_hash_seed() -> None:
    code = (
        "from simulator.scenario import default_scenario\n"
        "from tests.unit.test_simulator_scenario import fingerprint\n"
        "print(fingerprint(default_scenario(7, 6.0)))"
    )
    seen = {fingerprint(default_scenario(7, 6.0))}
    for hash_seed in ("0", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        seen.add(run.stdout.strip())
    assert len(seen) == 1
    assert fingerprint(default_scenario(8, 6.0)) not in seen


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("hours", [1.0, 24.0])
def test_day_is_contended_without_loans_and_feasible_with(seed: int, hours: float) -> None:
    scenario = default_scenario(seed, hours)
    alone, with_loans = loads(scenario)
    assert 1.3 <= alone <= 1.6
    assert 0.5 <= with_loans <= 1.0


def test_a_day_goes_from_noon_to_noon_and_less_begins_at_midnight() -> None:
    day, hours = default_scenario(7, 24.0), default_scenario(7, 6.0)
    need = day.tides["inference"].needed.reshape(24, 60).mean(axis=1)
    assert need[0:2].min() > 2.5 * need[15]  # at noon, and at three in the morning
    assert need[8:10].min() > need[0]  # the evening has most
    assert hours.tides["inference"].needed[0] > hours.tides["inference"].needed[-1]  # it ebbs
    came = np.array([job.at_s for job in day.workload.jobs]) // 3600
    assert np.sum(came < 6) > 2.5 * np.sum((came >= 12) & (came < 18))


@pytest.fixture(scope="module")
def month() -> Workload:
    return generate(3, Demand(hours=720.0))


def test_sizes_are_the_traces_sizes(month: Workload) -> None:
    asked = np.array([job.gpus_asked for job in month.jobs])
    for size, of_195 in ((1, 118), (4, 45), (8, 28)):
        assert np.mean(asked == size) == pytest.approx(of_195 / 195, abs=0.02)
    assert set(asked) <= {1, 2, 4, 8, 16}
    assert len(month.jobs) == 32 * 720 * 160 / (8 * 64)


def test_durations_are_heavy_tailed(month: Workload) -> None:
    durations = np.array([job.gpu_s / job.gpus_asked for job in month.jobs])
    low, middle, high = np.quantile(np.log(durations), (0.1, 0.5, 0.9))
    assert (high - middle) / 1.2816 == pytest.approx(1.5, abs=0.15)
    assert (middle - low) / 1.2816 == pytest.approx(1.5, abs=0.15)


def test_deadlines_are_elasticflows(month: Workload) -> None:
    slack = [j.deadline_after_s * j.gpus_asked / j.gpu_s for j in month.jobs if j.deadline_after_s]
    assert len(slack) / len(month.jobs) == pytest.approx(0.45, abs=0.02)
    assert min(slack) == pytest.approx(0.5, abs=0.02)
    assert max(slack) == pytest.approx(1.5, abs=0.02)
    assert float(np.median(slack)) == pytest.approx(1.0, abs=0.03)


def test_arrivals_follow_the_day(month: Workload) -> None:
    hour = np.array([job.at_s for job in month.jobs]) // 3600 % 24
    assert month.jobs[0].at_s == 0.0
    assert [job.at_s for job in month.jobs] == sorted(job.at_s for job in month.jobs)
    by_day, by_night = np.mean((hour >= 9) & (hour < 12)), np.mean((hour >= 2) & (hour < 5))
    assert 3.5 < by_day / by_night < 7.0


def test_some_jobs_with_deadlines_fit_an_edge_gpu() -> None:
    scenario = default_scenario(1)
    edge = scenario.pool("edge")
    fits = [
        job
        for job in scenario.workload.jobs
        if job.deadline_after_s and job.submission.memory_mib <= edge.gpu_memory_mib
    ]
    assert 0.15 < len(fits) / len(scenario.workload.jobs) < 0.45
    assert any(job.submission.memory_mib > edge.gpu_memory_mib for job in scenario.workload.jobs)


def test_start_hour_moves_the_tide() -> None:
    at_night = pool_tide(rng(1), 48, 4.0, start_hour=3.0)
    at_dinner = pool_tide(rng(1), 48, 4.0, start_hour=19.0)
    assert at_night.needed.max() < at_dinner.needed.min()


@pytest.mark.parametrize("seed", range(5))
def test_pool_tide_has_its_trough_and_peaks(seed: int) -> None:
    tide = pool_tide(rng(seed), 480, 24.0)
    by_hour = tide.load.reshape(24, 60).mean(axis=1) / 480
    assert 0.15 <= by_hour[3:6].min() <= 0.25
    assert by_hour[1:7].max() < 0.40
    assert 0.75 <= by_hour[19:22].max() <= 0.95
    assert by_hour[12] > by_hour[10]
    assert by_hour[12] > by_hour[15]
    assert by_hour.argmax() in (20, 21)


def test_weekend_is_lower() -> None:
    week = pool_tide(rng(2), 480, 168.0).load.reshape(7, -1).mean(axis=1)
    assert week[5:].max() < 0.9 * week[:5].min()


@pytest.mark.parametrize("seed", range(8))
def test_edge_is_idle_at_night_and_busy_by_day(seed: int) -> None:
    tide = edge_tide(rng(seed), 2, 24.0)
    assert 0.2 <= float(np.mean(tide.needed == 0)) <= 0.45
    assert tide.gpus_needed(3 * 3600.0) == 0
    assert tide.gpus_needed(12 * 3600.0) >= 1


def test_tide_is_constant_in_a_slot_and_holds_its_ends() -> None:
    tide = pool_tide(rng(0), 48, 2.0)
    assert tide.gpus_needed(SLOT_S) == tide.gpus_needed(2 * SLOT_S - 0.001) == tide.needed[1]
    assert tide.gpus_needed(-5.0) == tide.needed[0]
    assert tide.gpus_needed(1e9) == tide.needed[-1]


def test_tide_of_services_counts_who_is_served() -> None:
    services = ((-30.0, "infer-a-1", 40.0), (0.0, "infer-a-1", 60.0), (119.0, "infer-b-1", 2.0))
    tide = tide_of_services(services, 8, 0.05)
    assert tide.needed.tolist() == [2, 1, 1]
    assert tide_of_services(services, 1, 0.05).needed.tolist() == [1, 1, 1]


def test_lenders_are_the_inference_pool_and_each_edge_server() -> None:
    scenario = default_scenario(0)
    assert list(scenario.tides) == ["inference", *(name for name, _ in scenario.pool("edge").nodes)]
    assert [(pool.kind, pool.gpus) for pool in scenario.pools] == [
        ("training", 32),
        ("inference", 48),
        ("edge", 12),
    ]
    loads = [scenario.tides[name].load.tobytes() for name, _ in scenario.pool("edge").nodes]
    assert len(set(loads)) == len(loads) == 8, "no two edge servers share a tide"


def test_fleet_grows_with_the_workload() -> None:
    small = scenario_for(generate(1, Demand(6.0, pool_gpus=16)), hours=6.0)
    large = scenario_for(generate(1, Demand(6.0, pool_gpus=128)), hours=6.0)
    assert small.pool("training").gpus == 16
    assert large.pool("training").gpus == 128
    assert loads(large)[0] == pytest.approx(1.4, abs=0.1)


def test_fleet_has_room_for_the_largest_rigid_job() -> None:
    workload = generate(1, Demand(6.0, pool_gpus=16))
    job = workload.jobs[0].submission
    wide = job.model_copy(update={"gpus_min": 32, "gpus_max": 32})
    jobs = (type(workload.jobs[0])(0.0, wide, None, 32),)
    assert scenario_for(Workload(jobs, "one", "generated"), hours=6.0).pool("training").gpus == 32


@pytest.mark.parametrize(
    "wrong",
    [{"hours": 0.0}, {"hours": float("nan")}, {"pool_gpus": 0}, {"load": 0}],
)
def test_demand_refuses_nonsense(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        Demand(**wrong)  # type: ignore[arg-type]
