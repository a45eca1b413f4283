"""What an estimator learns from reports, against a ground truth that made them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from scheduler.core.facts import Allocation
from scheduler.core.state import ClusterState, Job, Node, Pool
from scheduler.core.stimuli import Curve
from scheduler.core.transitions import JobState
from scheduler.estimator.estimator import QUIET_S, Estimator
from scheduler.estimator.goodput import Noise, StepTime
from schemas.events import JobProgressed
from tests.builders import submitted

PER_NODE, BATCH = 4, 256.0
TRUE = StepTime(0.08, 0.003, 0.05, 0.004, 0.02, 0.001, 2.0)


def shape(size: int) -> tuple[int, int]:
    return -(-size // PER_NODE), size


class Bench:
    """A state that the test moves about, and an estimator that hears of it."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.now_s = 1e6
        for pool, speed in (("train", 1.0), ("fast", 2.0)):
            names = [f"{pool}-{n}" for n in range(16)]
            self.state.pools[pool] = Pool(pool, "training", names)
            for name in names:
                node = Node(name, pool, pool, PER_NODE, "gpu", 1, speed, 1.0, 0)
                self.state.nodes[name] = node
        self.learner = Estimator(self.state)

    def job(self, name: str = "j", **more: Any) -> Job:
        """A job that declared perfect scaling, at a hundredth of its speed."""
        fields: dict[str, Any] = {
            "tenant": "t", "model": "m", "gpus_min": 1, "gpus_max": 64, "total_steps": 10**6,
            "samples_per_step": BATCH, "deadline_s": None, "memory_mib": 0, "checkpoint_mib": 0,
            "rates": [[float(n), 10.0 * n] for n in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)],
            "checkpoint_cost_s": 1.0, "start_cost_s": 1.0, "priority": 0, "edge_allowed": True,
            "submit_s": self.now_s,
        }  # fmt: skip
        job = self.state.jobs[name] = Job(id=name, **{**fields, **more})
        self.learner.hear(self.state, submitted(name), self.now_s)
        return job

    def place(self, job: Job, size: int, pool: str = "train", each: int = PER_NODE) -> None:
        cells: Allocation = {}
        for gpu in range(size):
            cells.setdefault(f"{pool}-{gpu // each}", []).append(gpu % each)
        job.allocation, job.pool, job.state = cells, pool, JobState.RUNNING
        job.epoch += 1

    def say(self, job: Job, takes_s: float, *, learn: bool = True, **more: Any) -> None:
        """One report, a minute after the last, and what follows."""
        self.now_s += 60.0
        job.step += 10
        fields = {
            "job": job.id, "epoch": job.epoch, "step": job.step, "samples_per_s": BATCH / takes_s,
            "checkpoint_step": 0, "checkpoint_cost_s": 0.0,
            "batch": None, "step_s": None, "pass_s": None, "gradient_noise": None,
        }  # fmt: skip
        report = JobProgressed.model_construct(**{**fields, **more})
        self.learner.hear(self.state, report, self.now_s)
        if learn:
            self.learn()

    def learn(self) -> dict[str, Curve]:
        self.learner.learn(self.state, self.now_s)
        found = self.learner.take()
        for name, curve in found.items():
            self.state.jobs[name].curve = dict(curve)
            self.state.jobs[name].curve_at_s = self.now_s
        return found

    def runs(self, job: Job, *sizes: int) -> None:
        """Run at these sizes, as the truth is."""
        for size in sizes:
            self.run(job, size, true_s(size))

    def run(self, job: Job, size: int, takes_s: float, pool: str = "train", **more: Any) -> None:
        """Run at a size for a few reports; the first, of steps elsewhere perhaps, is junk."""
        self.place(job, size, pool)
        self.say(job, 123.0)
        for _ in range(3):
            self.say(job, takes_s, **more)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def true_s(size: int, batch: float = BATCH, true: StepTime = TRUE) -> float:
    return float(true.step_s(*shape(size), batch / size))


def learned(job: Job) -> dict[str, Any]:
    assert job.curve is not None
    return job.curve


def points(job: Job) -> dict[int, float]:
    return {int(size): work for size, work in learned(job)["points"]}


def test_nothing_is_known_of_a_job_that_showed_nothing(bench: Bench) -> None:
    job = bench.job()
    bench.place(job, 4)
    bench.say(job, true_s(4))
    assert job.curve is None, "the first report may be of steps before"


def test_one_size_draws_the_declared_curve_through_what_was_measured(bench: Bench) -> None:
    job = bench.job()
    bench.run(job, 4, true_s(4))
    assert points(job)[4] == pytest.approx(1.0 / true_s(4), rel=1e-5)
    assert points(job)[8] == pytest.approx(2.0 / true_s(4), rel=1e-5)
    curve = learned(job)
    assert (curve["measured"], curve["per_step"], curve["left"]) == ([4], 1.0, None)
    assert curve["at_s"] == [bench.now_s - 120.0], "it stands since it was first said"


@pytest.mark.parametrize(("timed", "within"), [(True, 0.05), (False, 0.1)])
@pytest.mark.parametrize("seed", range(4))
def test_five_sizes_tell_those_between(bench: Bench, seed: int, timed: bool, within: float) -> None:
    rng = np.random.default_rng(seed)
    alpha_r = rng.uniform(0.005, 0.1)
    inside = (alpha_r, alpha_r * rng.uniform(0.01, 0.2))
    across = tuple(rng.uniform(1.2, 4) * part for part in inside)
    fixed = rng.uniform(0.02, 0.3)
    rest = (*across, *inside, rng.uniform(1, 5))
    true = StepTime(fixed, (1 - fixed) / BATCH, *rest)
    job = bench.job()
    for size in (1, 2, 4, 8, 16):
        said: dict[str, Any] = {"pass_s": float(true.pass_s(BATCH / size))} if timed else {}
        bench.run(job, size, true_s(size, true=true), **said)
    for size in (1, 2, 4, 8, 16):
        assert points(job)[size] == pytest.approx(1.0 / true_s(size, true=true), rel=1e-4)
    for size in (3, 6, 12):
        assert points(job)[size] == pytest.approx(1.0 / true_s(size, true=true), rel=within)
    assert learned(job)["measured"] == [1, 2, 4, 8, 16]


def test_the_speed_of_nodes_is_taken_out_and_that_of_pools_learned(bench: Bench) -> None:
    job = bench.job()
    bench.run(job, 4, true_s(4) / 2.0, pool="fast")
    assert points(job)[4] == pytest.approx(1.0 / true_s(4), rel=1e-5)
    assert learned(job)["affinity"] == {}
    other = bench.job("other", tenant="u")
    bench.runs(other, 2, 4)
    bench.now_s += QUIET_S
    bench.run(other, 4, true_s(4) / 3.0, pool="fast")
    assert points(other)[4] == pytest.approx(1.0 / true_s(4), rel=1e-5)
    assert learned(other)["affinity"] == {"fast": pytest.approx(3.0)}


def test_a_size_that_only_ran_in_pieces_is_what_it_was_so(bench: Bench) -> None:
    job = bench.job()
    for size in (4, 8):
        bench.place(job, size, each=2)
        for _ in range(3):
            bench.say(job, float(TRUE.step_s(size // 2, size, BATCH / size)))
    assert points(job)[4] == pytest.approx(1.0 / float(TRUE.step_s(2, 4, BATCH / 4)), rel=1e-4)
    assert points(job)[4] < points(job)[8] < points(job)[16]
    bench.run(job, 8, true_s(8))
    bench.now_s += QUIET_S
    bench.learn()
    assert points(job)[8] == pytest.approx(1.0 / true_s(8), rel=1e-4), "of two, the fewer nodes"


def test_kin_know_it_before_they_begin_and_then_by_themselves(bench: Bench) -> None:
    first = bench.job("first")
    bench.runs(first, 1, 2, 4)
    kin, other = bench.job("kin"), bench.job("other", model="x")
    bench.job("nameless", model="unnamed")
    stranger, batch = bench.job("stranger", tenant="u"), bench.job("b", samples_per_step=1.0)
    bench.learn()
    assert points(kin) == points(first)
    assert [job.curve for job in (other, stranger, batch)] == [None] * 3
    bench.run(kin, 8, 2.0 * true_s(8))
    slower = points(kin)
    assert slower[8] == pytest.approx(0.5 / true_s(8), rel=1e-4)
    assert points(first)[4] == pytest.approx(1.0 / true_s(4), rel=1e-4), "its own, as it was"


def test_a_batch_that_grows_is_worth_what_its_noise_says(bench: Bench) -> None:
    job = bench.job()
    noise = 2.0 * BATCH
    for size in (1, 2, 4):
        batch = BATCH * size
        bench.run(job, size, true_s(size, batch), batch=batch, step_s=true_s(size, batch),
                  gradient_noise=noise)  # fmt: skip
    bench.now_s += QUIET_S
    bench.say(job, 1.0, batch=4 * BATCH, step_s=true_s(4, 4 * BATCH), gradient_noise=noise)
    for size in (1, 2, 4, 8):
        gain = float(Noise(1.0, 2.0).gain(size))
        expected = gain / true_s(size, BATCH * size)
        assert points(job)[size] == pytest.approx(expected, rel=1e-4 if size < 8 else 0.1)


def test_noise_that_grows_with_the_batch_goes_on_growing(bench: Bench) -> None:
    job = bench.job()
    for size in (1, 2):
        batch = BATCH * size
        bench.run(job, size, true_s(size, batch), batch=batch, step_s=true_s(size, batch),
                  gradient_noise=2.0 * batch)  # fmt: skip
    bench.now_s += QUIET_S
    bench.say(job, 1.0, batch=2 * BATCH, step_s=true_s(2, 2 * BATCH), gradient_noise=4.0 * BATCH)
    for size in (1, 2, 4):
        gain = float(Noise(1.0, 2.0 * size).gain(size))
        gain_if_it_did_not = float(Noise(1.0, 4.0).gain(size))
        assert size != 4 or gain > 1.1 * gain_if_it_did_not
        # Steps at four GPUs are as declared: twice as many samples as at two.
        takes_s = true_s(min(size, 2), BATCH * min(size, 2))
        assert points(job)[size] == pytest.approx(gain / takes_s, rel=1e-4)


# --- figures that somebody made up -------------------------------------------------------------

HOSTILE: Mapping[str, list[dict[str, Any]]] = {
    "nan": [{"step_s": math.nan}, {"samples_per_s": math.nan}],
    "huge": [{"step_s": 1e300}, {"samples_per_s": 1e300}, {"step_s": 1e6}],
    "none": [{"samples_per_s": 0.0}, {"step_s": 0.0}],
    "negative": [{"step_s": -1.0}, {"samples_per_s": -5.0}],
    "flapping": [{"step_s": 1e-7}, {"step_s": 1e6}, {"step_s": 1.0}],
    "batches": [{"step_s": 1.0, "batch": 10.0**n} for n in range(-9, 12)],
    "noise": [{"step_s": 1.0, "gradient_noise": 1e15}, {"gradient_noise": 0.0}],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_hostile_job_says_breaks_no_kin(bench: Bench, what: str) -> None:
    honest = [bench.job(f"honest-{n}") for n in range(2)]
    for job in honest:
        bench.runs(job, 1, 2, 4, 8)
    before = points(honest[0])
    hostile = bench.job("hostile")
    for size in (1, 4, 16, 64):
        bench.place(hostile, size)
        for said in HOSTILE[what] * 4:
            bench.say(hostile, 1.0, **said)
    bench.now_s += 2 * QUIET_S
    bench.say(honest[0], true_s(8))
    fresh = bench.job("fresh")
    bench.learn()
    for job in (honest[0], fresh):
        for size, work in points(job).items():
            assert math.isfinite(work)
            assert work > 0.0
            if size <= 8:  # where it ran itself, nothing that others say counts
                own = job is not fresh and size in (1, 2, 4, 8)
                assert work == pytest.approx(before[size], rel=1e-4 if own else 0.3)


# --- what is bounded ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tick_does_a_part_and_the_next_ones_the_rest(bench: Bench) -> None:
    jobs = [bench.job(f"j{n}", model=f"m{n}") for n in range(120)]
    for size in (2, 4):
        for job in jobs:
            bench.place(job, size)
            bench.say(job, 1.0, learn=False)
            bench.say(job, true_s(size), learn=False)
    assert [len(bench.learn()) for _ in range(3)] == [1, 0, 0], "one fit a second"
    told = 0
    for _ in range(300):
        bench.now_s += 1.0
        told += len(bench.learn())
    assert told == 119
    assert max(len(bench.learn()) for _ in range(2)) == 0
    for name in list(bench.state.jobs)[:100]:
        del bench.state.jobs[name]
    bench.learn()
    assert len(bench.learner._own) == 20


def test_a_curve_that_changes_all_the_time_is_told_now_and_then(bench: Bench) -> None:
    job = bench.job()
    bench.run(job, 4, 1.0)
    told = 0
    for number in range(100):
        before = job.curve
        bench.say(job, 1.0 if number // 9 % 2 else 5.0)
        told += job.curve is not before
    assert 2 <= told <= 100 * 60.0 / QUIET_S


def test_without_scipy_the_declared_curve_goes_through_all_that_was_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    job = bench.job()
    slow = StepTime(0.11, 0.0077, 0.05, 0.004, 0.02, 0.001, 2.0)  # nobody fitted it before
    for size in (2, 8):
        bench.run(job, size, true_s(size, true=slow))
    assert points(job)[2] == pytest.approx(1.0 / true_s(2, true=slow), rel=1e-5)
    assert points(job)[8] == pytest.approx(1.0 / true_s(8, true=slow), rel=1e-5)
    assert points(job)[64] == pytest.approx(8.0 * points(job)[8], rel=1e-5)


# --- restarts ----------------------------------------------------------------------------------


def test_after_a_restart_it_goes_on_from_what_the_state_has(bench: Bench) -> None:
    job = bench.job()
    bench.runs(job, 1, 2, 4)
    before = points(job)
    bench.learner = Estimator(bench.state)
    assert bench.learn() == {}, "nothing is new"
    kin = bench.job("kin")
    bench.learn()
    assert points(kin)[4] == pytest.approx(before[4], rel=1e-4)
    bench.run(job, 8, true_s(8))
    assert learned(job)["measured"] == [1, 2, 4, 8]
    assert points(job)[2] == pytest.approx(before[2], rel=1e-4)
    assert points(job)[8] == pytest.approx(1.0 / true_s(8), rel=1e-4)


def test_after_a_restart_a_pool_is_as_fast_as_it_was_measured(bench: Bench) -> None:
    job = bench.job()
    bench.run(job, 4, true_s(4))
    bench.now_s += QUIET_S
    bench.run(job, 4, true_s(4) / 3.0, pool="fast")
    bench.learner = Estimator(bench.state)
    bench.now_s += QUIET_S
    bench.run(job, 8, true_s(8) / 3.0, pool="fast")
    bench.place(job, 4, pool="fast", each=1)
    for _ in range(3):
        bench.say(job, 2.0 * true_s(4) / 3.0)
    bench.now_s += QUIET_S
    bench.learn()
    assert learned(job)["affinity"] == {"fast": pytest.approx(3.0)}
    assert points(job)[8] == pytest.approx(1.0 / true_s(8), rel=1e-4)
    assert points(job)[4] == pytest.approx(0.5 / true_s(4), rel=1e-4), "as it was measured last"
