"""The public traces and profiles, where they are: all of them are read, and mean what they say."""

from pathlib import Path

import pytest

from benchmarks.public_data import DATA
from schemas.events import JobSubmitted
from simulator.models import MODELS, speedup
from simulator.profiles import Profiles, load_profiles
from simulator.scenario import scenario_for
from simulator.workload import read_workload
from tests.contended import loads

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        not (DATA / "elasticflow").is_dir() or not (DATA / "pollux").is_dir(),
        reason="no public data: set TIDEGATE_DATA to a folder with elasticflow/ and pollux/",
    ),
]
TRACES = sorted(DATA.glob("elasticflow/traces/*.csv"))
POLLUX = sorted(DATA.glob("pollux/workloads/*/*.csv"))


@pytest.fixture(scope="module")
def a100() -> Profiles:
    return load_profiles(DATA / "elasticflow" / "throughputs" / "A100")


@pytest.fixture(scope="module")
def pollux() -> Profiles:
    return load_profiles(DATA / "pollux" / "profiles")


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_elasticflow_traces(path: Path, a100: Profiles) -> None:
    rows = path.read_bytes().count(b"\n", path.read_bytes().index(b"\n") + 1)
    workload = read_workload(path, profiles=a100)
    assert workload.source_format == "elasticflow"
    assert rows <= len(workload.jobs) <= rows + 1  # the last line may lack its end
    assert not any("built-in" in note for note in workload.notes)
    for job, (_, submission) in zip(workload.jobs, workload.submissions(1.7e9), strict=True):
        assert JobSubmitted.model_validate_json(submission.model_dump_json()) == submission
        assert job.deadline_after_s is not None
        assert job.deadline_after_s > 0


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_traces_fit_a_busy_but_not_hopeless_day(path: Path, a100: Profiles) -> None:
    fitted = read_workload(path, profiles=a100).fit(24.0)
    scenario = scenario_for(fitted)
    assert 40 <= len(fitted.jobs) <= 600
    alone, with_loans = loads(scenario)
    assert 1.0 <= alone <= 1.6
    assert with_loans <= 1.0


def test_recorded_durations_follow_from_the_tables(a100: Profiles) -> None:
    """ElasticFlow's work is duration x rate at num_gpu: the curve and the table must agree."""
    path = DATA / "elasticflow" / "traces" / "cluster10.csv"
    measured, drawn = read_workload(path, profiles=a100), read_workload(path)
    for job, other in zip(measured.jobs, drawn.jobs, strict=True):
        assert job.gpu_s == pytest.approx(other.gpu_s, rel=0.002)


def test_sizes_that_pay_are_elasticflows_max_gpu(a100: Profiles) -> None:
    # physics.md B, `get_max_gpu`; bert 8/16 is by batch.
    expected = {
        ("bert", 64): 8,
        ("bert", 128): 16,
        ("gpt2", 128): 16,
        ("gpt2", 256): 32,
        ("inception3", 64): 16,
        ("inception3", 128): 32,
        ("resnet50", 64): 32,
        ("resnet50", 128): 64,
        ("vgg16", 64): 32,
        ("vgg16", 256): 64,
        ("deepspeech2", 32): 32,
        ("deepspeech2", 64): 64,
    }
    assert {key: a100.tables[key].gpus_max for key in expected} == expected


@pytest.mark.parametrize(
    "model", ["resnet50", "vgg16", "inception3", "bert", "gpt2", "deepspeech2"]
)
def test_builtin_curve_is_near_the_tables(a100: Profiles, model: str) -> None:
    facts = MODELS[model]
    table = a100.find(model, facts.batch)
    assert table is not None
    rates = {point.gpus: point.samples_per_s for point in table.rates}
    assert facts.samples_per_s == pytest.approx(rates[1], rel=0.001)
    assert facts.gpus_max == table.gpus_max
    for gpus in (2, 4, 8):
        drawn = facts.samples_per_s * speedup(gpus, facts.serial)
        assert drawn == pytest.approx(rates[gpus], rel=0.10)


@pytest.mark.parametrize("path", POLLUX, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_pollux_workloads(path: Path, pollux: Profiles) -> None:
    workload = read_workload(path, profiles=pollux)
    load = float(path.parent.name.removeprefix("load-"))
    assert (workload.source_format, len(workload.jobs)) == ("pollux", 160 * load)
    assert not any("built-in" in note or "as many samples" in note for note in workload.notes)
    for _, submission in workload.submissions(1.7e9):
        assert JobSubmitted.model_validate_json(submission.model_dump_json()) == submission


@pytest.mark.parametrize(
    ("app", "gpus", "batch", "duration_s"),
    [
        ("cifar10", 12, 4096, 573),
        ("bert", 12, 384, 1589),
        ("deepspeech2", 12, 640, 2573),
        ("imagenet", 24, 3200, 31_396),
        ("yolov3", 4, 64, 12_870),
    ],
)
def test_pollux_run_times_are_the_published_ones(
    pollux: Profiles, app: str, gpus: int, batch: int, duration_s: int
) -> None:
    """physics.md A.4, `get_configurations()`."""
    table = pollux.find(app, batch)
    assert table is not None
    rate = {point.gpus: point.samples_per_s for point in table.rates}[gpus]
    assert pollux.steps[app, batch] * batch / rate == pytest.approx(duration_s, rel=0.003)


def test_t4_tables_have_gaps() -> None:
    t4 = load_profiles(DATA / "elasticflow" / "throughputs" / "T4")
    table = t4.find("yolov3", 64)
    assert table is not None
    assert ([point.gpus for point in table.rates], table.gpus_max) == ([1, 2, 4, 8, 16], 4)
