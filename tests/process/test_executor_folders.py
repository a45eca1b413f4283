"""What runs leave on the disk stays as long as somebody needs it, and no longer."""

import threading
from pathlib import Path
from typing import Any

from runtime.checkpoints.store import Checkpoint, CheckpointStore
from runtime.core import CheckpointDone, CheckpointLost, GangFailed, GangStarted
from tests.patience import PATIENCE_S
from tests.process.test_executor_resumes import SAVES, power_cut, saved
from tests.workers import TRAINER, Bench, bench, python, shell

#: Takes its time before it looks at what it goes on from.
SLOW = """
import os, pathlib, time
while "TIDEGATE_RESUME" in os.environ and not pathlib.Path(os.environ["GO"]).exists():
    time.sleep(0.02)
"""


class Slow(CheckpointStore):
    """A store that takes nothing before it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.open = threading.Event()

    def commit(self, *what: Any, **more: Any) -> Checkpoint:
        assert self.open.wait(PATIENCE_S)
        return super().commit(*what, **more)


def scaled(jig: Bench, gpu: int, epoch: int) -> None:
    """Have the gang go on under an epoch, and wait until the run of before is closed."""
    before = jig.run(epoch - 1)
    jig.scale(gpu, epoch=epoch)
    jig.until(lambda: (before / "closed").exists() or not before.exists())


def test_what_a_gang_goes_on_from_stays_until_it_has_saved_itself(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with bench(tmp_path, run_retention=1) as jig:
        jig.trains(python(SLOW + TRAINER, env={"GO": str(go)}), 0)
        scaled(jig, 1, 2)
        scaled(jig, 0, 3)  # what was scaled from has saved nothing
        go.touch()
        reached = jig.hears(GangStarted, 2).step
        assert reached > 2
        jig.until(lambda: jig.step() > reached or jig.all(GangFailed))
        assert jig.all(GangFailed) == []


def test_the_logs_of_a_run_outlive_the_change_of_size_that_ended_it(tmp_path: Path) -> None:
    with bench(tmp_path, run_retention=1) as jig:
        jig.start(shell("echo here; sleep 1000"), 0)
        log = jig.run() / "logs" / "rank-0.log"
        jig.hears(GangStarted)
        jig.until(lambda: log.exists() and log.read_text() == "here\n")
        scaled(jig, 1, 2)
        jig.hears(GangStarted, 2)
        assert log.exists()
        scaled(jig, 0, 3)
        assert not jig.run().exists()


def test_what_is_on_its_way_to_the_store_stays_and_goes_when_newer_ones_are_there(
    tmp_path: Path,
) -> None:
    store = Slow(f"file://{tmp_path}/store")
    with bench(tmp_path, run_retention=1, store=store) as jig:
        jig.trains(python(TRAINER), 0)
        scaled(jig, 1, 2)
        reached = jig.hears(GangStarted, 2).step
        jig.until(lambda: jig.step() > reached + 2)
        scaled(jig, 0, 3)
        store.open.set()
        jig.hears(CheckpointDone, 2)
        assert jig.all(CheckpointLost) == []
        jig.hears(GangStarted, 3)
        scaled(jig, 1, 4)
        jig.hears(CheckpointDone, 3)
        jig.hears(GangStarted, 4)
        scaled(jig, 0, 5)
        assert not jig.run(1).exists()


def test_what_was_put_aside_holds_its_checkpoints_until_newer_ones_are_durable(
    tmp_path: Path,
) -> None:
    with bench(tmp_path) as jig:
        jig.start(SAVES)
        saved(jig)
        jig.hears(CheckpointDone)
        step = saved(jig)
        jig.hears(CheckpointDone, 2)
        power_cut(jig)
        jig.hears(GangFailed)
        jig.look()
        jig.begins(SAVES, step=step, resumed=True)
        aside = jig.run().with_name("1.1")
        assert len(list((aside / "checkpoints").iterdir())) == 2
        reached = saved(jig)
        jig.hears(CheckpointDone)
        jig.until(lambda: jig.step() > reached + 5)
        assert (aside / "checkpoints" / f"step-{step}").exists(), "the newest two are kept"
        saved(jig)
        jig.hears(CheckpointDone, 2)
        jig.until(lambda: not (aside / "checkpoints").exists())
        assert (aside / "logs" / "rank-0.log").exists()
