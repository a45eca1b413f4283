"""Real workers: they start, step, save, change size and end, and the reports say so."""

import contextlib
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore
from runtime.core import (
    CheckpointDone,
    CheckpointLost,
    GangCompleted,
    GangFailed,
    GangStarted,
    ScaleWorkers,
    WorkersLeft,
)
from runtime.executors.environment import machine_environment
from tests.patience import wait_until, whole_lines
from tests.workers import NODE, TRAINER, Bench, bench, python, shell


def _log(jig: Bench, epoch: int = 1, rank: int = 0) -> str:
    path = jig.run(epoch) / "logs" / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def _kinds(jig: Bench) -> list[str]:
    return [type(report).__name__ for report in jig.said]


def test_a_job_starts_steps_and_completes_and_its_result_is_durable(jig: Bench) -> None:
    assert jig.begins(python(TRAINER, env={"STEPS": "30"}), 0, 1, total_steps=30).epoch == 1
    assert jig.hears(GangCompleted) == GangCompleted("j", 1, 30)
    assert _kinds(jig) == ["GangStarted", "CheckpointDone", "GangCompleted"]
    done = jig.all(CheckpointDone)[0]
    assert (done.step, done.size_mib) == (30, 1)
    assert jig.store.find("j", 30) is not None
    assert jig.pids() == set()


def test_what_runs_is_for_the_agents_user_alone(tmp_path: Path) -> None:
    (tmp_path / "agent" / "runs").mkdir(parents=True)  # by an earlier release, or by hand
    with bench(tmp_path) as jig:
        modes = {name: (jig.options.root / name).stat().st_mode for name in ("runs", "trash")}
    assert {name: mode & 0o777 for name, mode in modes.items()} == {"runs": 0o700, "trash": 0o700}


def test_a_job_that_never_says_anything_works(jig: Bench) -> None:
    jig.begins(shell("sleep 1.5; exit 0"), total_steps=7)
    assert jig.executor.progress(time.time()) == []
    assert jig.hears(GangCompleted) == GangCompleted("j", 1, 7)
    assert _kinds(jig) == ["GangStarted", "GangCompleted"]


def test_how_fast_it_is_counts_in_declared_steps_whatever_a_step_of_it_holds(jig: Bench) -> None:
    # Declared are 8 samples a step; a step of it has 640, first four a second, then eight.
    line = '{"step": 3, "samples_per_s": 2560, "step_s": 0.25, "samples_per_step": 640}'
    jig.begins(shell(f"echo '{line}' >> $TIDEGATE_PROGRESS; sleep 1000"))
    jig.until(lambda: bool(jig.executor.progress(time.time())))
    rate = '{"step": 4, "samples_per_s": 5120, "samples_per_step": 640}'
    said: list[float] = []

    def faster() -> bool:
        with (jig.run() / "progress.jsonl").open("a") as file:
            file.write(rate + "\n")
        said.extend(one.samples_per_s for one in jig.executor.progress(time.time()))
        return said[-1:] == [64.0]

    jig.until(faster)


def test_a_stop_saves_and_the_next_start_loses_no_step(jig: Bench) -> None:
    jig.trains(python(TRAINER), beyond=4)
    stopped = jig.ends()
    assert jig.all(CheckpointDone)[-1].step == stopped.step >= 5
    jig.begins(python(TRAINER), epoch=2, step=stopped.step)
    assert f"goes on from {stopped.step}" in _log(jig, 2)
    first = json.loads((jig.run(2) / "progress.jsonl").read_text().splitlines()[0])
    assert first["step"] == stopped.step + 1


def test_a_job_without_a_total_is_complete_when_it_ends_and_not_when_it_is_told_to(
    jig: Bench,
) -> None:
    jig.trains(python(TRAINER, env={"STEPS": "40"}), beyond=4, total_steps=None)
    stopped = jig.ends()
    assert stopped.step < 40, "it left well, but because it was asked to"
    jig.start(python(TRAINER, env={"STEPS": "40"}), epoch=2, step=stopped.step, total_steps=None)
    assert jig.hears(GangCompleted) == GangCompleted("j", 2, 40), "the last step that it said"
    jig.begins(shell("sleep 1.5; exit 0"), job="silent", total_steps=None)
    assert jig.hears(GangCompleted, 2) == GangCompleted("silent", 1, 0)


def test_a_checkpoint_comes_from_the_store_where_there_is_none_here(tmp_path: Path) -> None:
    with bench(tmp_path / "one") as here:
        here.start(python(TRAINER, env={"STEPS": "3"}), total_steps=9)
        here.hears(GangCompleted)
        with bench(tmp_path / "two", store=here.store) as there:
            assert there.begins(python(TRAINER), epoch=2, step=3).step >= 3
            assert "goes on from 3" in _log(there, 2)


def test_a_checkpoint_that_nobody_has_fails_the_gang(jig: Bench) -> None:
    jig.start(python(TRAINER), step=12)
    jig.fails("no checkpoint of j at step 12")


def test_workers_that_outstay_the_grace_are_killed(jig: Bench) -> None:
    jig.begins(shell("trap '' TERM; while true; do sleep 0.1; done"))
    asked_s = time.monotonic()
    assert jig.ends(1, grace_s=1.0).step == 0
    assert time.monotonic() - asked_s >= 1.0
    assert jig.pids() == set()


def test_a_stop_without_a_checkpoint_kills_at_once(jig: Bench) -> None:
    jig.begins(shell("trap '' TERM; while true; do sleep 0.1; done"))
    jig.ends(1, saves=False, grace_s=10_000.0)
    assert jig.pids() == set()


def test_a_wrapper_that_dies_of_the_signal_leaves_its_command_time_to_save(jig: Bench) -> None:
    program = python(TRAINER)
    wrapped = shell('"$@" & wait', env={})
    wrapped = wrapped.model_copy(update={"argv": [*wrapped.argv, "sh", *program.argv]})
    jig.trains(wrapped, beyond=2)
    assert jig.ends().step >= 3


class _Endless(CheckpointStore):
    """Takes for ever, as a thin link does."""

    def commit(self, *args: Any, **more: Any) -> Checkpoint:
        more["stop"].wait()
        raise CheckpointError("stopped")


def test_an_upload_that_takes_too_long_does_not_hold_the_gpus(tmp_path: Path) -> None:
    store = _Endless(f"file://{tmp_path}/store")
    with bench(tmp_path, store=store, final_upload_timeout_s=0.5) as jig:
        jig.trains(python(TRAINER))
        assert jig.ends(1, grace_s=2.0).step == 0
        assert "in the time that was left" in jig.all(CheckpointLost)[0].error


def test_a_change_of_size_does_not_wait_for_an_upload(tmp_path: Path) -> None:
    with bench(tmp_path, store=_Endless(f"file://{tmp_path}/store")) as jig:
        jig.trains(python(TRAINER))
        jig.scale(1, 2, epoch=2)
        assert jig.hears(GangStarted, 2).step > 2
        assert jig.all(CheckpointDone) == []


def test_a_change_of_size_gives_a_save_the_time_that_the_order_says(tmp_path: Path) -> None:
    slow = TRAINER.replace("        (folder /", "        time.sleep(1.5)\n        (folder /", 1)
    with bench(tmp_path, grace_s=0.3) as jig:
        jig.trains(python(slow))
        far = jig.step() + 20
        jig.until(lambda: jig.step() > far)
        placed = {NODE: (1, 2)}
        jig.executor.scale(ScaleWorkers("j", 2, placed, save_s=60.0), time.time())
        assert jig.hears(GangStarted, 2).step > far


def _take_away(store: Path) -> None:
    """Put a file in the store's place; what is still being tidied there may bring it back."""

    def taken() -> bool:
        with contextlib.suppress(OSError):
            store.rename(store.with_name(f"away-{time.monotonic_ns()}"))
        with contextlib.suppress(OSError):
            store.write_text("no folder")
        return store.is_file()

    wait_until(taken, "the store cannot be taken away")


def test_while_the_store_is_away_what_it_had_taken_from_here_is_good(jig: Bench) -> None:
    jig.trains(python(TRAINER))
    stopped = jig.ends()
    jig.look()  # asked again, the executor notes what was reported: the checkpoint is durable
    _take_away(jig.root / "store")
    assert jig.begins(python(TRAINER), epoch=2, step=stopped.step).step >= stopped.step


def test_a_gang_grows_and_shrinks_and_repeats_no_step(jig: Bench) -> None:
    jig.trains(python(TRAINER), 0, 1, beyond=2)
    jig.scale(0, 1, 2, 3, epoch=2)
    jig.scale(0, 1, 2, 3, epoch=2)  # repeated
    jig.hears(GangStarted, 2)
    assert jig.all(WorkersLeft) == []
    jig.until(lambda: "rank 3 of 4" in _log(jig, 2, 3))
    jig.scale(2, epoch=3)
    assert jig.hears(GangStarted, 3).epoch == 3
    left = jig.all(WorkersLeft)
    assert [(one.job, one.epoch) for one in left] == [("j", 2)]
    kinds = _kinds(jig)
    assert kinds.index("WorkersLeft") < len(kinds) - 1 - kinds[::-1].index("GangStarted")
    jig.until(lambda: jig.step() > left[0].step)
    steps = []
    for epoch in (1, 2, 3):
        lines = map(json.loads, whole_lines(jig.run(epoch) / "progress.jsonl"))
        steps += [line["step"] for line in lines if "checkpoint" not in line]
    assert steps == list(range(1, len(steps) + 1))
    assert jig.ends(3).epoch == 3


def test_a_wish_to_save_reaches_a_job_that_listens(jig: Bench) -> None:
    jig.trains(python(TRAINER, saves="on_signal"), beyond=1)
    jig.save()
    done = jig.hears(CheckpointDone)
    assert (done.job, done.epoch) == ("j", 1)
    assert done.uri.endswith(f"j/1-{done.step}")
    jig.until(lambda: jig.step() > done.step)


def test_a_wish_to_save_ends_no_job_that_is_deaf_and_is_answered(tmp_path: Path) -> None:
    with bench(tmp_path, save_s=0.5) as jig:
        jig.begins(shell("sleep 1000", saves="on_signal"))
        jig.save()
        assert "no checkpoint within 0.5 s" in jig.hears(CheckpointLost).error
        jig.save()
        jig.hears(CheckpointLost, 2)
        assert jig.all(GangFailed) == []


def test_a_checkpoint_that_is_not_there_is_said_to_be_lost(jig: Bench) -> None:
    say = """echo '{"step": 4, "checkpoint": "x"}' >> $TIDEGATE_PROGRESS; sleep 1000"""
    jig.start(shell(say))
    assert "step 4" in jig.hears(CheckpointLost).error


def test_the_environment_is_the_promised_one_and_nothing_of_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_BUS__PASSWORD", "secret")
    monkeypatch.setenv("OTHER_SECRET", "secret")
    monkeypatch.setenv("PASSED", "on")
    with bench(tmp_path, pass_env=("PASSED",), gpu_ids={"box": ["A", "B", "C"]}) as jig:
        program = shell("env; pwd; sleep 1000", env={"MINE": "1", "TIDEGATE_JOB": "other"})
        jig.begins(program, 0, 2)
        folder = jig.run() / "work"
        jig.until(lambda: f"\n{folder}\n" in _log(jig, rank=1))
        said = dict(line.split("=", 1) for line in _log(jig, rank=1).splitlines() if "=" in line)
    for name, value in {
        "TIDEGATE_JOB": "j",
        "TIDEGATE_EPOCH": "1",
        "TIDEGATE_GPUS": "2",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "A,C",
        "MINE": "1",
        "PASSED": "on",
    }.items():
        assert said[name] == value, name
    assert machine_environment(("PASSED",)).items() <= said.items()
    assert "secret" not in said.values()
    assert "TIDEGATE_RESUME" not in said
    assert int(said["MASTER_PORT"]) > 0


def test_jobs_of_one_name_that_two_agents_begin_meet_at_two_ports(tmp_path: Path) -> None:
    """Both are given a port before a worker of either listens."""
    with bench(tmp_path / "one") as one, bench(tmp_path / "other") as other:
        for jig in (one, other):
            jig.begins(shell("echo $MASTER_PORT; sleep 1000"))
            jig.until(partial(_log, jig))
        assert _log(one) != _log(other)


def test_one_worker_for_a_node_where_the_job_wants_it_so(jig: Bench) -> None:
    jig.begins(shell("echo $WORLD_SIZE $TIDEGATE_GPUS; sleep 1000", workers="per_node"), 0, 1, 2)
    jig.until(lambda: _log(jig) == "1 3\n")
    assert len(list((jig.run() / "logs").iterdir())) == 1


def test_nothing_to_do_asks_for_no_look(jig: Bench) -> None:
    assert jig.executor.next_due_s() is None
    jig.start(shell("exit 0"))
    due_s = jig.executor.next_due_s()
    assert due_s is not None
    assert due_s <= time.time()
    jig.hears(GangCompleted)
    jig.look()
    assert jig.executor.next_due_s() is None
    assert (jig.run() / "closed").exists()
    assert os.listdir(jig.options.root / "trash") in ([], ["0"])  # noqa: PTH208
