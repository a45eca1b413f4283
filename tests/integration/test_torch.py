"""PyTorch under a real agent: a gang of DistributedDataParallel, resized on its way."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from runtime.executors.processes import catches
from tests.composed import lacks
from tests.integration.machine import CONFIG, ROOT, served, state, tidegate
from tests.patience import PATIENCE_S, wait_until

PYTHON = "/usr/bin/python3"
TRAIN = ROOT / "examples" / "train_ddp.py"
STEPS = 200
#: Far above rounding, far below a lost or repeated step: see examples/train_ddp.py.
TOLERANCE = 1e-9
#: A job keeps its size for ten seconds.
ELASTIC = """
[scheduler]
policy = "tide:elastic.interval_s=10:elastic.horizon_s=60"
"""


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
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])

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
    log, weights, loss, over = (tmp_path / name for name in ("bus.db", "w.npz", "loss", "over"))
    (tmp_path / "t.toml").write_text(CONFIG.format(folder=tmp_path) + ELASTIC)
    wait = ["sh", "-c", f"until [ -e '{over}' ]; do sleep 0.1; done"]
    train = [PYTHON, str(TRAIN), "--steps", str(STEPS), "--work-s", "0.4"]
    train += ["--loss", str(loss), "--out", str(weights)]
    jobs = [
        {  # short, it seems, and quick to start: worth its two GPUs
            "job": "other", "gpus_min": 2, "gpus_max": 2, "total_steps": 10, "start_cost_s": 0.1,
            "samples_per_step": 1.0, "checkpoint_cost_s": 0.1,
            "rates": [{"gpus": 2, "samples_per_s": 1.0}], "program": {"argv": wait},
        },
        {
            "job": "train", "gpus_min": 2, "gpus_max": 4, "total_steps": STEPS,
            "samples_per_step": 240.0, "start_cost_s": 1.0,
            "rates": [{"gpus": 2, "samples_per_s": 1200.0}, {"gpus": 4, "samples_per_s": 2000.0}],
            "program": {"argv": train},
        },
    ]  # fmt: skip
    for job in jobs:
        (tmp_path / f"{job['job']}.json").write_text(json.dumps(job))

    def submitted(name: str) -> bool:
        return tidegate("submit", "--log", log, tmp_path / f"{name}.json").returncode == 0

    def worlds() -> list[int]:
        lines = loss.read_text().splitlines() if loss.exists() else []
        return [int(line.split()[2]) for line in lines]

    with served(tmp_path, "scheduler"):
        # Both are there when the four GPUs come, so each gets two.
        wait_until(lambda: submitted("other"), "a scheduler")
        assert submitted("train")
        with served(tmp_path, "cloud-agent"):
            wait_until(lambda: len(worlds()) > 5, "it trains")
            over.touch()
            wait_until(lambda: state(log) == "completed", f"it completes in {tmp_path}")
    assert worlds() == sorted(worlds())
    assert set(worlds()) == {2, 4}
    steps = [int(line.split()[1]) for line in loss.read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1)), "no step is lost, and none taken twice"
    straight = [PYTHON, str(TRAIN), "--steps", str(STEPS), "--out", "straight.npz"]
    subprocess.run(straight, cwd=tmp_path, check=True)
    with np.load(tmp_path / "straight.npz") as one, np.load(weights) as other:
        assert all(np.abs(one[name] - other[name]).max() <= TOLERANCE for name in one.files)
