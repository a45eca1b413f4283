"""Cases side by side: their order, where they run, and what is told of them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.compare import (
    Case,
    RunError,
    check,
    compare,
    make_physics,
    run_case,
)
from simulator.csv_rows import WorkloadError
from simulator.generated import Mix
from simulator.physics.base import Cluster

MIX = Mix(days=0.05, jobs=6)


def cases(*policies: str, **more: object) -> list[Case]:
    return [
        Case(policy, "generated", "simple", cluster=Cluster(2, 4), mix=MIX, **more)  # type: ignore[arg-type]
        for policy in policies
    ]


def test_answers_come_in_the_order_of_the_cases() -> None:
    asked: list[int] = []

    def backwards(work: Callable[[Any], Any], todo: Sequence[Any]) -> Iterator[Any]:
        for numbered in reversed(todo):
            asked.append(numbered[0])
            yield work(numbered)

    told: list[tuple[int, str]] = []
    runs = compare(
        cases("fifo", "sjf"),
        tell=lambda done, run: told.append((done, run.case.policy)),
        submit=backwards,
    )
    assert asked == [1, 0]
    assert told == [(1, "sjf"), (2, "fifo")]
    assert [run.row()["policy"] for run in runs] == ["fifo", "sjf"]


def test_a_run_in_this_process_is_watched() -> None:
    seen: list[tuple[str, float, int]] = []
    (run,) = compare(
        cases("fifo"), 1, watch=lambda case, now_s, jobs: seen.append((case.policy, now_s, jobs))
    )
    assert len(seen) == run.figures["decisions"]
    moments = [now_s for _, now_s, _ in seen]
    assert moments == sorted(moments)
    assert moments[0] == 0.0
    assert {policy for policy, _, _ in seen} == {"fifo"}
    assert max(jobs for _, _, jobs in seen) <= 6


def test_other_pools_are_part_of_a_case() -> None:
    (run,) = compare(cases("aryl", inference_nodes=3, edge_nodes=2), 1)
    assert run.figures["inference_gpu_h"]
    assert run.loans
    assert run.row()["inference_nodes"] == 3
    (plain,) = compare(cases("aryl"), 1)
    assert plain.loans == ()
    assert "inference_gpu_h" not in plain.figures or plain.figures["inference_gpu_h"] is None


def test_fifo_gives_what_jobs_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_time,num_gpus,duration,deadline\na,0,4,600,\n")
    case = Case("fifo", str(path), "simple", cluster=Cluster(2, 4))
    (entry,) = make_physics(case).entries(path, case.cluster, adaptive=False)
    assert min(entry.model.sizes) < entry.requested == 4  # type: ignore[attr-defined]
    assert max(share for _, share in run_case(case).line) == 4 / 8


def test_more_sizes_may_be_offered_than_a_submission_has_room_for(tmp_path: Path) -> None:
    path, asked = tmp_path / "trace.csv", range(1, 81)
    rows = [f"job-{gpus},{gpus},{gpus},100" for gpus in asked]
    path.write_text("job_id,submit_time,num_gpus,duration\n" + "\n".join(rows))
    case = Case("fifo", str(path), "simple", cluster=Cluster(30, 4), grid="all", horizon_s=5000.0)
    done = run_case(case)
    assert done.figures["completed"] == len(asked)
    # Each has the size that it asks for, whatever there was room for.
    assert done.figures["gpu_h"] == pytest.approx(sum(asked) * 130.0 / 3600.0)


def test_a_row_says_how_it_was_run() -> None:
    (one,) = compare(cases("fifo", round_s=90.0, merge_s=5.0, grid="all"), 1)
    (two,) = compare(cases("tiresias"), 1)
    how = ("when", "round_s", "merge_s", "tuning", "knowledge", "sizes")
    assert [one.row()[name] for name in how] == ["events", 90.0, 5.0, False, "true", "all"]
    assert [two.row()[name] for name in how] == ["rounds", 60.0, 0.0, False, "true", "ladder"]
    tuned = replace(one, case=replace(one.case, policy="pollux", physics="pollux"))
    assert [tuned.row()[name] for name in how[3:]] == [True, "learned", "all"]


def test_a_policy_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(RunError, match=r"policy gavel needs scipy.*; install `tidegate\[sim\]`"):
        compare(cases("gavel"), 1)


def test_what_cannot_be_run_is_found_before() -> None:
    with pytest.raises(ValueError, match="policy 'none' is not known"):
        check(cases("none")[0])
    with pytest.raises(WorkloadError, match="no such file"):
        check(cases("fifo", inference_nodes=1, requests="nowhere.csv")[0])
    with pytest.raises(ValueError, match="give --inference-nodes too"):
        check(cases("fifo", requests="nowhere.csv")[0])
    with pytest.raises(WorkloadError, match="made-up jobs need --physics simple"):
        check(replace(cases("fifo")[0], physics="pollux", profiles="."))


def test_a_job_that_asks_for_more_than_there_is_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time,num_gpus,duration\na,0,8,60\nb,1,9,60\nc,1,16,60\n")
    case = replace(cases("fifo")[0], workload=str(trace))
    with pytest.raises(WorkloadError, match=r"2 of its 3 jobs .* the 8 of .*, c for 16; give more"):
        check(case)
    check(replace(case, cluster=Cluster(4, 4)))
