"""Who looks at an agent's folder from outside, while the agent removes what it has ended."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.executors.processes import boot_id, identity
from services.doctor.disk import _largest_checkpoint
from services.install.gangs import running_gangs


def removed_as_it_is_listed(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have a folder leave between being found and being listed."""

    def listing(lists: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def listed(path: Any = ".") -> Any:
            if Path(path) == folder and folder.exists():
                folder.rename(folder.parents[2] / "trash")
            return lists(path)

        return listed

    for name in ("listdir", "scandir"):
        patch.setattr(os, name, listing(getattr(os, name)))


def test_the_doctor_measures_what_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, size in (("1", 10), ("2", 7)):
        step = tmp_path / "runs" / "j" / run / "checkpoints" / "step-1"
        step.mkdir(parents=True)
        (step / "weights").write_bytes(b"x" * size)
    assert _largest_checkpoint(tmp_path) == (10, 17)
    removed_as_it_is_listed(monkeypatch, tmp_path / "runs" / "j" / "1" / "checkpoints")
    assert _largest_checkpoint(tmp_path) == (7, 7)


def test_gangs_are_found_beside_a_job_whose_folder_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = identity(os.getpid())
    assert me is not None
    said = {"boot": boot_id(), "pid": me.pid, "started": me.started, "workers": [[0, 1, 2]]}
    order = {"placement": {"n": [0]}, "launch": {"grace_s": 0.0}}
    for job in ("over", "trains"):
        run = tmp_path / "runs" / job / "1"
        run.mkdir(parents=True)
        (run / "order.json").write_text(json.dumps(order))
        (run / "shim.json").write_text(json.dumps(said))
    removed_as_it_is_listed(monkeypatch, tmp_path / "runs" / "over")
    found = running_gangs(tmp_path)
    assert found is not None
    assert [gang.job for gang in found] == ["trains"]
