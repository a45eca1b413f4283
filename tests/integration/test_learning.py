"""A job that ran at two sizes: its curve is what its own steps took, not what it declared."""

import json
import statistics
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.machine import ROOT, grown, tidegate
from tests.integration.test_torch import PYTHON, need_torch

STEPS = 200

__all__ = ["need_torch"]


def learned(folder: Path) -> None:
    """Hold the curve of a job that `grown` trained to the times that it wrote down itself."""
    lines = [line.split() for line in (folder / "loss").read_text().splitlines()]
    rows = [(float(at_s), int(world)) for at_s, _, world, *_ in lines]
    took: dict[int, list[float]] = {2: [], 4: []}
    for (before_s, before), (at_s, world) in pairwise(rows):
        if before == world:
            took[world].append(at_s - before_s)
    log = folder / "bus.db"
    why = json.loads(tidegate("why", "train", "--log", log, "--json", "-").stdout)
    assert why["output"]["agents"] == ["machine"]
    assert (folder / "runs" / why["output"]["folder"]).is_dir()
    told = json.loads(tidegate("timeline", "train", "--log", log, "--json", "-").stdout)
    wrote = {int(step): float(loss) for _, step, _, loss in lines}
    curve = told["curves"]["loss"]
    assert len(curve) >= 3  # one in ten seconds at most, so the fewer the faster the machine is
    assert all(wrote[step] == loss for _, step, loss in curve)
    assert why["metrics"] == {"loss": curve[-1][2]}
    points = {point["gpus"]: point for point in why["curve"]["points"]}
    for world in (2, 4):
        assert points[world]["measured"]
        # Apart by more than the machine's other work makes them: sizes differ by a factor of two.
        quick_s, *_, slow_s = statistics.quantiles(took[world], n=10)
        assert 0.85 / slow_s <= points[world]["steps_per_s"] <= 1.15 / quick_s
    replayed = tidegate("replay", log)
    assert replayed.returncode == 0, replayed.stderr


@pytest.mark.slow
def test_a_job_of_numpy_is_measured_at_both_sizes(tmp_path: Path) -> None:
    train = [sys.executable, str(ROOT / "examples" / "train_numpy.py"), "--steps", str(STEPS)]
    train += ["--work-s", "0.6", "--loss", str(tmp_path / "loss")]
    grown(tmp_path, {"argv": train}, STEPS, lambda: None)
    learned(tmp_path)


@pytest.mark.torch
@pytest.mark.slow
def test_a_gang_of_ddp_is_measured_at_both_sizes(need_torch: None, tmp_path: Path) -> None:
    train = [PYTHON, str(ROOT / "examples" / "train_ddp.py"), "--steps", str(STEPS)]
    train += ["--work-s", "0.6", "--loss", str(tmp_path / "loss")]
    grown(tmp_path, {"argv": train}, STEPS, lambda: None)
    learned(tmp_path)
