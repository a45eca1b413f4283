"""`tidegate simulate`: what cannot be run, or ends on the way, is said in a sentence."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.registry import POLICIES
from simulator.compare import Case, RunError, run_case
from tests.console.conftest import Run, small


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
        (("--workload", "no.csv"), "no.csv: there is no such file. Name a trace, or `generated`."),
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
        (("--jobs", "5"), "--days, --jobs, --load, --priority-share: are of made-up jobs; a trace"),
        (("--priority-share", "0.5"), "are of made-up jobs; a trace has its own."),
        (("--repair-s", "60"), "--repair-s, --checkpoint-s: no node fails; say how often"),
        (("--checkpoint-s", "60"), "no node fails; say how often it does by --mtbf-h."),
        (("--log", "run.db", "--dask", "tcp://a:1"), "--log: is written where the runs are made"),
    ],
)
def test_bad_usage_is_said_in_a_sentence(
    tidegate: Run, trace: Path, arguments: tuple[str, ...], says: str
) -> None:
    assert says in tidegate.refuses(*small(trace, *arguments))


def test_each_bad_row_of_a_trace_has_a_line(tidegate: Run, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time,num_gpus,duration\na,0,1,x\nb,0,-1,5\n")
    first, *rows = tidegate.refuses("simulate", "--workload", trace).splitlines()
    assert first == f"{trace}: 2 bad rows in a philly file. Correct them."
    assert rows == [
        "  line 2, duration: 'x' is not a number.",
        "  line 3, num_gpus: '-1' must be at least 0.",
    ]
    trace.write_text("id,start\na,0\n")
    first, *formats = tidegate.refuses("simulate", "--workload", trace).splitlines()
    assert first.endswith("Rename columns to fit one:")
    assert [line.split(":")[0] for line in formats] == ["  elasticflow", "  pollux", "  philly"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--profiles", "."), "--profiles: made-up jobs use none; leave it out, or give a trace"),
        (
            ("--throughputs", "."),
            "--profiles: made-up jobs use none; leave it out, or give a trace",
        ),
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
    place = rf"{Path(__file__).stem}\.py, line \d+"
    where = rf"policy brittle cannot go on: .* at 0 s: ZeroD.*{place}\); please"
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
