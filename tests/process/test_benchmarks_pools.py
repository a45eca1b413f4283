"""The benchmarks of loans, the edge and the simulator, small: that they run, and loans pay."""

import json
from pathlib import Path

import pytest

from benchmarks import busy_cell, decisions, edge, loaning, simulator

SMALL = loaning.Setting(days=0.5, jobs=60, training=4, inference=5)


def test_loans_pay_and_cost_their_owner_little() -> None:
    fifo, aryl, tide = loaning.compare(SMALL, ["fifo", "aryl", "tide"])
    for row in (fifo, aryl, tide):
        assert row["completed"] == row["jobs"] == 60
        assert row["jct_ratio"] <= row["jct_ratio_bound"]
    assert fifo["jct_ratio"] == fifo["queueing_ratio"] == 1.0
    for row in (aryl, tide):
        assert row["loans"] > 0
        assert row["mean_jct_s"] < fifo["mean_jct_s"]
        assert row["inference_shortfall_ratio"] < 0.001


def test_the_mixes_differ_in_who_scales() -> None:
    rows = {}
    for mix in ("aryl", "elastic"):
        setting = loaning.Setting(days=0.5, jobs=100, training=6, inference=8, mix=mix)
        rows[mix] = loaning.at_best_s(setting)
    assert rows["elastic"] < rows["aryl"]


def test_loaning_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "rows.json"
    arguments = ["--days", "0.25", "--jobs", "20", "--training", "4", "--inference", "4"]
    assert loaning.main([*arguments, "--policy", "fifo", "--json", str(target)]) == 0
    (row,) = json.loads(target.read_text())["rows"]
    assert row["policy"] == "fifo"
    assert row["mean_queueing_s"] <= row["mean_jct_s"]
    assert "published for aryl" in capsys.readouterr().err


def test_each_point_of_the_sweeps_is_run_once() -> None:
    todo = edge.points(["tide"], 10, [1])
    assert len(todo) == len(set(todo)) == 17
    assert {point.servers for point in todo} == {0, 2, 4, 8, 16}
    assert {point.load for point in todo} == set(edge.LOADS)
    assert {point.gpus for point in todo} == set(edge.GPUS)


def test_edge_servers_take_jobs_where_there_are_some() -> None:
    alone, with_edge = (
        edge.run(edge.Point("edgeflow", servers, jobs=20, gpus=16)) for servers in (0, 16)
    )
    assert 0 < alone["deadline_ratio"] < 1
    assert 0 < with_edge["deadline_ratio"] <= 1
    assert with_edge["edge_gpu_h_used"] > 0
    assert with_edge["migrations_cloud_edge"] > 0
    assert alone["edge_gpu_h_used"] is None


def test_the_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {**{name: getattr(point, name) for name in point.__slots__}, "deadline_ratio": 0.5}
        for point in edge.points(["tide"], 10, [1, 2])
    ]
    picture = tmp_path / "edge.png"
    edge.draw(edge.curves(rows, ["tide"]), picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_simulator_is_timed(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    arguments = ["--days", "0.1", "--jobs", "10", "--training", "2", "--inference", "2"]
    assert simulator.main(["--only", "days", *arguments, "--json", str(target)]) == 0
    (row,) = json.loads(target.read_text())["rows"]
    assert (row["workload"], row["policy"]) == ("0.1 days, 10 jobs", "tide")
    assert 0 < row["policy_share"] < 1
    assert row["wall_s"] > 0


def test_a_cycle_is_measured_whole_and_by_its_parts() -> None:
    cold, steady = decisions.rows(["tide"], [(64, 20)], seconds=0.1, repeat=1)
    assert (cold["mode"], steady["mode"]) == ("cold", "steady")
    for row in (cold, steady):
        parts = {part: row[f"{part}_ms"] for part in busy_cell.PARTS}
        assert min(parts.values()) > 0
        assert sum(parts.values()) == pytest.approx(row["cpu_ms"], abs=0.01)
