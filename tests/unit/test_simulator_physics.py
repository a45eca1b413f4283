"""How jobs really run: interpolation, batches, epochs, and tables."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.public_data import DATA as PUBLIC
from simulator.csv_rows import WorkloadError
from simulator.physics.base import Cluster, JobModel
from simulator.physics.simple import SimplePhysics

pytest.importorskip("scipy")

from scipy.interpolate import LinearNDInterpolator

from simulator.physics.mesh import Mesh
from simulator.physics.pollux import FixedJob, Oracle, PolluxPhysics
from simulator.physics.pollux_app import App, Batch, compact, least_rotation, load_app

DATA = PUBLIC / "pollux"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="no public data: set TIDEGATE_DATA to a folder with pollux/"
)
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: Application -> initial, largest batch; smallest, largest micro-batch; epochs; progress in all.
FACTS = {
    "bert": (12, 384, 4, 12, 2, 14_774.0),
    "cifar10": (128, 4096, 32, 1024, 100, 39_062.9),
    "ncf": (256, 32_768, 32, 32_768, 10, 194_174.0),
    "imagenet": (200, 12_800, 20, 200, 90, 576_525.6),
    "deepspeech2": (20, 640, 10, 80, 80, 28_536.0),
    "yolov3": (8, 512, 4, 8, 50, 103_444.0),
}


def alone_s(model: JobModel, gpus: tuple[int, ...]) -> float:
    """Run a job to its end on one placement."""
    progress = now_s = 0.0
    while progress < model.total:
        segment = model.segment(progress, gpus)
        assert segment.speed > 0.0
        now_s += (segment.until - progress) / segment.speed
        progress = segment.until
    return now_s


def test_the_mesh_is_that_of_scipy() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    grid = np.array(np.meshgrid([1, 2, 4, 8], [1, 3, 6, 9], [4, 8, 30])).reshape(3, -1).T
    points = np.concatenate((grid, rng.uniform(1, 9, (30, 3)))).astype(np.float64)
    values = rng.normal(size=(len(points), 2))
    asked = np.concatenate((rng.uniform(0, 10, (200, 3)), points[:20]))
    expected = LinearNDInterpolator(points, values)(asked)
    found = Mesh(points, values).at(asked)
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert np.nanmax(np.abs(found - expected)) < 1e-9
    assert np.isfinite(found).any()
    assert np.isnan(found).any()


def test_compact_and_rotated_placements() -> None:
    assert compact(11, 4) == (4, 4, 3)
    assert compact(8, 4) == (4, 4)
    assert compact(3, 8) == (3,)
    assert least_rotation((4, 4, 1, 3)) == "1344"


@needs_data
@pytest.mark.data
class TestPollux:
    @pytest.mark.parametrize("name", sorted(FACTS))
    def test_profiles_say_what_the_notes_say(self, name: str) -> None:
        app = load_app(DATA / "profiles" / name)
        batch0, batch_max, local_min, local_max, epochs, progress = FACTS[name]
        assert (app.batch0, app.batch_max, app.epochs) == (batch0, batch_max, epochs)
        assert (app.local_min, app.local_max) == (local_min, local_max)
        assert app.ends[-1] == pytest.approx(progress, rel=1e-5)
        assert (np.diff(app.ends) > 0).all()

    @pytest.mark.parametrize(
        ("name", "batch", "gpus", "expected"),
        [
            ("cifar10", 4096, 12, Batch(341, 1)),  # 342 would exceed the largest batch
            ("cifar10", 2048, 6, Batch(342, 1)),
            ("ncf", 32_768, 1, Batch(16_384, 2)),  # one GPU measures noise over two passes
            ("bert", 384, 6, Batch(10, 6)),  # likewise
            ("yolov3", 64, 4, Batch(8, 2)),
            ("yolov3", 64, 32, None),
        ],
    )
    def test_a_batch_is_split(
        self, name: str, batch: int, gpus: int, expected: Batch | None
    ) -> None:
        assert load_app(DATA / "profiles" / name).fixed(batch, gpus) == expected

    def test_the_tuned_batch_is_the_best_of_those_tried(self) -> None:
        app = load_app(DATA / "profiles" / "cifar10")
        for gpus in ((1,), (4,), (1, 3), (4, 4, 2)):
            tuned = app.tuned(gpus)
            assert tuned is not None
            micro, passes = app.candidates(sum(gpus))
            for epoch in (0, 42, 99):
                tried = [
                    app.goodput(gpus, Batch(int(m), int(p)), epoch)
                    for m, p in zip(micro, passes, strict=True)
                ]
                assert tuned.goodput[epoch] == pytest.approx(max(tried))
                assert app.goodput(gpus, tuned.batch[epoch], epoch) == pytest.approx(max(tried))

    def test_reference_runs_take_about_as_long_as_published(self) -> None:
        for name, batch, gpus, takes_s in (
            ("cifar10", 4096, 12, 573.0),
            ("bert", 384, 12, 1589.0),
            ("deepspeech2", 640, 12, 2573.0),
            ("imagenet", 3200, 24, 31_396.0),
            ("yolov3", 64, 4, 12_870.0),
        ):
            app = load_app(DATA / "profiles" / name)
            job = FixedJob(app, batch, Cluster())
            assert alone_s(job, compact(gpus, 4)) == pytest.approx(takes_s, rel=0.12), name

    def test_a_fixed_job_is_told_its_own_iterations(self) -> None:
        app = load_app(DATA / "profiles" / "deepspeech2")
        job = FixedJob(app, 640, Cluster())
        observed = job.observed(0.0, SIZES)
        at = SIZES.index(16)
        assert observed.remaining / observed.rates[at] == pytest.approx(
            alone_s(job, (4,) * 4), rel=1e-6
        )
        middle = float(app.ends[39])
        later = job.observed(middle, SIZES)
        inside = job.observed(middle + 100.0, SIZES)
        assert later.remaining - inside.remaining == pytest.approx(100.0 * later.per_progress)
        assert observed.remaining > later.remaining > 0

    def test_an_oracle_tells_the_present_goodput(self) -> None:
        app = load_app(DATA / "profiles" / "bert")
        oracle = Oracle(app, Cluster())
        for progress, epoch in ((0.0, 0), (float(app.ends[0]), 1)):
            observed = oracle.observed(progress, SIZES)
            gpus = compact(8, 4)
            assert observed.rates[3] == app.goodput(gpus, oracle.choose(gpus, epoch), epoch)
            assert observed.remaining == app.ends[-1] - progress

    def test_a_workload_becomes_jobs(self) -> None:
        trace = DATA / "workloads" / "load-0.5" / "workload-1.csv"
        physics = PolluxPhysics(DATA / "profiles")
        fixed = physics.entries(trace, Cluster(), adaptive=False)
        tuned = physics.entries(trace, Cluster(), adaptive=True)
        assert [job.id for job in fixed] == [job.id for job in tuned]
        assert fixed[0].submit_s > 0  # the file's own axis: rounds are on it
        assert {job.model.pause_s((), ((0, 1),)) for job in (*fixed, *tuned)} == {30.0}
        ncf = next(job for job in tuned if job.id.startswith("ncf"))
        rates = ncf.model.observed(0.0, SIZES).rates
        assert rates[0] > 0
        assert not rates[1:].any()

    def test_other_workloads_are_refused(self) -> None:
        trace = DATA.parent / "elasticflow" / "traces" / "195job.csv"
        with pytest.raises(WorkloadError, match="is a workload of kind"):
            PolluxPhysics(DATA / "profiles").entries(trace, Cluster(), adaptive=False)
        with pytest.raises(WorkloadError, match=r"no placements\.csv"):
            load_app(DATA / "profiles" / "nothing")


class TestSimple:
    def test_jobs_run_at_what_they_were_told(self) -> None:
        made = SimplePhysics(seed=4).entries(Path("generated"), Cluster(4, 4), adaptive=False)
        for job in made[:20]:
            observed = job.model.observed(0.0, SIZES)
            assert observed.rates[SIZES.index(job.requested)] > 0
            for size, rate in zip(SIZES, observed.rates.tolist(), strict=True):
                assert job.model.segment(0.0, (size,)).speed == rate
            assert job.model.pause_s((), ((0, 1),)) == 30.0

    def test_a_trace_is_read_with_its_deadlines(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.csv"
        trace.write_text(
            "job_id,submit_time,num_gpus,duration,deadline\na,100,2,50,190\nb,160,1,30,\n"
        )
        one, two = SimplePhysics().entries(trace, Cluster(), adaptive=False)
        assert (one.submit_s, one.deadline_s, one.requested) == (0.0, 90.0, 2)
        assert alone_s(one.model, (2,)) == pytest.approx(50.0)
        assert (two.submit_s, two.deadline_s) == (60.0, float("inf"))


def test_a_profile_without_curves_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n1,4,0.4,0.1\n")
    with pytest.raises(WorkloadError, match="no validation"):
        App(folder)


def small_profile(root: Path, placements: str, *batches: int) -> Path:
    """Write a profile of `bert` with these rows of placements, and curves of these batches."""
    folder = root / "bert"
    folder.mkdir(parents=True)
    head = "placement,local_bsz,step_time,sync_time\n"
    (folder / "placements.csv").write_text(head + placements)
    for batch in batches:
        rows = [f"{100 * epoch},{1200 * epoch / batch},1,24\n" for epoch in (1, 2)]
        curve = "progress,iteration,grad_sqr,grad_var\n" + "".join(rows)
        (folder / f"validation-{batch}.csv").write_text(curve)
    return root


ONE_NODE = "1,4,0.4,0\n1,12,1.2,0\n2,4,0.5,0.1\n2,12,1.3,0.1\n"


def test_a_profile_of_one_batch_alone_is_run(tmp_path: Path) -> None:
    app = App(small_profile(tmp_path, ONE_NODE, 12) / "bert")
    assert app.gain(12).tolist() == [1.0, 1.0]
    job = FixedJob(app, 12, Cluster(1, 2))
    assert alone_s(job, (1,)) == pytest.approx(200 * 1.2)


def test_a_profile_of_one_node_says_nothing_of_two(tmp_path: Path) -> None:
    app = App(small_profile(tmp_path, ONE_NODE, 12, 48) / "bert")
    assert np.isnan(app.step_times((1, 1), np.array([4.0]))).all()
    job = Oracle(app, Cluster(2, 2))
    assert job.segment(0.0, (1, 1)).speed == 0.0
    assert (job.observed(0.0, (1, 2, 4)).rates > 0.0).tolist() == [True, True, False]


@pytest.mark.parametrize("row", ["2,4,0,0\n2,12,0,0\n", "2,4,0.1,0.5\n2,12,0.1,0.5\n"])
def test_steps_that_take_no_time_are_no_measurement(tmp_path: Path, row: str) -> None:
    alone = "1,4,0.4,0\n1,12,1.2,0\n"
    app = App(small_profile(tmp_path, alone + row, 48, 96) / "bert")
    rates = Oracle(app, Cluster(1, 2)).observed(0.0, (1, 2)).rates
    assert np.isfinite(rates).all()
    assert rates[0] > 0.0 == rates[1]


def test_a_trace_without_a_training_job_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("name,time,application,num_replicas,batch_size,duration\na,0,infer-x,1,1,50\n")
    with pytest.raises(WorkloadError, match="no training job"):
        PolluxPhysics(tmp_path).entries(path, Cluster(), adaptive=False)
