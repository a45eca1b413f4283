"""`tidegate simulate`."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from benchmarks.public_data import DATA as PUBLIC
from bus.reading import open_log
from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.registry import POLICIES
from schemas.topics import JOURNAL
from simulator.branch.origin import read_origin
from simulator.compare import Case, RunError, run_case
from simulator.remote import ClusterError, DaskCluster
from tests.composed import ROOT
from tests.console.conftest import Run
from tests.patience import PATIENCE_S, wait_until

DATA = PUBLIC / "pollux"
HEADER = "job_id,submit_time,num_gpus,duration,deadline\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"job{i},{i * 100},{1 + i % 4},{300 + i},{i * 100 + 700}\n" for i in range(12)]
    path.write_text(HEADER + "".join(rows))
    return path


def small(trace: Path, *more: object) -> tuple[object, ...]:
    return (
        "simulate", "--workload", trace, "--policy", "fifo", "--nodes", "2", "--processes", "1",
        *more,
    )  # fmt: skip


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
        ran = tidegate.does(
            "simulate", "--workload", "generated", "--policy", "fifo", "--nodes", "2",
            "--days", "0.25", "--seed", "3,4", "--processes", processes, "--json", "-",
        )  # fmt: skip
        runs = json.loads(ran.out)["runs"]
        return [{k: v for k, v in run.items() if "decision" not in k} for run in runs]

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


def test_the_log_of_several_runs_replays_cell_by_cell(
    tidegate: Run, trace: Path, tmp_path: Path
) -> None:
    log, document = tmp_path / "run.db", tmp_path / "o.json"
    policies = "tide,fifo,fifo:sizes=smallest"
    asked = small(trace, "--policy", policies, "--nodes", "1", "--log", log, "--json", document)
    tidegate.does(*asked)
    for run in json.loads(document.read_text())["runs"]:
        assert run["claims"] >= run["jobs"] == 12
        assert (run["claims_timed_out"], run["invariant_violations"]) == (0, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.json", "run.db", "trace.csv"]
    again = tidegate.does("replay", log)
    told = [line.split()[:2] for line in again.out.splitlines()]
    assert [words[1] for words in told if words[0] == "Cell"] == ["tide:", "fifo:", "fifo-2:"]
    decided = [int(words[1].replace(",", "")) for words in told if words[0] == "Identical:"]
    assert len(decided) == 3
    assert min(decided) > 12 * 5
    said = tidegate.refuses(*asked)
    assert f"--log: {log} is there already; name a new file, or remove it." in said


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
        for process in reversed(running):
            process.terminate()
        for process in running:
            # One that does not end in good order is none of the product's.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S / 2)
            process.kill()
            process.wait()


def test_a_cluster_runs_what_it_is_sent(
    tidegate: Run, trace: Path, tmp_path: Path, cluster: str
) -> None:
    several = small(trace, "--policy", "fifo,sjf", "--dask", cluster)
    tidegate.does(*several, "--json", tmp_path / "o")
    runs = json.loads((tmp_path / "o").read_text())["runs"]
    assert [run["policy"] for run in runs] == ["fifo", "sjf"]
    assert all(run["completed"] == run["jobs"] > 0 for run in runs)


def test_runs_of_a_branch_are_the_same_on_a_cluster(
    tidegate: Run, tmp_path: Path, cluster: str
) -> None:
    golden = Path(__file__).parents[1] / "golden" / "tide.jsonl.zst"
    lost = min(_nodes(golden))
    asked = ("branch", golden, "--entry", 200, "--hours", 0.5, "--runs", 3, "--lose", lost)
    tidegate.does(*asked, "--json", tmp_path / "here")
    tidegate.does(*asked, "--json", tmp_path / "there", "--dask", cluster)
    here, there = (json.loads((tmp_path / name).read_text()) for name in ("here", "there"))
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


def test_several_workloads_are_averaged_too(tidegate: Run, trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "more" / "trace.csv"
    other.parent.mkdir()
    other.write_text(HEADER + "a,0,1,60,\n")
    ran = tidegate.does(*small(trace, "--workload", other))
    assert "more/trace" in ran.out
    assert "all 2, mean" in ran.out


def test_what_never_ended_is_said(tidegate: Run, trace: Path) -> None:
    ran = tidegate(*small(trace, "--hours", "0.2"))
    assert ran.code == 1
    assert "0 were rejected and" in ran.out
    assert "did not finish; JCT does not count them." in ran.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "nonsense"), "policy 'nonsense' is not known; choose one of: "),
        (("--policy", "tide:patience_s=-5"), "policy tide: patience_s: input should be greater"),
        (("--policy", "tide:loans.lead_s=-5"), "policy tide: loans.lead_s: input should be great"),
        (("--policy", ","), "--policy: names nothing"),
        (("--physics", "quantum"), "physics 'quantum' is not known; choose one of: elasticflow, "),
        (("--physics", "pollux"), "needs the folder of the measured profiles: --profiles DIR"),
        (("--when", "now"), "--when: 'now' is not known; choose one of: paper, events, rounds."),
        (("--agents", "real"), "--agents: 'real' is not known; choose one of: ideal, core."),
        (("--agents", "core", "--physics", "pollux"), "--agents: real agent cores have no pollux"),
        (("--seed", "one"), "--seed: 'one' is no list of whole numbers"),
        (("--workload", "no.csv"), "no.csv: there is no such file."),
        (("--json", "/nowhere/o.json"), "--json: /nowhere/o.json cannot be written"),
        (("--plot", "/nowhere/o.png"), "--plot: /nowhere/o.png cannot be written"),
        (("--nodes", "0"), "--nodes"),
        (("--gpus-per-node", "65"), "--gpus-per-node': Input should be less than or equal to 64."),
        (("--inference-nodes", "1", "--requests", "no.csv"), "no.csv: there is no such file."),
        (("--days", "0"), "--days: 0 must be 0.01 to 366."),
        (("--jobs", "0"), "--jobs: 0 must be 1 to 1000000."),
        (("--load", "-1"), "--load: -1 must be above 0"),
        (("--round-s", "nan"), "--round-s"),
        (("--round-s", "inf"), "--round-s: inf is no length of time; give seconds."),
        (("--merge-s", "inf"), "--merge-s: inf is no length of time; give seconds."),
        (("--merge-s", "1e300"), "--merge-s: 1e+300 must be at most 1e9."),
        (("--hours", "0"), "--hours: 0 must be above 0."),
        (("--hours", "nan"), "--hours: nan must be above 0."),
        (("--seed", "2,-1"), "--seed: -1 is below 0; write 1 or 1,2,3."),
        (("--csv", "-"), "--csv: - is not taken here; name a file."),
        (("--plot", "-"), "--plot: - is not taken here; name a file."),
        (("--requests", "no.csv"), "--requests: nothing is there to serve them"),
        (("--log", "/nowhere/run.db"), "--log: /nowhere/run.db cannot be written"),
        (("--log", "run.db", "--dask", "tcp://a:1"), "--log: is written where the runs are made"),
    ],
)
def test_bad_usage_is_said_in_a_sentence(
    tidegate: Run, trace: Path, arguments: tuple[str, ...], says: str
) -> None:
    assert says in tidegate.refuses(*small(trace, *arguments))


def test_each_bad_row_of_a_trace_has_a_line(tidegate: Run, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time,num_gpus,duration\na,0,1,x\nb,0,0,5\n")
    first, *rows = tidegate.refuses("simulate", "--workload", trace).splitlines()
    assert first == f"{trace}: 2 bad rows in a philly file. Correct them."
    assert rows == [
        "  line 2, duration: 'x' is not a number.",
        "  line 3, num_gpus: '0' must be at least 1.",
    ]
    trace.write_text("id,start\na,0\n")
    first, *formats = tidegate.refuses("simulate", "--workload", trace).splitlines()
    assert first.endswith("Rename columns to fit one:")
    assert [line.split(":")[0] for line in formats] == ["  elasticflow", "  pollux", "  philly"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--profiles", "."), "--profiles: made-up jobs use none; leave it out, or give a trace"),
        (("--physics", "pollux"), "--physics: pollux needs a trace; made-up jobs need --physics "),
    ],
)
def test_made_up_jobs_need_no_measurements(
    tidegate: Run, arguments: tuple[str, ...], says: str
) -> None:
    said = tidegate.refuses("simulate", "--workload", "generated", "--policy", "fifo", *arguments)
    assert says in said


def test_an_unknown_kind_of_picture_is_refused_before_the_runs(
    tidegate: Run, trace: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    said = tidegate.refuses(*small(trace, "--plot", tmp_path / "o.docx"))
    assert "end it in .pdf, .png, .svg." in said
    assert "1 of 1 runs" not in said


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


def test_a_policy_without_its_package_is_named_not_the_physics(
    tidegate: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    said = tidegate.refuses(*small(trace, "--policy", "gavel"))
    assert "policy gavel needs scipy" in said
    assert "--physics" not in said


@dataclass(frozen=True)
class Brittle:
    """Raises at its first decision, as a policy does with an option that it cannot decide with."""

    name: str = "brittle"
    slot_s: float = 1.0

    def plan(self, snapshot: Snapshot) -> Plan:
        raise ZeroDivisionError("float division by zero")


def test_options_that_a_policy_cannot_decide_with_are_named(
    tidegate: Run, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[str, object]", POLICIES), "brittle", Brittle)
    said = tidegate.refuses(
        *small(trace, "--policy", "brittle:slot_s=7", "--log", tmp_path / "run.db")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]
    assert said == (
        "policy brittle cannot decide with slot_s=7: ZeroDivisionError: float division by zero; "
        "leave it out, or give it another value.\n"
    )
    # Without options it is a bug of the policy, and told with its place.
    where = r"policy brittle cannot go on: .* at 0 s: ZeroD.*test_simulate\.py, line \d+\); please"
    with pytest.raises(RunError, match=where) as failed:
        run_case(Case("brittle", str(trace), "simple"))
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def dies(*_: object) -> None:
    os._exit(9)


def test_a_worker_that_dies_is_said(
    tidegate: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.at_once._numbered", dies)
    said = tidegate.refuses(*small(trace, "--policy", "fifo,sjf", "--processes", "2"))
    assert "ended before they did, perhaps for want of memory; try --processes 1." in said


@pytest.mark.data
@pytest.mark.skipif(
    not DATA.is_dir(), reason="no public data: set TIDEGATE_DATA to a folder with pollux/"
)
def test_a_published_workload(tidegate: Run) -> None:
    pytest.importorskip("scipy")
    ran = tidegate.does(
        "simulate", "--workload", DATA / "workloads" / "load-0.5" / "workload-3.csv",
        "--profiles", DATA / "profiles", "--physics", "pollux", "--policy", "fifo", "--json", "-",
    )  # fmt: skip
    (run,) = json.loads(ran.out)["runs"]
    assert run["completed"] == run["jobs"] == 80
    assert run["restarts"] == run["preemptions"] == 0


def test_the_record_of_a_simulation_answers_what_a_log_does(
    tidegate: Run, trace: Path, tmp_path: Path
) -> None:
    log = tmp_path / "runs.db"
    tidegate.does(*small(trace, "--policy", "fifo,tide"), "--log", log)
    several = tidegate("jobs", "--all", "--log", log)
    assert several.code == 2
    assert "--cell" in several.err
    assert "fifo" in several.err
    for cell in ("fifo", "tide"):
        told = tidegate.does("jobs", "--all", "--log", log, "--cell", cell, "--json", "-")
        jobs = json.loads(told.out)["jobs"]
        assert {job["state"] for job in jobs} == {"completed"}
        assert len(jobs) == 12
        why = json.loads(
            tidegate.does("why", "job3", "--log", log, "--cell", cell, "--json", "-").out
        )
        began_s = next(line["at_s"] for line in why["history"] if line["what"] == "started")
        assert began_s == next(job["first_start_s"] for job in jobs if job["job"] == "job3")
    assert "d2 00:05" in tidegate.does("why", "job3", "--log", log, "--cell", "fifo").out
    unknown = tidegate("loans", "--log", log, "--cell", "west")
    assert unknown.code == 2
    assert "west" in unknown.err
    refused = tidegate("cancel", "job3", "--log", log, "--cell", "fifo")
    assert refused.code == 2
    assert "simulation" in refused.err


def test_nodes_fail_and_the_log_of_it_replays(tidegate: Run, tmp_path: Path) -> None:
    log, document = tmp_path / "run.db", tmp_path / "o.json"
    asked = (
        "simulate", "--workload", "generated", "--policy", "tide,fifo", "--nodes", "3", "--days",
        "0.25", "--jobs", "20", "--seed", "5", "--processes", "1",
    )  # fmt: skip
    fails = ("--mtbf-h", "3", "--repair-s", "600", "--checkpoint-s", "900")
    shown = tidegate.does(*asked, *fails, "--log", log, "--json", document).out
    assert "nodes fail after 3 h" in shown
    for run in json.loads(document.read_text())["runs"]:
        assert (run["mtbf_h"], run["repair_s"], run["checkpoint_s"]) == (3.0, 600.0, 900.0)
        assert run["kills"] > 0
        assert run["completed"] == run["jobs"] == 20
        assert (run["claims_timed_out"], run["invariant_violations"]) == (0, 0)
    assert tidegate.does("replay", log).out.count("Identical:") == 2
    assert "--repair-s: -1 must be 0.01 to 1e9" in tidegate(*asked, "--repair-s", "-1").err
