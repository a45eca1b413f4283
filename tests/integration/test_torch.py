"""PyTorch under a real agent: a gang of DistributedDataParallel, resized on its way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from runtime.executors.processes import catches
from tests.composed import lacks
from tests.integration.machine import ROOT, grown
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port
from tests.workers import straight_weights

PYTHON = "/usr/bin/python3"
TRAIN = ROOT / "examples" / "train_ddp.py"
STEPS = 200
#: Far above rounding, far below a lost or repeated step: see examples/train_ddp.py.
TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def need_torch() -> None:
    """Skip where PyTorch is not installed, saying so; on CI that is a failure."""
    found = subprocess.run([PYTHON, TRAIN, "--help"], capture_output=True, text=True, check=False)
    if found.returncode:
        lacks("PyTorch", found.stderr.strip())


def worker(rank: int, port: int, folder: Path, *before: str) -> "subprocess.Popen[bytes]":
    """Start one of two processes that train for two steps."""
    world = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place = {"MASTER_PORT": str(port), "TIDEGATE_CHECKPOINT_DIR": str(folder)}
    return subprocess.Popen(
        [PYTHON, *before, TRAIN, "--steps", "2"],
        env={**os.environ, **world, **place},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_without_pytorch_it_names_the_package() -> None:
    hidden = "import sys; sys.modules['torch'] = None; import runpy; runpy.run_path(sys.argv[1])"
    said = subprocess.run(
        [sys.executable, "-c", hidden, TRAIN], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert "apt-get install python3-torch" in said.stderr
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.torch
@pytest.mark.slow
def test_signals_at_the_rendezvous_wait_for_its_end(need_torch: None, tmp_path: Path) -> None:
    port = free_port()
    with worker(1, port, tmp_path) as second:  # nobody is there to meet
        wait_until(lambda: catches(second.pid, signal.SIGUSR1), "it handles signals")
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s and second.poll() is None:
            second.send_signal(signal.SIGUSR1)
            time.sleep(0.05)
        assert second.poll() is None, second.stderr and second.stderr.read()
        with worker(0, port, tmp_path) as first:
            try:
                assert first.wait(PATIENCE_S) == second.wait(PATIENCE_S) == 0
            finally:
                first.kill()
                second.kill()
    assert (tmp_path / "step-1.pt").exists(), "it saved when it was there"


@pytest.mark.torch
@pytest.mark.slow
def test_no_thread_of_pytorch_outlives_the_training(need_torch: None, tmp_path: Path) -> None:
    """One that still lets go of a tensor while Python ends has the process end by SIGABRT."""
    counted = (
        "import os, runpy, sys, torch\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "before, sys.argv = threads(), sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "print(threads() - before)\n"
    )
    port = free_port()
    workers = [worker(rank, port, tmp_path, "-c", counted) for rank in range(2)]
    said = [each.communicate(timeout=PATIENCE_S) for each in workers]
    assert [out.splitlines()[-1] for out, _ in said] == [b"0"] * 2, said


@pytest.mark.torch
@pytest.mark.slow
def test_a_gang_of_ddp_grows_and_its_weights_are_those_of_a_run_by_itself(
    need_torch: None, tmp_path: Path
) -> None:
    weights = tmp_path / "w.npz"
    train = [PYTHON, str(TRAIN), "--steps", str(STEPS), "--work-s", "0.4"]
    train += ["--loss", str(tmp_path / "loss"), "--out", str(weights)]
    worlds = grown(tmp_path, {"argv": train}, STEPS, lambda: None)
    assert worlds == sorted(worlds)
    assert set(worlds) == {2, 4}
    straight = straight_weights(tmp_path, STEPS, PYTHON, TRAIN)
    with np.load(straight) as one, np.load(weights) as other:
        assert all(np.abs(one[name] - other[name]).max() <= TOLERANCE for name in one.files)
