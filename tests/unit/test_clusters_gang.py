"""What becomes of a gang on a cluster, step by step: no thread and no cluster are in it."""

import json
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from cloud_agent.clusters import executor, gang
from cloud_agent.clusters.attempt import Attempt, Work
from cloud_agent.clusters.executor import ClusterExecutor
from cloud_agent.options import ClusterOptions
from runtime.core import (
    CheckpointDone,
    CheckpointLost,
    CheckpointWorkers,
    GangFailed,
    GangProgress,
    GangStarted,
    GangStopped,
    KeepLease,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.executors.attempt import Outcome
from runtime.executors.gang import GangOrder
from tests.distant import Distant
from tests.driven import spec
from tests.patience import wait_until
from tests.workers import shell

ONE, TWO = {"n1": (0,)}, {"n1": (0, 1)}


class Led(Attempt):
    """A run that a test leads; its workers leave when they are asked to."""

    def __init__(self, work: Work) -> None:
        super().__init__(work, ["progress"])
        (self.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.saves = 0

    def save(self) -> None:
        self.saves += 1

    def advance(self, now_s: float, leave_by_s: float | None) -> None:
        if leave_by_s is not None:
            self.ended = Outcome(True)

    def says(self, step: int, *, saves: bool = False, **more: float) -> None:
        """Let its workers report a step, and perhaps a checkpoint of it."""
        line: dict[str, object] = {"step": step, **more}
        if saves:
            (self.folder / "checkpoints" / str(step)).write_text("weights")
            line["checkpoint"] = str(step)
        with (self.folder / "progress").open("a") as file:
            file.write(json.dumps(line) + "\n")


class LedCluster:
    """A cluster on which nothing happens but what the test leads."""

    away: str | None = None

    def __init__(self) -> None:
        self.runs: list[Led] = []

    def begin(self, wake: Callable[[], None]) -> None:
        """Nothing has to be got ready."""

    def keep_lease(self, until_s: float | None, grace_s: float) -> None:
        """Nothing runs that could end."""

    def look(self, folder_id: str) -> None:
        """Nothing is to be seen."""

    def attempt(self, work: Work) -> Attempt:
        self.runs.append(Led(work))
        return self.runs[-1]

    def delete_orphans(self, expected: Collection[tuple[str, int]]) -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing blocks."""


class Desk:
    """An executor whose rounds the test makes itself, on a cluster that it leads."""

    def __init__(self, root: Path) -> None:
        self.store = Distant(f"file://{root}/store")
        self.options = ClusterOptions(
            root=root / "shared", store=self.store, agent="a", poll_s=1.0, save_s=100.0
        )
        self.now_s = 1000.0
        self.cluster, self.said = LedCluster(), list[Report]()
        self.begin()

    @property
    def runs(self) -> list[Led]:
        """All runs, in order."""
        return self.cluster.runs

    def begin(self) -> None:
        """Let an agent begin that finds what the last one left."""
        self.executor = ClusterExecutor(self.options, self.cluster)
        self.executor._has_begun = True  # no thread

    def tell(self, *orders: GangOrder | KeepLease) -> None:
        """Give orders, and make a round."""
        for order in orders:
            self.executor.start(order, self.now_s)
        self.look()

    def look(self, later_s: float = 0.0) -> None:
        """Make a round, perhaps some time later."""
        self.now_s += later_s
        self.executor.advance(self.now_s)
        self.executor._round()
        self.said += self.executor.advance(self.now_s)

    def until(self, condition: Callable[[], object]) -> None:
        """Make rounds until something holds."""

        def looked() -> object:
            self.look()
            return condition()

        wait_until(looked)

    def all(self, kind: type[Report]) -> list[Report]:
        """Give the reports of a kind."""
        return [one for one in self.said if isinstance(one, kind)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.tell(StartWorkers("j", 1, ONE, spec(shell("true", saves="on_signal")), 0, 0.0))
    made.look()
    return made


def trains(desk: Desk, step: int = 5, *, saves: bool = False) -> Led:
    """Let the present workers report a step."""
    desk.runs[-1].says(step, saves=saves)
    desk.look()
    assert isinstance(desk.said[-1], GangStarted) or saves
    return desk.runs[-1]


def test_a_wish_for_a_checkpoint_waits_until_workers_know_the_signal(desk: Desk) -> None:
    desk.tell(CheckpointWorkers("j", 1))
    assert desk.runs[0].saves == 0, "it would end them: they are only beginning"
    assert trains(desk).saves == 1
    desk.look(101.0)
    assert [type(one) for one in desk.said] == [GangStarted, CheckpointLost]


def test_what_was_not_durable_in_time_is_said_to_be_lost(desk: Desk) -> None:
    desk.store.away = True
    trains(desk, saves=True)
    desk.tell(StopWorkers("j", 1, True, 10.0))
    desk.look(71.0)
    assert [type(one) for one in desk.said[-2:]] == [CheckpointLost, GangStopped]


def test_a_checkpoint_behind_a_link_to_another_job_is_not_stored(desk: Desk) -> None:
    """The agent may read all jobs of the cluster: what it stored, the job could go on from."""
    desk.store.away = False
    run = trains(desk)
    others = desk.options.root / "runs" / "other" / "1" / "checkpoints"
    others.mkdir(parents=True)
    (others / "9").write_text("weights of another tenant")
    (run.folder / "checkpoints" / "link").symlink_to(others)
    with (run.folder / "progress").open("a") as file:
        file.write('{"step": 9, "checkpoint": "link/9"}\n')
    desk.until(lambda: desk.all(CheckpointLost) or desk.all(CheckpointDone))
    (lost,) = desk.all(CheckpointLost)
    assert isinstance(lost, CheckpointLost)
    assert "lies behind a link" in lost.error


@pytest.mark.parametrize("order", [ScaleWorkers("j", 2, TWO), StopWorkers("j", 2, True, 60.0)])
def test_who_has_failed_is_failed_whatever_is_ordered_then(
    desk: Desk, order: ScaleWorkers | StopWorkers
) -> None:
    desk.store.away = True
    run = trains(desk, saves=True)
    run.ended = Outcome(False, "worker 0 ended with code 1")
    desk.look()
    desk.tell(order)
    desk.look(61.0)
    assert desk.said[-1] == GangFailed("j", 2, "worker 0 ended with code 1")
    assert len(desk.runs) == 1


def test_a_size_that_is_ordered_while_it_stops_gives_the_end_its_epoch(desk: Desk) -> None:
    trains(desk)
    desk.executor.start(StopWorkers("j", 1, True, 60.0), desk.now_s)
    desk.tell(ScaleWorkers("j", 2, TWO))
    desk.until(lambda: desk.all(GangStopped))
    assert desk.said[-1] == GangStopped("j", 2, 0)


def test_what_a_run_began_from_is_not_lost_though_no_store_has_it_and_agents_change(
    desk: Desk,
) -> None:
    desk.store.away = True
    trains(desk, 7, saves=True)
    desk.tell(ScaleWorkers("j", 2, TWO))
    desk.until(lambda: len(desk.runs) == 2)
    assert desk.runs[1].started.step == 7
    desk.executor.close()
    desk.begin()
    desk.tell(ScaleWorkers("j", 3, ONE))
    desk.until(lambda: desk.runs[-1].started.epoch == 3)
    assert (desk.runs[-1].started.step, desk.runs[-1].started.resume) == (
        7,
        desk.runs[0].folder / "checkpoints" / "7",
    )


def test_a_clock_that_is_set_during_an_upload_makes_no_checkpoint_costly(desk: Desk) -> None:
    """One that begins in 1970 made a cost that no event can carry."""
    desk.store.away = False
    trains(desk, saves=True)
    desk.now_s += 1.7e9
    desk.until(lambda: desk.all(CheckpointDone))
    (done,) = desk.all(CheckpointDone)
    assert isinstance(done, CheckpointDone)
    assert done.cost_s < 1e6


def test_a_checkpoint_whose_name_is_no_unicode_keeps_no_agent_from_beginning(desk: Desk) -> None:
    """No record can hold the path of what a run would go on from then."""
    run, name = trains(desk), os.fsdecode(b"\xff")
    (run.folder / "checkpoints" / name).write_text("weights")
    with (run.folder / "progress").open("a") as file:
        file.write(json.dumps({"step": 9, "checkpoint": name}) + "\n")
    desk.tell(ScaleWorkers("j", 2, TWO))
    desk.until(lambda: len(desk.runs) == 2)
    assert desk.runs[1].started.step == 0
    desk.executor.close()
    desk.begin()
    assert desk.executor.running() == ("j",)


def test_no_step_is_reported_beyond_the_last(desk: Desk) -> None:
    desk.store.away = False
    order = StartWorkers("k", 1, ONE, spec(shell("true"), total_steps=10), 0, 0.0)
    desk.tell(order)
    desk.look()
    desk.runs[-1].says(12, saves=True, step_s=0.5)
    desk.until(lambda: desk.all(CheckpointDone))
    (done,) = desk.all(CheckpointDone)
    assert isinstance(done, CheckpointDone)
    assert done.step == 10


def test_the_pace_that_is_reported_is_the_rate_at_once(desk: Desk) -> None:
    run = desk.runs[0]
    run.says(1)
    desk.look()
    run.says(2, step_s=0.5)
    desk.look(1.0)
    (progress,) = desk.executor.progress(desk.now_s)
    assert isinstance(progress, GangProgress)
    assert progress.samples_per_s == pytest.approx(16.0)


def test_an_end_that_is_stored_is_forgotten_though_the_folder_is_away_at_that_moment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains(desk).ended = Outcome(False, "worker 0 ended with code 1")
    with monkeypatch.context() as patch:
        patch.setattr(executor, "forget", full)
        desk.look()
        desk.look()
        assert desk.all(GangFailed)
        desk.tell(StartWorkers("k", 1, ONE, spec(shell("true")), 0, 0.0))
        desk.look()
        assert [run.run for run in desk.runs] == [("j", 1), ("k", 1)], "others go on meanwhile"
    desk.look()
    assert sorted(path.name for path in (desk.options.root / "held").iterdir()) == ["k.json"]


def test_a_checkpoint_is_reported_though_the_disk_is_full_at_that_moment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.store.away = False
    trains(desk)
    desk.tell(CheckpointWorkers("j", 1))
    with monkeypatch.context() as patch:
        patch.setattr(gang, "write", full)
        desk.runs[0].says(6, saves=True)
        desk.until(lambda: desk.store.find("j", 6))
        for _ in range(20):
            desk.look()
            time.sleep(0.01)
    desk.look()
    assert [type(one) for one in desk.said] == [GangStarted, CheckpointDone]


def test_an_order_that_a_full_folder_does_not_take_holds_up_its_own_job_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other gang was stopped, nor its lease renewed, until there was room."""
    trains(desk)
    with monkeypatch.context() as patch:
        patch.setattr(executor, "write", full)
        other = StartWorkers("k", 1, {"n2": (0,)}, spec(shell("true")), 0, 0.0)
        desk.tell(other, StopWorkers("k", 1, False, 0.0), StopWorkers("j", 1, True, 10.0))
        desk.until(lambda: desk.all(GangStopped))
    desk.until(lambda: len(desk.all(GangStopped)) == 2)
    (first, second) = desk.all(GangStopped)
    assert isinstance(first, GangStopped)
    assert isinstance(second, GangStopped)
    assert (first.job, second.job) == ("j", "k"), "in its order, once there is room"
    assert len(desk.runs) == 1, "what was stopped before it began has not run"
    assert (first.ran, second.ran) == (True, False)


def test_nothing_starts_without_the_end_of_the_lease(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains(desk)
    kept = list[float | None]()
    monkeypatch.setattr(desk.cluster, "keep_lease", full)
    other = StartWorkers("k", 1, {"n2": (0,)}, spec(shell("true")), 0, 0.0)
    desk.tell(KeepLease(2000.0, 60.0), other, StopWorkers("j", 1, True, 10.0))
    desk.until(lambda: desk.all(GangStopped))
    assert len(desk.runs) == 1
    monkeypatch.setattr(desk.cluster, "keep_lease", lambda until_s, grace_s: kept.append(until_s))
    desk.look()
    desk.look()
    assert (kept, len(desk.runs)) == ([2000.0], 2)


def full(*_: object) -> None:
    """Be a disk that takes nothing more."""
    raise OSError(28, "No space left on device")
