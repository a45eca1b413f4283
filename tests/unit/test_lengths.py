"""How long jobs will be that declared no total: by their kin, by themselves, and who counts."""

from unittest.mock import Mock

import numpy as np
import pytest

from scheduler.core.job_work import least_steps
from scheduler.core.state import ClusterState, Job, Node, Pool
from scheduler.core.stimuli import Length
from scheduler.core.transitions import JobState
from scheduler.estimator import estimator
from scheduler.estimator.estimator import Estimator
from scheduler.estimator.lengths import GROWS, Lengths
from schemas.events import EventData, JobCancelled, JobProgressed, WorkerStarted, WorkerStopped
from tests.builders import progressed, submitted

LEAST = 10.0


def kin(*took: float, **running: float) -> Lengths:
    lengths = Lengths()
    for number, steps in enumerate(took):
        lengths.ended(f"ended-{number}", steps)
    for name, steps in running.items():
        lengths.came(name, steps)
    return lengths


def left(lengths: Lengths, done: float) -> float:
    return lengths.left("j", done, LEAST)["left"]


def test_without_kin_it_goes_by_levels_of_the_least() -> None:
    alone = kin()
    assert left(alone, 0.0) == LEAST
    assert left(alone, 4.0) == LEAST - 4.0
    assert left(alone, LEAST) == GROWS * LEAST - LEAST, "the next level: the last was not the end"
    assert alone.left("j", 5.0, LEAST) == {"left": 5.0, "ended": 0, "took": [], "running": 0}


def test_kin_that_ended_tell_the_mean_of_what_they_went_on_for() -> None:
    three = kin(100.0, 200.0, 600.0)
    assert left(three, 0.0) == pytest.approx(300.0)
    assert left(three, 150.0) == pytest.approx((50.0 + 450.0) / 2), "one ended before that"
    said = three.left("j", 150.0, LEAST)
    assert (said["ended"], said["took"]) == (2, [200.0, 600.0])


def test_who_goes_further_than_all_kin_has_what_is_left_to_the_next_level() -> None:
    assert left(kin(100.0, 120.0), 130.0) == GROWS**2 * LEAST - 130.0


def test_one_kin_far_from_all_others_is_not_believed() -> None:
    assert left(kin(90.0, 100.0, 110.0, 1e9), 0.0) == pytest.approx(100.0)


def test_kin_that_run_take_at_least_so_much() -> None:
    ahead = kin(ahead=50.0, behind=5.0)
    assert left(ahead, 20.0) == GROWS**2 * LEAST - 20.0, "all of them are of one level"
    assert ahead.left("j", 20.0, LEAST)["running"] == 1
    # Of four, one ended at 100, one will be beyond 150; Kaplan and Meier by hand.
    both = kin(100.0, 200.0, 300.0, runs=150.0)
    assert left(both, 0.0) == pytest.approx(100.0 + 0.75 * 100.0 + 0.75 / 2 * 100.0)


def test_its_own_steps_are_no_evidence() -> None:
    lengths = kin(j=70.0)
    assert lengths.left("j", 70.0, LEAST)["running"] == 0


def test_what_changes_for_kin_is_news_once() -> None:
    lengths = kin()
    assert not lengths.news()
    lengths.came("a", 100.0)
    assert lengths.news()
    assert not lengths.news()
    lengths.came("a", 105.0)
    assert not lengths.news(), "hardly further"
    lengths.ended("a", 110.0)
    assert lengths.news()


def test_it_remembers_so_many_and_no_more() -> None:
    lengths = kin()
    for number in range(500):
        lengths.ended(f"e{number}", 1.0 + number)
        lengths.came(f"r{number}", 1.0 + number)
    assert len(lengths._ended) == len(lengths._running) == 64
    assert min(lengths._ended.values()) == 437.0, "the newest"


# --- by what is reported -------------------------------------------------------------------------


class Story:
    """A state that the test moves about, and an estimator that hears of it."""

    def __init__(self) -> None:
        self.state, self.now_s = ClusterState(), 1e6
        self.state.pools["train"] = Pool("train", "training", ["n0"])
        self.state.nodes["n0"] = Node("n0", "a", "train", 4, "gpu", 1, 1.0, 1.0, 0)
        self.learner = Estimator(self.state)

    def job(self, name: str, model: str = "m") -> Job:
        """One that says no total, of ten samples a step; it takes a step a second on a GPU."""
        job = self.state.jobs[name] = Job(
            id=name, tenant="t", model=model, gpus_min=1, gpus_max=4, total_steps=None,
            samples_per_step=10.0, rates=[[1.0, 10.0], [4.0, 40.0]], deadline_s=None, memory_mib=0,
            checkpoint_mib=0, checkpoint_cost_s=1.0, start_cost_s=1.0, priority=0,
            edge_allowed=True, submit_s=self.now_s,
        )  # fmt: skip
        self.hears(submitted(name))
        return job

    def hears(self, data: EventData) -> None:
        self.learner.hear(self.state, data, self.now_s)

    def learn(self) -> dict[str, Length]:
        """What is told now, taken over as the engine does."""
        self.learner.learn(self.state, self.now_s)
        self.learner.learn(self.state, self.now_s)  # of kin, by what was found just now
        found = self.learner.take_lengths()
        for name, length in found.items():
            job = self.state.jobs[name]
            job.length, job.length_step = dict(length), job.step
        return found

    def runs(self, job: Job, step: int, *, engine_knows: bool = True) -> None:
        if job.state is not JobState.RUNNING:
            job.state, job.epoch = JobState.RUNNING, job.epoch + 1
            job.allocation, job.changed_s = {"n0": [0]}, self.now_s
        report = progressed(step, job.id, job.epoch, 10.0)
        assert isinstance(report, JobProgressed)
        self.hears(report)
        if engine_knows:
            job.step, job.rate_at_s = step, self.now_s

    def ends(self, job: Job, state: JobState = JobState.COMPLETED) -> None:
        stop = {"job": job.id, "epoch": job.epoch, "node": "n0", "gpus": [0], "step": job.step}
        reason = "completed" if state is JobState.COMPLETED else "preempted"
        self.hears(WorkerStopped.model_validate({**stop, "reason": reason}))
        job.allocation, job.state = {}, state

    def takes(self, name: str, steps: int, state: JobState = JobState.COMPLETED) -> None:
        job = self.job(name)
        self.runs(job, steps)
        self.learn()
        self.ends(job, state)
        self.learn()


def told(job: Job) -> dict[str, object]:
    assert job.length is not None
    return job.length


def test_who_ended_well_tells_those_who_wait() -> None:
    story = Story()
    waits, other = story.job("waits"), story.job("other", model="another")
    story.learn()
    assert told(waits)["left"] == least_steps(waits) == 600.0
    story.takes("a", 1000)
    story.takes("b", 3000)
    assert told(waits) == {"left": 2000.0, "ended": 2, "took": [1000.0, 3000.0], "running": 0}
    assert told(other)["ended"] == 0, "it is of another model"


@pytest.mark.parametrize("how", [JobState.FAILED, JobState.CANCELLED])
def test_who_failed_or_was_cancelled_does_not_count(how: JobState) -> None:
    story = Story()
    waits = story.job("waits")
    story.takes("good", 5000)
    story.takes("bad", 40, how)
    assert told(waits)["took"] == [5000.0, 5000.0]
    story.hears(JobCancelled(job="waits"))
    waits.state = JobState.CANCELLED
    assert story.learn() == {}


@pytest.mark.parametrize("how", [JobState.FAILED, JobState.CANCELLED])
def test_who_claims_to_be_far_and_goes_is_forgotten_by_those_who_wait(how: JobState) -> None:
    story = Story()
    waits = story.job("waits")
    story.takes("liar", 10**12, how)
    assert told(waits) == {"left": 600.0, "ended": 0, "took": [], "running": 0}
    runs = story.job("runs")
    story.runs(runs, 2000)
    story.learn()
    assert waits.length is not None
    assert waits.length["left"] > 2000.0, "who is in front now is heard of"


def test_who_fails_with_its_node_is_forgotten_once_its_kin_say_something() -> None:
    story = Story()
    waits, far = story.job("waits"), story.job("far")
    story.runs(far, 10**6)
    story.learn()
    assert waits.length is not None
    assert waits.length["left"] > 10**6
    far.state, far.allocation = JobState.FAILED, {}  # of its workers nobody hears
    story.runs(story.job("runs"), 2)
    story.learn()
    assert told(waits)["left"] == 600.0


def test_many_kin_are_looked_through_once_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    jobs = [story.job(f"j{number}") for number in range(50)]
    for job in jobs:
        story.runs(job, 1)
    story.learn()
    news, seen = Mock(wraps=Lengths.news), Mock(wraps=estimator._is_here)
    monkeypatch.setattr(Lengths, "news", lambda lengths: news(lengths))
    monkeypatch.setattr(estimator, "_is_here", seen)
    for job in jobs:
        story.runs(job, 10 ** (1 + int(job.id[1:]) // 5))
    story.learner.learn(story.state, story.now_s)
    assert news.call_count <= 2, "not once for each that went on"
    assert seen.call_count <= len(jobs), "nor for each that showed how fast it is"


def test_steps_that_the_engine_did_not_hear_of_count() -> None:
    story = Story()
    job = story.job("j")
    story.takes("a", 1000)
    story.runs(job, 100)
    story.learn()
    story.runs(job, 1500, engine_knows=False)
    story.learn()
    ends = 600.0 * GROWS
    assert told(job)["left"] == pytest.approx(ends - 100.0), "as of the step that the engine knows"


def test_one_that_says_no_steps_goes_by_its_time() -> None:
    story = Story()
    first, second = story.job("first"), story.job("second")
    for job, took_s in ((first, 3000.0), (second, 1000.0)):
        job.state, job.epoch, job.allocation, job.changed_s = (
            JobState.RUNNING,
            1,
            {"n0": [0]},
            story.now_s,
        )
        story.hears(WorkerStarted(job=job.id, epoch=1, node="n0", gpus=[0], step=0))
        story.learn()
        story.now_s += took_s
        if job is first:
            story.ends(first)
        story.learn()
    assert told(second)["took"] == [3000.0, 3000.0], "a step a second, as declared"
    assert told(second)["left"] == pytest.approx(2000.0)


def test_a_restart_begins_from_the_jobs_in_the_state() -> None:
    story = Story()
    story.takes("a", 1000)
    waits = story.job("waits")
    waits.length = None
    story.learner = Estimator(story.state)
    assert story.learn()["waits"]["took"] == [1000.0, 1000.0]


def test_who_declares_a_total_is_told_nothing_and_teaches_others() -> None:
    story = Story()
    declared = story.job("declared")
    declared.total_steps = 700
    story.job("waits")
    assert set(story.learn()) == {"waits"}
    story.runs(declared, 700)
    story.ends(declared)
    assert story.learn()["waits"]["took"] == [700.0, 700.0]


@pytest.mark.parametrize("seed", range(20))
def test_of_many_that_run_the_furthest_are_remembered(seed: int) -> None:
    rng, lengths, furthest = np.random.default_rng(seed), Lengths(), dict[str, float]()
    for _ in range(600):
        job, done = f"j{rng.integers(150)}", float(rng.integers(0, 8) * rng.integers(0, 40))
        if rng.random() < 0.1:
            lengths.gone(job)
            furthest.pop(job, None)
            continue
        lengths.came(job, done)
        furthest[job] = done
        if len(furthest) > 64:
            del furthest[min(furthest, key=lambda name: furthest[name])]
        # Of those as far as the last, others may be remembered.
        assert sorted(lengths._running.values()) == sorted(furthest.values())
        furthest = dict(lengths._running)


def test_who_has_not_begun_makes_nobody_look_for_the_last_of_many() -> None:
    lengths, looks = Lengths(), list[float]()

    class Done(float):
        def __lt__(self, other: float) -> bool:
            looks.append(other)
            return float(self) < other

    for number in range(100):
        lengths.came(f"j{number}", Done(0.0))
    assert len(looks) < 500
