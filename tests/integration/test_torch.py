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
    port = str(free_port())

    def worker(rank: int) -> "subprocess.Popen[bytes]":
        world = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        env = {**os.environ, **world, "MASTER_PORT": port, "TIDEGATE_CHECKPOINT_DIR": str(tmp_path)}
        return subprocess.Popen([PYTHON, TRAIN, "--steps", "2"], env=env, stderr=subprocess.PIPE)

    with worker(1) as second:  # nobody is there to meet
        wait_until(lambda: catches(second.pid, signal.SIGUSR1), "it handles signals")
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s and second.poll() is None:
            second.send_signal(signal.SIGUSR1)
            time.sleep(0.05)
        assert second.poll() is None, second.stderr and second.stderr.read()
        with worker(0) as first:
            try:
                assert first.wait(PATIENCE_S) == second.wait(PATIENCE_S) == 0
            finally:
                first.kill()
                second.kill()
    assert (tmp_path / "step-1.pt").exists(), "it saved when it was there"


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
