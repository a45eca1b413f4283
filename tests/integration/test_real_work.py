"""Real workers from end to end: services as processes, a file as their bus, a job that trains."""

import json
import sys
from pathlib import Path

import pytest

from tests.integration.machine import CONFIG, ROOT, served, state, tidegate
from tests.patience import wait_until
from tests.workers import same_weights, straight_weights

TRAIN = ROOT / "examples" / "train_numpy.py"
STEPS = 40


def test_a_job_trains_through_an_agents_death_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")  # another last bit, where it is heard
    log, weights, loss = tmp_path / "bus.db", tmp_path / "w.npz", tmp_path / "loss"
    (tmp_path / "t.toml").write_text(CONFIG.format(folder=tmp_path))
    command = [sys.executable, str(TRAIN), "--steps", str(STEPS), "--work-s", "0.4"]
    job = {
        "job": "train", "gpus_min": 2, "gpus_max": 2, "total_steps": STEPS,
        "samples_per_step": 256.0, "rates": [{"gpus": 2, "samples_per_s": 1280.0}],
        "start_cost_s": 1.0,
        "program": {"argv": [*command, "--loss", str(loss), "--out", str(weights)]},
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    with served(tmp_path, "scheduler"):
        wait_until(lambda: tidegate("submit", "--log", log, tmp_path / "job.json").returncode == 0)
        with served(tmp_path, "cloud-agent") as running:
            wait_until(lambda: loss.exists() and len(loss.read_text().splitlines()) > 5)
            running["cloud-agent"].kill()
            running["cloud-agent"].wait()
        with served(tmp_path, "cloud-agent"):
            said = (tmp_path / "cloud-agent.log").read_text()
            wait_until(lambda: len(loss.read_text().splitlines()) >= STEPS, said)
            wait_until(lambda: state(log) == "completed", said)
    steps = [int(line.split()[1]) for line in loss.read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1)), "no step is lost, and none taken twice"
    assert same_weights(straight_weights(tmp_path, STEPS), weights)
    replayed = tidegate("replay", log)
    assert replayed.returncode == 0, replayed.stderr
    stays = json.loads(tidegate("timeline", "train", "--log", log, "--json", "-").stdout)["stays"]
    assert [(stay["gpus"], stay["nodes"]) for stay in stays] == [(2, ["node-1"])]
