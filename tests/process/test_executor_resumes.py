"""Machines that go down under a gang: power lost, everything killed, the disk as it was synced."""

import shutil
import signal
from pathlib import Path

import pytest

from runtime.core import CheckpointDone, GangFailed, GangStarted
from runtime.executors.local_checkpoints import sync_checkpoint, synced_of
from schemas.programs import Program
from tests.distant import Distant
from tests.patience import wait_until
from tests.workers import TRAINER, Bench, bench, kill_all, python, shell

SAVES = python(TRAINER, saves="on_signal")


def saved(jig: Bench, epoch: int = 1) -> int:
    """Train, have a checkpoint written, and wait until it is kept; its step."""
    before = synced_of(jig.run(epoch))
    jig.until(lambda: jig.step() > 2)
    jig.save(epoch)
    jig.until(lambda: synced_of(jig.run(epoch)) != before)
    kept = synced_of(jig.run(epoch))
    assert kept is not None
    return kept.step


def stored(jig: Bench, epoch: int, step: int) -> None:
    """Let the store have a checkpoint of the job from elsewhere."""
    source = jig.root / f"step-{step}"
    source.write_text(str(step))
    jig.store.commit("j", epoch, step, source, 1.0)


def power_cut(jig: Bench, epoch: int = 1, *, boot: bool = True) -> None:
    """Kill all of it at once; with `boot`, as if the machine had begun anew."""
    if boot:
        jig.reboot(epoch)
    else:
        kill_all(jig.agent)
    jig.said.clear()
    jig.again()


def lost(jig: Bench, program: Program = SAVES, *gpus: int) -> int:
    """Train, save, and lose it with its machine; the step that was saved."""
    jig.start(program, *gpus)
    step = saved(jig)
    power_cut(jig)
    assert jig.hears(GangFailed).lost
    return step


@pytest.mark.parametrize("boot", [True, False])
def test_a_lost_gang_goes_on_from_its_newest_checkpoint_under_its_epoch(
    jig: Bench, boot: bool
) -> None:
    jig.start(SAVES, 0, 1)
    step = saved(jig)
    jig.hears(CheckpointDone)
    jig.until(lambda: jig.step() > step + 3)
    power_cut(jig, boot=boot)
    assert jig.executor.running() == ("j",)
    failed = jig.hears(GangFailed)
    assert failed.lost
    jig.start(SAVES, 0, 1, step=step, resumed=True)  # as the core decides
    assert jig.first_step() == step + 1
    assert jig.hears(GangStarted).epoch == 1
    assert len(jig.pids()) == 3, "a supervisor and two workers"
    assert jig.ends().step > step
    logs = (jig.run().with_name("1.1") / "logs" / "rank-0.log").read_text()
    assert "goes on from 0" in logs, "what was said before is still there"


def test_what_is_on_the_disk_alone_is_good_enough_and_survives_a_second_cut(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, store=Distant(f"file://{tmp_path}/far")) as jig:
        jig.start(SAVES)
        step = saved(jig)
        for _ in range(2):
            power_cut(jig)
            assert jig.hears(GangFailed).lost
            jig.start(SAVES, step=0, resumed=True)  # none was ever durable
            jig.hears(GangStarted)
            assert jig.first_step() == step + 1
        again = saved(jig)
        assert again > step
        power_cut(jig)
        jig.hears(GangFailed)
        jig.begins(SAVES, step=0, resumed=True)
        assert jig.first_step() == again + 1


def test_what_was_fetched_is_gone_on_from_without_the_store(jig: Bench, tmp_path: Path) -> None:
    stored(jig, 0, 40)
    jig.begins(SAVES, step=40)
    shutil.move(tmp_path / "store", tmp_path / "away")
    power_cut(jig)
    assert jig.hears(GangFailed).lost
    jig.look()
    jig.begins(SAVES, step=40, resumed=True)
    assert jig.first_step() == 41


def test_a_checkpoint_that_was_written_over_is_not_trusted(jig: Bench) -> None:
    jig.start(SAVES)
    step = saved(jig)
    jig.hears(CheckpointDone)
    kept = synced_of(jig.run())
    assert kept is not None
    kept.path.write_text("99")
    power_cut(jig)
    jig.hears(GangFailed)
    jig.begins(SAVES, step=step, resumed=True)
    assert jig.first_step() == step + 1, "the store's"


def test_a_later_stay_begins_from_what_it_is_told(jig: Bench) -> None:
    jig.start(SAVES)
    step = saved(jig)
    stored(jig, 7, 1)
    power_cut(jig)
    jig.hears(GangFailed)
    jig.start(SAVES, epoch=8, step=1)  # the job was given to others meanwhile, and came back
    jig.hears(GangStarted)
    assert jig.first_step(8) == 2 <= step


def test_so_does_one_that_comes_before_the_loss_is_reported(jig: Bench) -> None:
    jig.start(SAVES)
    saved(jig)
    jig.reboot()
    jig.again()
    jig.start(SAVES, epoch=2)
    assert jig.first_step(2) == 1
    jig.hears(GangStarted)
    assert jig.all(GangFailed) == []


def test_a_checkpoint_that_newer_ones_replaced_unheard_gives_way_to_the_newest(jig: Bench) -> None:
    for step in (20, 60, 80):  # what an edge server stored while nobody heard it
        stored(jig, 0, step)
    jig.begins(SAVES, step=40)
    assert jig.first_step() == 81


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$"])
def test_one_that_failed_by_itself_is_not_lost(jig: Bench, ending: str) -> None:
    jig.start(shell(f"sleep 0.5; {ending}"))
    wait_until((jig.run() / "exit.json").exists)
    power_cut(jig)
    assert not jig.hears(GangFailed).lost


def test_a_supervisor_that_is_killed_under_a_living_agent_is_a_failure(jig: Bench) -> None:
    jig.trains(SAVES)
    jig.hurt(signal.SIGKILL)
    assert not jig.hears(GangFailed).lost


def test_a_folder_is_kept_with_all_that_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "step-7"
    (path / "shards").mkdir(parents=True)
    (path / "shards" / "0").write_text("x")
    sync_checkpoint(tmp_path, 7, path)
    kept = synced_of(tmp_path)
    assert kept is not None
    assert (kept.step, kept.path) == (7, path)
    (path / "shards" / "1").write_text("y")
    assert synced_of(tmp_path) is None


def test_hours_without_a_store_do_not_fill_the_disk(tmp_path: Path) -> None:
    often = TRAINER.replace("    if wishes:", "    step % 5 or save()\n    if wishes:")
    with bench(tmp_path, store=Distant(f"file://{tmp_path}/far")) as jig:
        jig.start(python(often))
        jig.until(lambda: jig.step() > 150)
        checkpoints = jig.run() / "checkpoints"
        jig.until(lambda: len(list(checkpoints.iterdir())) <= 4)
        assert checkpoints.joinpath(f"step-{jig.step() // 5 * 5 - 100}").exists() is False
