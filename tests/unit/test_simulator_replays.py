"""Runs of published workloads write journals that replay, whatever the policy and the physics."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.public_data import DATA
from scheduler.policies.registry import POLICIES
from simulator.compare import Case, Knowledge, run_case
from simulator.physics.base import Cluster
from tests.scripted import replayed

pytestmark = pytest.mark.slow

#: By physics: a workload, and profiles.
PUBLISHED = {
    "pollux": ("pollux/workloads/load-0.5/workload-1.csv", "pollux/profiles"),
    "elasticflow": ("elasticflow/traces/cluster06.csv", "elasticflow/throughputs/A100"),
}
_JOBS = 12


@pytest.mark.data
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("physics", PUBLISHED)
def test_a_published_workload_replays(physics: str, policy: str, tmp_path: Path) -> None:
    _replays(physics, policy, "learned", tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("policy", ["tide", "srtf", "elasticflow"])  # the last two do not tune
def test_jobs_that_declare_no_total_replay(policy: str, tmp_path: Path) -> None:
    _replays("pollux", policy, "unknown", tmp_path)


def _replays(physics: str, policy: str, knowledge: Knowledge, tmp_path: Path) -> None:
    if not (DATA / physics).is_dir():
        pytest.skip(f"no public data: set TIDEGATE_DATA to a folder with {physics}/")
    pytest.importorskip("scipy")
    workload, journal = tmp_path / "trace.csv", tmp_path / "journal"
    trace, profiles = PUBLISHED[physics]
    lines = (DATA / trace).read_text().splitlines(keepends=True)
    workload.write_text("".join(lines[: _JOBS + 1]))
    case = Case(
        policy, str(workload), physics, str(DATA / profiles), Cluster(4, 4), journal=str(journal)
    )
    case = replace(case, knowledge=knowledge)
    figures = run_case(case).figures
    assert figures["completed"] + figures["rejected"] == figures["jobs"] == _JOBS  # type: ignore[operator]
    assert replayed(journal).first_difference is None
    assert (figures["claims_timed_out"], figures["invariant_violations"]) == (0, 0)
