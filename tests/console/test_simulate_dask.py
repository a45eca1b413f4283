"""`tidegate simulate --dask` and `branch --dask`: runs on a cluster, and what it may lose."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bus.reading import open_log
from schemas.topics import JOURNAL
from simulator.branch.origin import read_origin
from simulator.compare import Case
from simulator.remote import ClusterError, DaskCluster
from tests.composed import ROOT
from tests.console.conftest import Run, small
from tests.patience import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Dask scheduler with a worker, both in processes of their own, and its address."""
    pytest.importorskip("distributed")
    where = tmp_path_factory.mktemp("dask") / "scheduler.json"
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    alike = ("--no-dashboard", "--scheduler-file", str(where))
    running = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{role}", *alike, *more],
            cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL,
        )
        for role, more in (
            ("dask_scheduler", ("--host", "127.0.0.1", "--port", "0")),
            ("dask_worker", ("--nthreads", "1", "--local-directory", str(where.parent))),
        )
    ]  # fmt: skip
    try:
        # The file is there before what it says is.
        wait_until(
            lambda: where.exists() and where.read_text().rstrip().endswith("}"),
            "Dask's scheduler does not start",
        )
        yield str(json.loads(where.read_text())["address"])
    finally:
        # Asked to end, one of them takes more than a minute after a test has killed its child. The
        # new child ends by itself when its parent is gone.
        for process in running:
            process.kill()
            process.wait()


def test_a_cluster_runs_what_it_is_sent(tidegate: Run, trace: Path, cluster: str) -> None:
    runs = tidegate.tells(*small(trace, "--policy", "fifo,sjf", "--dask", cluster))["runs"]
    assert [run["policy"] for run in runs] == ["fifo", "sjf"]
    assert all(run["completed"] == run["jobs"] > 0 for run in runs)


def test_runs_of_a_branch_are_the_same_on_a_cluster(tidegate: Run, cluster: str) -> None:
    golden = Path(__file__).parents[1] / "golden" / "tide.jsonl.zst"
    lost = min(_nodes(golden))
    asked = ("branch", golden, "--entry", 200, "--hours", 0.5, "--runs", 3, "--lose", lost)
    here, there = tidegate.tells(*asked), tidegate.tells(*asked, "--dask", cluster)
    assert here == there
    assert here["ranges"]["branch"]["used_gpu_h"] is not None


def _nodes(log: Path) -> list[str]:
    with open_log(log) as opened:
        begin = read_origin(opened.records(JOURNAL.name), 200, 0.5)
    return list(json.loads(begin.state)["nodes"])


def test_a_worker_that_dies_is_told_of(cluster: str) -> None:
    lost = DaskCluster(cluster)(_die, [(0, cast(Case, None))])
    with pytest.raises(ClusterError, match="the cluster lost a run"):
        list(lost)


def _die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def test_a_cluster_that_is_not_there_is_told_of(
    tidegate: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("simulator.remote._FIND_S", 1)
    said = tidegate.refuses(*small(trace, "--dask", "tcp://127.0.0.1:9"))
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in said


def test_without_dask_the_option_says_what_is_missing(
    tidegate: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = tidegate.refuses(*small(trace, "--dask", "tcp://a:1"))
    assert "--dask: needs distributed; install `tidegate[dask]` here and on its workers." in said
