"""`tidegate simulate --log`: what it writes replays, and answers what a cell's log does."""

import json
from pathlib import Path

from tests.console.conftest import Run, small


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
        jobs = tidegate.tells("jobs", "--all", "--log", log, "--cell", cell)["jobs"]
        assert {job["state"] for job in jobs} == {"completed"}
        assert len(jobs) == 12
        why = tidegate.tells("why", "job3", "--log", log, "--cell", cell)
        began_s = next(line["at_s"] for line in why["history"] if line["what"] == "started")
        assert began_s == next(job["first_start_s"] for job in jobs if job["job"] == "job3")
    assert "d2 00:05" in tidegate.does("why", "job3", "--log", log, "--cell", "fifo").out
    unknown = tidegate("loans", "--log", log, "--cell", "west")
    assert unknown.code == 2
    assert "west" in unknown.err
    refused = tidegate("cancel", "job3", "--log", log, "--cell", "fifo")
    assert refused.code == 2
    assert "simulation" in refused.err


def test_work_is_told_in_units_that_people_count(tidegate: Run, tmp_path: Path) -> None:
    """The simulator cuts each into thousands of steps, which mean nothing to anybody."""
    log, trace = tmp_path / "run.db", tmp_path / "long.csv"
    trace.write_text("job_id,submit_time,num_gpus,duration\na,0,4,9000\nb,900,2,9000\n")
    tidegate(
        "simulate", "--workload", trace, "--policy", "tide", "--nodes", "1", "--hours", "1",
        "--processes", "1", "--log", log,
    )  # fmt: skip
    jobs = tidegate.tells("jobs", "--log", log)["jobs"]
    job = next(one for one in jobs if one["state"] == "running" and one["step"])
    known = tidegate.tells("why", job["job"], "--log", log)
    per_step = known["spec"]["samples_per_step"]
    assert per_step == 1 / 65_536
    shown = tidegate.does("why", job["job"], "--log", log).out
    total, done = job["total_steps"] * per_step, job["step"] * per_step
    assert f"Length: {total:,.0f} units of work, as declared." in shown
    assert f"unit {done:,.3g} of its work was recorded" in shown
    assert "steps/s" not in shown
    assert "samples/s" not in shown
    point = known["curve"]["points"][0]
    assert f"{point['gpus']}  {point['samples_per_s']:.4g}  modelled".split() in [
        line.strip("│ ▸").split() for line in shown.splitlines()
    ]
    assert "A unit of a simulated job's work is an iteration" in shown
    assert "from unit" in tidegate.does("timeline", job["job"], "--log", log).out


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
