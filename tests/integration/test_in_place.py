"""A gang that becomes larger while it runs, as a scheduler and an agent wish it."""

import sys
from pathlib import Path

import pytest

from runtime.executors.processes import workers_of
from tests.integration.machine import ROOT, grown, tidegate
from tests.workers import same_weights, straight_weights

STEPS = 120


@pytest.mark.slow
def test_a_gang_grows_and_those_who_train_stay(tmp_path: Path) -> None:
    train = [sys.executable, str(ROOT / "examples" / "train_elastic.py"), "--steps", str(STEPS)]
    train += ["--work-s", "0.4", "--loss", str(tmp_path / "loss")]
    program = {"argv": [*train, "--out", str(tmp_path / "w.npz")], "resize": "in_place"}
    runs = tmp_path / "runs" / "runs" / "train"
    before: set[int] = set()

    def look() -> None:
        found = workers_of("machine", tmp_path / "runs")
        before.update(worker.identity.pid for worker in found if worker.job == "train")

    worlds = grown(tmp_path, program, STEPS, look)
    assert worlds == sorted(worlds)
    assert set(worlds) == {2, 4}
    assert len(before) == 3, "a supervisor and two workers"
    assert len(list(runs.iterdir())) == 1, "nothing was started anew"
    assert same_weights(straight_weights(tmp_path, STEPS), tmp_path / "w.npz")
    replayed = tidegate("replay", tmp_path / "bus.db")
    assert replayed.returncode == 0, replayed.stderr
