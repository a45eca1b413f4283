"""Made-up jobs: their statistics, their scaling, and the pools made beside them."""

import math
from pathlib import Path

import numpy as np
import pytest

from scheduler.policies.interface import Kind
from simulator.generated import LARGE_MIB, SMALL_MIB, MadeJob, Mix, make_jobs
from simulator.models import speedup
from simulator.neighbours import neighbours
from simulator.physics.base import Cluster
from simulator.physics.simple import GENERATED, Pauses, SimplePhysics

LARGE = Mix(days=15.0, gpus=3_520, jobs=20_000, elastic=0.43, elastic_from=8, deadlines=0.3)


@pytest.fixture(scope="module")
def many() -> list[MadeJob]:
    return list(make_jobs(1, LARGE))


def duration_s(job: MadeJob) -> float:
    return job.work_s / speedup(job.asked, job.serial)


def test_equal_seeds_make_equal_jobs() -> None:
    mix = Mix(jobs=50)
    assert list(make_jobs(3, mix)) == list(make_jobs(3, mix))
    assert list(make_jobs(3, mix)) != list(make_jobs(4, mix))


@pytest.mark.parametrize("load", [0.5, 0.9, 1.5])
def test_the_load_is_met(load: float) -> None:
    mix = Mix(days=3.0, gpus=256, jobs=1_000, load=load)
    end_s = 3 * 86_400.0
    asked_gpu_s = sum(
        min(duration_s(job), end_s - job.submit_s) * job.asked for job in make_jobs(5, mix)
    )
    assert asked_gpu_s / (256 * end_s) == pytest.approx(load, rel=1e-3)


def test_sizes_and_durations_are_those_of_the_published_traces(many: list[MadeJob]) -> None:
    asked = np.array([job.asked for job in many])
    length_s = np.array([duration_s(job) for job in many])
    assert (asked == 1).mean() == pytest.approx(0.73, abs=0.01)
    assert (asked == 8).mean() == pytest.approx(0.20, abs=0.01)
    # A tail: the mean is far above the median, and large gangs run longer.
    assert length_s.mean() > 2 * np.median(length_s)
    assert np.median(length_s[asked >= 8]) > 1.5 * np.median(length_s[asked == 1])


def test_jobs_come_by_day_and_on_weekdays(many: list[MadeJob]) -> None:
    at_s = np.array([job.submit_s for job in many])
    hour, day = at_s // 3600 % 24, at_s // 86_400 % 7
    assert (hour == 10).sum() > 3 * (hour == 4).sum()
    assert (day == 2).sum() / 2 > 1.5 * (day == 5).sum() / 2
    assert at_s[0] == 0.0
    assert (np.diff(at_s) >= 0).all()


def test_who_is_elastic_fits_everywhere(many: list[MadeJob]) -> None:
    elastic = [job for job in many if len(job.sizes) > 1]
    large = [job for job in many if job.asked >= 8]
    assert {job.asked >= 8 for job in elastic} == {True}
    assert len(elastic) / len(large) == pytest.approx(0.43, abs=0.02)
    assert {job.memory_mib for job in elastic} == {SMALL_MIB}
    assert {job.memory_mib for job in many} == {SMALL_MIB, LARGE_MIB}
    for job in elastic[:50]:
        assert job.asked in job.sizes
        assert (job.sizes[0], job.sizes[-1]) == (job.asked // 2, job.asked * 4)


def test_deadlines_are_half_to_one_and_a_half_durations_away(many: list[MadeJob]) -> None:
    due = [job for job in many if math.isfinite(job.deadline_s)]
    assert len(due) / len(many) == pytest.approx(0.3, abs=0.02)
    slack = np.array([(job.deadline_s - job.submit_s) / duration_s(job) for job in due])
    assert 0.5 <= slack.min() < 0.52
    assert 1.48 < slack.max() <= 1.5 + 1e-9


@pytest.mark.parametrize(
    ("options", "says"), [({"days": 0.0}, "days: 0"), ({"jobs": 0}, "jobs: 0"), ({"load": 0}, "lo")]
)
def test_what_makes_no_jobs_is_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Mix(**options)  # type: ignore[arg-type]


def test_entries_fill_the_room_and_scale_by_the_law() -> None:
    physics = SimplePhysics(seed=2, mix=Mix(jobs=40), pauses=Pauses(40.0, 23.0))
    for entry in physics.entries(Path(GENERATED), Cluster(4, 4), adaptive=False):
        assert entry.requested <= 4  # of 16
        one = entry.model.segment(0.0, (entry.requested,)).speed
        more = entry.model.segment(0.0, (2 * entry.requested,)).speed
        assert more == 0.0 or one < more < 2 * one
        assert entry.model.pause_s((), ((0, 1),)) == 40.0
        assert entry.model.pause_s(((0, 1),), ((1, 1),)) == 63.0


def test_neighbours_have_streams_of_their_own() -> None:
    serve, edge = neighbours(4, 2, 8, seed=1, hours=48.0)
    assert (serve.kind, serve.gpus, edge.kind, edge.gpus) == (Kind.INFERENCE, 32, Kind.EDGE, 2)
    alone = neighbours(0, 3, 8, seed=1, hours=48.0)[0]
    assert [load.gpus.tolist() for load in edge.loads] == [
        load.gpus.tolist() for load in alone.loads[:2]
    ]
    # Demand began two days before, and the run begins at midnight.
    load = serve.loads[0]
    assert load.from_s == -48 * 3600.0
    night, evening = load.at(4 * 3600.0), load.at(20 * 3600.0)
    assert night < evening / 2
    assert neighbours(0, 0, 8, seed=1, hours=48.0) == ()


def test_requests_may_stand_in_for_a_tide(tmp_path: Path) -> None:
    trace = tmp_path / "requests.csv"
    lines = [f"2023-11-16 18:{i // 60:02}:{i % 60:02}.0,800,{30 + i}" for i in range(600)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    (serve,) = neighbours(4, 0, 8, seed=1, hours=24.0, requests=trace)
    load = serve.loads[0]
    assert load.gpus.max() == pytest.approx(0.85 * 32)
    assert load.from_s == -48 * 3600.0
    assert len(load.gpus) * load.slot_s >= 72 * 3600.0
