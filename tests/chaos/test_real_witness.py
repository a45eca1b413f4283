"""The witness of real work sees what must not be, and nothing else; so does the account."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.owners import Effect
from tests.chaos.real_account import (
    Step,
    but_resumed,
    differing,
    read_testimony,
    started_behind,
    undone,
)
from tests.chaos.real_fleet import ROOT
from tests.chaos.real_witness import Finding, judge, look
from tests.patience import wait_until

SLEEP = [sys.executable, "-S", "-c", "print(end='.', flush=True); import time; time.sleep(600)"]


class Stage:
    """Processes that look like a deployment's, below a folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack

    def worker(
        self, job: str, epoch: int, *gpus: str, locks: bool = True, anew: bool = False
    ) -> "subprocess.Popen[bytes]":
        """Start a worker on these GPUs, which holds their locks or does not.

        With `anew` it is of another supervisor than the others.
        """
        run = self.folder / "agent" / "runs" / job / str(epoch)
        return self._start(
            gpus,
            locks,
            anew,
            TIDEGATE_JOB=job,
            TIDEGATE_EPOCH=str(epoch),
            TIDEGATE_NODE="n",
            TIDEGATE_CHECKPOINT_DIR=str(run / "checkpoints"),
        )

    def replica(self, *gpus: str, locks: bool = True) -> "subprocess.Popen[bytes]":
        """Start a replica of an owner, which holds its locks together with others."""
        return self._start(gpus, locks, True, WITNESS_OWNER="o", WITNESS_FOLDER=str(self.folder))

    def found(self) -> list[Finding]:
        """Look once."""
        return sorted(judge(look(self.folder)), key=lambda one: one.kind)

    def _start(
        self, gpus: tuple[str, ...], locks: bool, anew: bool, **environment: str
    ) -> "subprocess.Popen[bytes]":
        held = [os.open(self.folder / f"gpu-{g}.lock", os.O_RDWR | os.O_CREAT) for g in gpus]
        for descriptor in held if locks else ():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # a thief's: it has the file open, as all do, and not the lock
        process = subprocess.Popen(
            SLEEP,
            env={**environment, "CUDA_VISIBLE_DEVICES": ",".join(gpus)},
            pass_fds=held,
            stdout=subprocess.PIPE,
            start_new_session=anew,
        )
        for descriptor in held:
            os.close(descriptor)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        self._stack.enter_context(process.stdout)
        assert process.stdout.read(1) == b".", "it lives under its own name"
        return process


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


def test_workers_of_two_jobs_on_gpus_of_their_own_are_as_they_should_be(stage: Stage) -> None:
    stage.worker("j", 3, "a", "b")
    stage.worker("k", 5, "c")
    stage.replica("d")
    assert stage.found() == []
    assert len(look(stage.folder)) == 3
    assert look(stage.folder / "agent" / "runs" / "j") != look(stage.folder)


def test_two_epochs_of_a_job_are_seen_until_one_is_gone(stage: Stage) -> None:
    old = stage.worker("j", 3, "a")
    stage.worker("j", 4, "b")
    (only,) = stage.found()
    assert only.kind == "two_epochs"
    assert "j epoch 3 (process" in only.text
    assert "j epoch 4 (process" in only.text
    old.kill()
    wait_until(lambda: not stage.found(), "a zombie of the kernel's counts as alive")


def test_an_epoch_that_lives_twice_is_seen(stage: Stage) -> None:
    stage.worker("j", 3, "a")
    stage.worker("j", 3, "b")
    assert stage.found() == [], "two workers of one gang"
    stage.worker("j", 3, "b", locks=False, anew=True)
    kinds = [one.kind for one in stage.found()]
    assert kinds == ["no_lock", "shared_gpu", "two_epochs", "two_epochs"]


def test_a_gpu_with_two_tenants_and_who_has_no_lock_are_seen(stage: Stage) -> None:
    stage.worker("j", 3, "a")
    stage.worker("k", 1, "a", locks=False)
    assert [one.kind for one in stage.found()] == ["no_lock", "shared_gpu"]
    assert "k epoch 1 (process" in stage.found()[0].text


def test_an_owner_on_a_gangs_gpu_is_seen_and_two_of_an_owners_are_not(stage: Stage) -> None:
    stage.replica("a", "b", locks=False)
    stage.replica("b", locks=False)
    assert {one.kind for one in stage.found()} == {"no_lock"}
    stage.worker("j", 3, "a")
    assert [one.kind for one in stage.found() if one.kind != "no_lock"] == ["shared_gpu"]


def test_a_lock_file_that_was_made_anew_locks_nothing(stage: Stage) -> None:
    stage.worker("j", 3, "a")
    (stage.folder / "gpu-a.lock").unlink()
    assert [one.kind for one in stage.found()] == ["no_lock"]


def test_as_a_process_it_writes_down_each_finding_once_and_what_is_durable(
    stage: Stage, tmp_path: Path
) -> None:
    out = tmp_path / "witness.jsonl"
    stored = tmp_path / "store" / "j" / "3-50"
    stored.mkdir(parents=True)
    stage.worker("j", 3, "a")
    stage.worker("j", 4, "a", locks=False)
    command = [sys.executable, "-m", "tests.chaos.real_witness", str(tmp_path), str(out)]
    witness = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: out.exists() and out.read_text().count("\n") >= 4)
        (stored / "manifest.json").touch()
        wait_until(lambda: "durable" in out.read_text())
    finally:
        witness.send_signal(signal.SIGTERM)
        assert witness.wait(60) == 0
    found = read_testimony(out)
    assert sorted(text.partition(":")[0] for text in found.findings) == [
        "no_lock",
        "shared_gpu",
        "two_epochs",
    ]
    assert [step for _, step in found.durable["j"]] == [50]
    assert found.summary["tenants"] == 2
    assert found.summary["scans"] >= 2


# --- the account of steps ------------------------------------------------------------------------


def steps(*taken: tuple[float, int]) -> list[Step]:
    return [Step(at_s, step, "0.5") for at_s, step in taken]


def test_a_step_may_be_taken_again_only_if_it_was_not_durable() -> None:
    taken = steps((1.0, 1), (2.0, 2), (3.0, 3), (4.0, 2), (5.0, 3))
    assert undone(taken, [(2.5, 1)]) == []
    assert undone(taken, [(2.5, 2)]) == ["step 2 after 3: 2 was durable"]
    assert undone(taken, [(3.5, 2)]) == [], "durable only after the workers had gone"


def test_a_step_has_one_loss_however_often_it_is_taken() -> None:
    assert differing([*steps((1.0, 1), (2.0, 1)), Step(3.0, 1, "0.7")]) == ["step 1: 0.5 and 0.7"]


def test_a_start_may_be_repeated_only_in_another_life_of_the_agent() -> None:
    first, second = (Effect("a", "start", at_s, "j", 4, "n", (0,)) for at_s in (10.0, 20.0))
    zero, began, other = (
        Effect(*of, 5.0) for of in (("a", "began"), ("a", "began"), ("b", "began"))
    )
    assert but_resumed([zero, first, began, second], {}) == [zero, first, began]
    assert but_resumed([zero, first, other, second], {}) == [zero, first, other, second]
    scaled = {("scale", "j", 4): 1}
    assert but_resumed([zero, began, second], scaled) == [zero, began]
    assert but_resumed([zero, second], scaled) == [zero, second]


def test_an_order_to_start_behind_what_was_durable_is_found() -> None:
    order: dict[str, Any] = {
        "type": "tidegate.gang.start.v1",
        "id": "c1",
        "time": "1970-01-01T00:01:40Z",
        "data": {"job": "j", "epoch": 4, "step": 15},
    }
    said = [json.dumps(order).encode()] * 2
    assert started_behind(said, {"j": [(80.0, 15)]}) == []
    assert started_behind(said, {"j": [(80.0, 30)]}) == ["j epoch 4 from step 15: 30 was durable"]
    assert started_behind(said, {"j": [(99.0, 30)]}) == [], "its report may have been on the way"
