"""What the looks at real work bear: it goes on, and ends, between two lines of theirs."""

import subprocess
from pathlib import Path

import pytest

from tests.chaos.real_fleet import CLOUD, RealFleet
from tests.chaos.real_moments import moments


def test_a_run_that_leaves_as_it_is_looked_at_ends_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = RealFleet(tmp_path)
    progress = fleet.runs(CLOUD) / "job" / "1" / "progress.jsonl"
    progress.parent.mkdir(parents=True)
    progress.write_text('{"step": 1}\n')
    exists = Path.exists

    def leaves(path: Path) -> bool:
        found = exists(path)
        if path == progress:
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "exists", leaves)
    assert [one.job for one in moments(fleet)] == ["job"]


def test_a_worker_that_ended_with_its_supervisor_ends_no_tidying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are found; once the one is killed, nobody is left to be."""
    with subprocess.Popen(["sleep", "1000"]) as worker:
        worker.kill()
    fleet = RealFleet(tmp_path)
    monkeypatch.setattr(fleet, "pids", lambda: [worker.pid])
    fleet.end()
