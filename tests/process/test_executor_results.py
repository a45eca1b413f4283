"""What only the local disk has: it is stored when the store is back, and never lost before."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.core import (
    CheckpointDone,
    GangCompleted,
    GangFailed,
    GangStarted,
    ScaleWorkers,
    WorkersLeft,
)
from runtime.durable import write_json
from runtime.executors.local_checkpoints import sync_checkpoint, synced_of
from runtime.executors.process import ProcessExecutor
from schemas.programs import Program
from tests.distant import Distant
from tests.patience import wait_until
from tests.process.test_executor_resumes import SAVES, lost, power_cut, saved
from tests.workers import TRAINER, Bench, bench, placed, python, shell

#: Takes 20 more steps after a resume, and saves no more.
LAST = python(
    TRAINER.replace('int(env.get("STEPS", "1000000"))', "end").replace(
        "while step <", "end = step + 20 if step else 10**6\nwhile step <"
    )[: -len("save()\n")],
    saves="on_signal",
)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, store=Distant(f"file://{tmp_path}/store"), run_retention=2) as made:
        yield made


def ended(jig: Bench, *gpus: int) -> None:
    """Let a job end whose result nobody can store; it is kept here."""
    jig.start(python(TRAINER.replace("1000000", "20")), *gpus, total_steps=20)
    wait_until((jig.run() / "exit.json").exists)
    jig.until(lambda: synced_of(jig.run()) is not None)


def link(jig: Bench, *, up: bool) -> None:
    assert isinstance(jig.store, Distant)
    jig.store.away = not up


def test_what_a_resumed_gang_began_from_becomes_durable(far: Bench) -> None:
    step = lost(far, LAST)
    link(far, up=True)
    far.begins(LAST, resumed=True)
    assert far.first_step() == step + 1
    far.hears(GangCompleted)
    assert [one.step for one in far.store.committed("j")] == [step]


def test_an_agent_that_adopts_a_resumed_gang_makes_it_durable_too(far: Bench) -> None:
    step = lost(far)
    far.begins(SAVES, resumed=True)
    link(far, up=True)
    far.again()
    far.until(lambda: [one.step for one in far.store.committed("j")] == [step])


def test_a_result_waits_for_the_store_over_restarts_of_the_agent(far: Bench) -> None:
    far.start(python(TRAINER.replace("1000000", "20")), total_steps=20)
    wait_until((far.run() / "exit.json").exists)
    far.look()
    far.executor.advance(time.time() + 86_400)  # a day on the clock
    far.again()
    far.look()
    assert far.all(GangCompleted) == []
    link(far, up=True)
    far.hears(GangCompleted)
    assert [one.step for one in far.store.committed("j")] == [20]


def test_who_is_told_to_stop_waits_no_longer_and_deletes_no_result(far: Bench) -> None:
    ended(far)
    assert far.ends(saves=False, grace_s=0.0).step == 0, "what is stored"
    for number in range(3):
        far.start(python("raise SystemExit(3)"), job=f"k{number}")
        far.hears(GangFailed, number + 1)
        far.look()
    wait_until(lambda: not far.run(job="k0").exists())
    assert synced_of(far.run()) is not None
    assert far.all(GangCompleted) == []


def test_another_size_while_a_result_waits_is_answered_at_once(far: Bench) -> None:
    ended(far, 0, 1)
    far.said.clear()
    far.scale(0, epoch=2)
    assert far.hears(WorkersLeft).epoch == 1
    started = far.hears(GangStarted)
    assert (started.epoch, started.step) == (2, 20), "nobody is left to start"
    link(far, up=True)
    assert far.hears(GangCompleted).epoch == 2


def test_another_size_that_comes_as_the_workers_end_is_answered_too(far: Bench) -> None:
    """They ended before the executor looked, and so before they could be asked to leave."""
    far.start(python(TRAINER.replace("1000000", "20")), 0, 1, total_steps=20)
    wait_until((far.run() / "exit.json").exists)
    far.scale(0, epoch=2)
    assert far.hears(WorkersLeft).epoch == 1
    started = far.hears(GangStarted)
    assert (started.epoch, started.step) == (2, 20), "nobody is left to start"
    link(far, up=True)
    assert far.hears(GangCompleted).epoch == 2


def test_a_result_put_aside_stays_whatever_came_after_it(far: Bench) -> None:
    """It was never stored, and its job began anew here from an older checkpoint."""
    ended(far)
    far.ends(saves=False, grace_s=0.0)
    far.look()
    aside = far.run().with_name("1.1")
    far.run().rename(aside)
    (result,) = (aside / "checkpoints").iterdir()
    link(far, up=True)
    far.said.clear()
    far.begins(SAVES, epoch=2)
    for number in range(3):
        saved(far, 2)
        far.hears(CheckpointDone, number + 1)
    assert result.exists()


def test_a_gang_that_waits_to_be_resumed_is_found_by_the_next_agent(far: Bench) -> None:
    far.start(SAVES)
    step = saved(far)
    power_cut(far)
    for _ in range(2):
        assert far.hears(GangFailed).lost
        far.look()
        far.said.clear()
        assert far.again() == ("j",)
    far.hears(GangFailed)
    far.start(SAVES, epoch=2, resumed=True)  # it was to have another size meanwhile
    far.hears(GangStarted)
    assert far.first_step(2) == step + 1


def test_an_agent_that_died_after_it_made_room_goes_on_from_what_was_put_aside(
    far: Bench,
) -> None:
    step = lost(far)
    far.run().rename(far.run().with_name("1.1"))
    far.again()
    far.begins(SAVES, resumed=True)
    assert far.first_step() == step + 1


def test_one_that_is_not_to_go_on_is_closed_by_an_agent_that_knows(far: Bench) -> None:
    lost(far)
    far.executor.close()
    far.executor = ProcessExecutor(far.options, {"other": 1})
    assert far.executor.running() == ()
    assert (far.run() / "closed").exists()


def test_a_lost_gang_that_gets_another_size_is_lost_no_more(far: Bench) -> None:
    late = TRAINER.replace(
        "while step <",
        'env["TIDEGATE_EPOCH"] == "2" and (say(step=step + 1), exit(3))\nwhile step <',
    )
    far.start(python(late, saves="on_signal"), 0, 1)
    step = saved(far)
    power_cut(far)
    link(far, up=True)
    far.executor.scale(ScaleWorkers("j", 2, placed(0)), time.time())
    assert not far.hears(GangFailed).lost, "exit 3 is its own"
    assert far.first_step(2) == step + 1


def test_workers_of_a_folder_of_before_are_ended_if_the_agent_held_their_job(
    tmp_path: Path,
) -> None:
    name = f"moved-{os.getpid()}"
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
    with bench(tmp_path / "a", agent=name) as old, bench(tmp_path / "b", agent=name) as new:
        old.start(SAVES)
        old.start(SAVES, 1, job="of another fleet")
        old.until(lambda: old.step() > 2 and old.step("of another fleet") > 2)
        new.executor.close()
        moved = ProcessExecutor(new.options, {"j": 1, "of another fleet": 7})
        assert moved.orphans_killed == 2
        assert len(old.pids()) == 2, "a supervisor and a worker"
        moved.close()


@pytest.mark.parametrize(
    "said",
    [
        {"step": 1},
        {"step": "x", "name": "checkpoints/a", "files": []},
        {"step": 1, "name": 7, "files": []},
        {"step": 1, "name": "checkpoints/" + "a" * 300, "files": []},
        {"step": 1, "name": "a\0b", "files": []},
        {"step": 1, "name": "../../other", "files": []},
        {"step": float("inf"), "name": "checkpoints/a", "files": []},
    ],
)
def test_a_record_that_a_job_wrote_over_is_none(tmp_path: Path, said: dict[str, Any]) -> None:
    write_json(tmp_path / "kept.json", said)
    assert synced_of(tmp_path) is None


def test_links_to_nowhere_and_pipes_do_not_keep_a_checkpoint_from_being_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "checkpoints" / "step-1"
    path.mkdir(parents=True)
    (path / "weights").write_text("x")
    (path / "latest").symlink_to("gone")
    os.mkfifo(path / "pipe")
    sync_checkpoint(tmp_path, 1, path)
    kept = synced_of(tmp_path)
    assert kept is not None
    assert kept.path == path


def says(*lines: str, name: str = "c") -> Program:
    """Give a program that writes a checkpoint by these commands, in its folder, and is done."""
    said = json.dumps({"step": 20, "checkpoint": name})
    work = 'cd "$TIDEGATE_CHECKPOINT_DIR"; mkdir -p c; echo weights > c/weights'
    return shell("; ".join([work, *lines, f"echo '{said}' >> \"$TIDEGATE_PROGRESS\""]))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("ln -s weights c/latest", "c/latest: is a link"),
        ("rm c/weights", "holds no file"),
        ("touch \"$(printf 'c/\\377')\"", "its name is not UTF-8"),
    ],
)
def test_a_result_that_no_store_takes_ends_the_job_and_stays_on_the_disk(
    jig: Bench, line: str, why: str
) -> None:
    """Else it would hold its GPUs for ever."""
    jig.start(says(line), total_steps=20)
    failed = jig.hears(GangFailed)
    assert not failed.retriable
    assert failed.error.startswith("it is done, but its result cannot be stored: checkpoint of")
    assert why in failed.error
    jig.look()
    assert (jig.run() / "checkpoints" / "c").is_dir()
    jig.again()
    assert jig.executor.running() == ()


def test_a_result_that_no_store_takes_stays_as_long_as_other_runs(tmp_path: Path) -> None:
    """Else such jobs would fill the disk."""
    with bench(tmp_path, run_retention=2) as jig:
        jig.start(says("touch \"$(printf 'c/\\377')\""), total_steps=20)
        jig.hears(GangFailed)
        wait_until(lambda: synced_of(jig.run()) is not None)
        for number in range(3):
            jig.start(python("raise SystemExit(3)"), job=f"k{number}")
            jig.hears(GangFailed, number + 2)
            jig.look()
        wait_until(lambda: not jig.run().exists())


def test_why_it_is_not_taken_can_be_recorded_whatever_its_folder_is_called(jig: Bench) -> None:
    link = "d=$(printf '\\377'); mkdir $d; ln -s ../c/weights $d/c"
    jig.start(says(link, name="\udcff/c"), total_steps=20)
    assert "\\udcff/c: is a link" in jig.hears(GangFailed).error


def test_what_was_stored_before_the_machine_was_lost_is_the_result(jig: Bench) -> None:
    """The job then wrote the same step once more, with other content, as training does."""
    first = jig.root / "first"
    first.mkdir()
    (first / "weights").write_text("the first ones")
    jig.store.commit("j", 1, 20, first, 0.0)
    jig.start(says(), total_steps=20)
    assert jig.hears(GangCompleted).step == 20
    assert jig.hears(CheckpointDone).step == 20
    (kept,) = jig.store.committed("j")
    assert (kept.epoch, kept.size_bytes) == (1, len("the first ones"))
