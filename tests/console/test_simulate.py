"""`tidegate simulate`: its tables, figures, files and pictures."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks.public_data import DATA as PUBLIC
from tests.console.conftest import TRACE_HEADER, Run, small

DATA = PUBLIC / "pollux"


def test_a_table_a_document_rows_and_a_picture(tidegate: Run, trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document, rows, picture = (tmp_path / name for name in ("o.json", "o.csv", "o.png"))
    ran = tidegate.does(
        *small(trace, "--policy", "fifo,tide"),
        "--json", document, "--csv", rows, "--plot", picture,
    )  # fmt: skip
    assert "2 nodes of 4 GPUs, simple physics" in ran.out
    assert " ".join(ran.out.split()).count("12 jobs have the built-in speed-up curve") == 1
    shown = {line.split()[0]: line.split() for line in ran.out.splitlines() if line.strip()}
    runs = {run["policy"]: run for run in json.loads(document.read_text())["runs"]}
    assert set(runs) == {"fifo", "tide"}
    for policy, run in runs.items():
        assert shown[policy][2] == "12"
        assert shown[policy][3] == f"{run['mean_jct_s']:,.0f}"
        assert run["workload"] == str(trace)
        assert run["completed"] == run["jobs"] == 12
        assert run["mean_queueing_s"] <= run["mean_jct_s"] <= run["makespan_s"]
        assert 0 < run["deadline_ratio"] <= 1
        assert run["p50_jct_s"] <= run["p99_jct_s"]
    with rows.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["policy"] for row in written] == ["fifo", "tide"]
    assert float(written[0]["mean_jct_s"]) == runs["fifo"]["mean_jct_s"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "1 of 2 runs: fifo on" in ran.err


def test_equal_runs_give_equal_figures(tidegate: Run) -> None:
    def figures(processes: int) -> list[dict[str, object]]:
        said = tidegate.tells(
            "simulate", "--workload", "generated", "--policy", "fifo", "--nodes", "2",
            "--days", "0.25", "--seed", "3,4", "--processes", processes,
        )  # fmt: skip
        return [{k: v for k, v in run.items() if "decision" not in k} for run in said["runs"]]

    alone = figures(1)
    assert alone == figures(2)
    assert [run["seed"] for run in alone] == [3, 4]
    assert alone[0]["mean_jct_s"] != alone[1]["mean_jct_s"]


def test_other_pools_lend_and_are_shown(
    tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("COLUMNS", "100")
    document, picture = tmp_path / "o.json", tmp_path / "o.png"
    ran = tidegate.does(
        "simulate", "--workload", "generated", "--policy", "aryl", "--nodes", "2",
        "--inference-nodes", "4", "--edge-nodes", "2", "--days", "0.25", "--jobs", "16",
        "--load", "1.5", "--merge-s", "60", "--processes", "1", "--agents", "core",
        "--json", document, "--plot", picture,
    )  # fmt: skip
    assert "2 nodes of 4 GPUs, 4 inference servers, 2 edge servers, real agent cores" in ran.out
    head, row = (line.split() for line in ran.out.splitlines()[1:3])
    assert {"policy", "JCT", "lent", "short", "ms"} <= set(head)
    assert not any("…" in cell for cell in row)
    (run,) = json.loads(document.read_text())["runs"]
    assert run["completed"] == run["jobs"] == 16
    assert run["loaned_gpu_h_offered"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_no_figure_is_cut_in_a_narrow_terminal(
    tidegate: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ran = tidegate.does(*small(trace, "--policy", "fifo", "--mtbf-h", "500"))
    assert "JCT s" in ran.out
    assert "…" not in ran.out


def test_several_workloads_are_averaged_too(tidegate: Run, trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "more" / "trace.csv"
    other.parent.mkdir()
    other.write_text(TRACE_HEADER + "a,0,1,60,\n")
    ran = tidegate.does(*small(trace, "--workload", other))
    assert "more/trace" in ran.out
    assert "all 2, mean" in ran.out


def test_what_never_ended_is_said(tidegate: Run, trace: Path) -> None:
    ran = tidegate(*small(trace, "--hours", "0.2"))
    assert ran.code == 1
    assert "0 were rejected and" in ran.out
    assert "did not finish; JCT does not count them." in ran.out


def test_the_table_comes_before_the_files(
    tidegate: Run, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "o.csv")

    monkeypatch.setattr("console.simulate.write_csv", full)
    ran = tidegate(*small(trace, "--csv", tmp_path / "o.csv"))
    assert ran.code == 2
    assert "2 nodes of 4 GPUs" in ran.out
    said = " ".join(ran.out.split())
    assert "fifo ran as fifo:sizes=requested: each job has the size that it asks for." in said
    assert "o.csv: No space left on device" in ran.err


@pytest.mark.data
@pytest.mark.skipif(
    not DATA.is_dir(), reason="no public data: set TIDEGATE_DATA to a folder with pollux/"
)
def test_a_published_workload(tidegate: Run) -> None:
    pytest.importorskip("scipy")
    said = tidegate.tells(
        "simulate", "--workload", DATA / "workloads" / "load-0.5" / "workload-3.csv",
        "--profiles", DATA / "profiles", "--physics", "pollux", "--policy", "fifo",
    )  # fmt: skip
    (run,) = said["runs"]
    assert run["completed"] == run["jobs"] == 80
    assert run["restarts"] == run["preemptions"] == 0
