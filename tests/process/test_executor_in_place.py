"""Workers that become more or fewer as they run, and what happens where they cannot."""

import fcntl
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from runtime.core import GangCompleted, GangFailed, GangStarted, GangStopped, WorkersLeft
from runtime.executors.locks import lock_path
from runtime.executors.processes import identity
from runtime.executors.progress import ProgressFile
from schemas.programs import Program
from tests.patience import PATIENCE_S, whole_lines
from tests.workers import ELASTIC, NODE, TRAINER, Bench, bench, python, shell

TRAIN = Path(__file__).parents[2] / "examples" / "train_elastic.py"


def _elastic(**env: str) -> Program:
    return python(ELASTIC, resize="in_place", env=env)


def _workers(jig: Bench, epoch: int = 1) -> list[int]:
    """Pids, by rank."""
    said = json.loads((jig.run(epoch) / "shim.json").read_text())
    return [pid for _, pid, _ in said["workers"]]


def _said(jig: Bench, epoch: int = 1) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(jig.run(epoch) / "progress.jsonl")]


def _free(jig: Bench, gpu: int) -> bool:
    """Whether somebody from outside can have the GPU's lock."""
    path = lock_path(jig.options.lock_folder, NODE, gpu, jig.options.gpu_ids)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _steps_on(jig: Bench, more: int = 3) -> None:
    reached = jig.step()
    jig.until(lambda: jig.step() > reached + more)


def _is_continuous(jig: Bench, *epochs: int) -> bool:
    said = [line for epoch in epochs for line in _said(jig, epoch)]
    steps = [line["step"] for line in said if "samples_per_s" in line]
    return steps == list(range(1, len(steps) + 1))


def test_training_goes_on_in_the_same_processes_and_ends_as_if_undisturbed(jig: Bench) -> None:
    command = [sys.executable, str(TRAIN), "--steps", "120"]
    env = {"OPENBLAS_NUM_THREADS": "1"}
    jig.start(Program(argv=command, env=env), 5, job="calm", total_steps=120)
    jig.hears(GangCompleted)
    moved = Program(argv=[*command, "--work-s", "0.1"], env=env, resize="in_place")
    jig.trains(moved, 0, 1, total_steps=120, beyond=2)
    before = _workers(jig)
    sizes = [((0, 1, 2, 3), 2), ((0, 2, 3), 3), ((2,), 1), ((1, 2), 1)]
    for epoch, (gpus, stay) in enumerate(sizes, start=2):
        jig.scale(*gpus, epoch=epoch)
        jig.hears(GangStarted, epoch + 1)  # and that of the calm one
        assert jig.all(GangStarted)[-1].epoch == epoch
        now = _workers(jig)
        assert len(now) == len(gpus)
        assert now[:stay] == [pid for pid in before if pid in now]
        assert len(set(now) & set(before)) == stay
        assert all(identity(pid) is None for pid in set(before) - set(now))
        assert [_free(jig, gpu) for gpu in range(4)] == [gpu not in gpus for gpu in range(4)]
        before = now
        _steps_on(jig)
    assert [left.epoch for left in jig.all(WorkersLeft)] == [2, 3]
    assert jig.hears(GangCompleted, 2) == GangCompleted("j", 5, 120)
    assert jig.executor.fallbacks == 0
    assert _is_continuous(jig, 1)
    assert [line["generation"] for line in _said(jig) if "generation" in line] == [2, 3, 4, 5]
    weights = []
    for job in ("calm", "j"):
        checkpoint = jig.store.find(job, 120)
        assert checkpoint is not None
        with np.load(jig.store.fetch(checkpoint, jig.root / f"of-{job}")) as saved:
            weights.append([saved["arr_0"], saved["arr_1"]])  # another is the made-up state
    assert all(np.array_equal(*pair) for pair in zip(*weights, strict=True))


def test_a_worker_sees_its_own_gpu_alone(tmp_path: Path) -> None:
    show = "print({name: env[name] for name in SHOWN}, flush=True)\n"
    shown = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
    program = python(f"import os\nSHOWN, env = {shown}, os.environ\n{show}" + ELASTIC)
    program = program.model_copy(update={"resize": "in_place"})
    with bench(tmp_path, gpu_ids={"box": ["A", "B", "C"]}) as jig:
        jig.trains(program, 0, 2)
        jig.scale(1, 2, epoch=2)
        assert jig.hears(GangStarted, 2).epoch == 2
        logs = {path.name: path.read_text() for path in (jig.run() / "logs").iterdir()}
    assert sorted(logs) == ["rank-0.log", "rank-1-since-2.log", "rank-1.log"]
    told = {name: tuple(eval(text).values()) for name, text in logs.items()}
    assert told["rank-0.log"] == ("0", "0", "2", "0", "A")
    assert told["rank-1.log"] == ("1", "0", "2", "1", "C")
    assert told["rank-1-since-2.log"] == ("1", "0", "2", "1", "B")


def test_a_gpu_is_free_only_when_all_of_its_worker_is_gone(jig: Bench) -> None:
    # One child stays in the group of the leaver, one has left it; the leaver takes its time.
    slow = """
for new in (False, True):
    subprocess.Popen(["sleep", "1000"], start_new_session=new)
while not (folder / 'go').exists():
    time.sleep(0.01)
"""
    jig.trains(_elastic(LEAVE=slow), 0, 1)
    jig.scale(0, epoch=2)
    jig.until(lambda: any("generation" in line for line in _said(jig)))
    jig.until(lambda: len(jig.pids()) == 5)
    for _ in range(10):
        jig.look()
    assert not _free(jig, 1)
    assert jig.all(WorkersLeft) == []
    (jig.run() / "checkpoints" / "go").touch()
    assert jig.hears(WorkersLeft) == WorkersLeft("j", 1, jig.all(WorkersLeft)[0].step)
    assert _free(jig, 1)
    assert not _free(jig, 0)
    assert jig.hears(GangStarted, 2).epoch == 2
    assert len(jig.pids()) == 2


def test_wishes_that_come_too_fast_are_carried_out_one_after_the_other(jig: Bench) -> None:
    jig.trains(_elastic(), 0)
    first = _workers(jig)
    jig.scale(0, 1, epoch=2)
    jig.look()
    jig.scale(0, 2, epoch=3)
    jig.scale(0, 2, 3, epoch=4)
    jig.hears(GangStarted, 2)
    assert [started.epoch for started in jig.all(GangStarted)] == [1, 4]
    assert [left.epoch for left in jig.all(WorkersLeft)] == [2]
    assert jig.executor.fallbacks == 0
    assert _workers(jig)[0] == first[0]
    assert [_free(jig, gpu) for gpu in range(4)] == [False, True, False, False]


def test_only_a_number_is_a_generation(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    file = ProgressFile(path, tmp_path)
    lines = '{"generation": 3, "step": 7}\n{"generation": "x"}\n{"generation": 4.5}\n'
    path.write_text(lines + '{"generation": true}\n{"step": 8}\n')
    file.read(1.0)
    assert (file.generation, file.step) == (3, 8)
    assert not file.faults


def test_a_job_that_never_confirms_is_restarted_in_time(tmp_path: Path) -> None:
    with bench(tmp_path, grace_s=2.0) as jig:
        jig.trains(_elastic(JOIN="time.sleep(1000)"), 0)
        jig.scale(0, 1, epoch=2)
        asked_s = time.monotonic()
        assert jig.hears(GangStarted, 2).epoch == 2
        assert time.monotonic() - asked_s >= 1.0
        assert jig.executor.fallbacks == 1
        assert len(_workers(jig, 2)) == 2
        _steps_on(jig)
        assert _is_continuous(jig, 1, 2)


def test_a_job_that_does_not_listen_is_not_signalled_but_restarted(jig: Bench) -> None:
    jig.trains(python(TRAINER, resize="in_place"), 0, 1)
    jig.scale(1, epoch=2)
    assert jig.hears(GangStarted, 2).epoch == 2
    assert jig.executor.fallbacks == 1
    assert not (jig.run() / "world.json").exists()
    said = jig.shim()["resize"]
    assert said["hindrance"] == "rank 1 does not listen for SIGUSR2"
    _steps_on(jig)
    assert _is_continuous(jig, 1, 2)


def test_one_worker_for_a_node_and_wholly_other_gpus_mean_a_restart(jig: Bench) -> None:
    whole = python(TRAINER, resize="in_place", workers="per_node")
    jig.start(whole, 0, job="whole")
    jig.start(_elastic(), 1)
    jig.until(lambda: jig.step() > 2 and jig.step("whole") > 2)
    jig.scale(0, 3, epoch=2, job="whole")
    jig.scale(2, epoch=2)
    jig.hears(GangStarted, 4)
    assert jig.executor.fallbacks == 1  # `whole` is no fallback: nobody tried
    assert jig.run(2).exists()
    assert jig.run(2, "whole").exists()


def test_a_gpu_in_other_hands_keeps_the_gang_as_it_is_until_it_is_restarted(jig: Bench) -> None:
    jig.start(shell("sleep 1000"), 1, job="other")
    jig.trains(_elastic(), 0)
    jig.scale(0, 1, epoch=2)
    failed = jig.hears(GangFailed)
    assert "held by job other" in failed.error
    assert jig.executor.fallbacks == 1
    said = jig.shim()["resize"]
    assert "held by job other" in said["hindrance"]


def test_a_stop_in_the_middle_loses_no_step(jig: Bench) -> None:
    jig.trains(_elastic(JOIN="time.sleep(1000)"), 0)
    jig.scale(0, 1, epoch=2)
    jig.until(lambda: (jig.run() / "world.json").exists())
    # The one that joins hears nothing and is killed at the end of the grace.
    assert jig.ends(2, grace_s=10.0) == GangStopped("j", 2, _said(jig)[-1]["step"])
    assert jig.pids() == set()


def test_workers_that_were_asked_to_leave_are_not_asked_for_another_size(tmp_path: Path) -> None:
    # The first step comes after the order, so that they are restarted, and before they are gone.
    waits = "while generation == 1 and not (folder / '{}').exists():\n{}time.sleep(0.01)\n"
    slow = ELASTIC.replace("while True:\n", waits.format("ordered", "    ") + "while True:\n")
    leave = 'elif wish == "leave":\n'
    slow = slow.replace(leave, leave + " " * 8 + waits.format("looked", " " * 12))
    # However long they take to begin: they have not begun before they say so.
    with bench(tmp_path, quiet_start_s=PATIENCE_S) as jig:
        folder = jig.run() / "checkpoints"
        jig.start(python(slow, resize="in_place"))
        jig.until(lambda: (folder / "met-1-0").exists())
        jig.scale(0, 1, epoch=2)
        (folder / "ordered").touch()
        jig.until(lambda: _said(jig))
        for _ in range(10):
            jig.look()
        (folder / "looked").touch()
        assert jig.hears(GangStarted).epoch == 2
        assert jig.executor.fallbacks == 0
        assert not (jig.run() / "resize.json").exists()
        assert jig.run(2).exists()
