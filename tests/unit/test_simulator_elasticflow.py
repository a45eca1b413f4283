"""The ElasticFlow physics: tables, pauses, slots; and the published ratios from its data."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.public_data import DATA as PUBLIC
from scheduler.policies.interface import Policy
from scheduler.policies.literature.edf import Edf
from scheduler.policies.literature.elasticflow import ElasticFlow
from scheduler.policies.literature.gandiva import Gandiva
from scheduler.policies.literature.tiresias import Tiresias
from simulator.csv_rows import WorkloadError
from simulator.physics.base import Cluster
from simulator.physics.elasticflow import (
    Charge,
    ElasticFlowPhysics,
    Overhead,
    TableJob,
    overhead_in,
)
from simulator.profiles import rate_table
from simulator.run import Options, Outcome, simulate

pytestmark = pytest.mark.slow

DATA = PUBLIC / "elasticflow"
NODE = Cluster(nodes=1, gpus_per_node=8)

needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="no public data: set TIDEGATE_DATA to a folder with elasticflow/"
)


def folder(tmp_path: Path, rows: str) -> tuple[Path, Path]:
    """Write tables of one model and a trace; returns the folder of tables and the trace."""
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "net.csv").write_text("global_batch_size,1,2,4,8,16\n8,1.0,2.0,3.0,2.5,9.0\n")
    trace = tmp_path / "trace.csv"
    header = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration"
    trace.write_text(f"{header}\n{rows}")
    return tables, trace


# --- the model ------------------------------------------------------------------------------------


def test_the_formula_of_the_pause() -> None:
    small, large = overhead_in(Cluster(16, 8)), overhead_in(Cluster(32, 8))
    assert small.full_s(1) == pytest.approx(2.0 + 2.0 + 27.0 / 60)
    assert small.full_s(8) == pytest.approx(2.0 + 8.0 + 27.0 / 60)
    assert large.full_s(8) == pytest.approx(7.0 + 8.0 + 47.0 / 60)


@pytest.mark.parametrize(
    ("charge", "start_s", "same_s", "other_s"),
    [
        ("cached", 4.0, 2.0, 4.0),
        ("full", 4.0, 4.0, 4.0),
        ("slices", 4.0, 4.0, 4.0),
        ("resume", 0.0, 4.0, 4.0),
        ("none", 0.0, 0.0, 0.0),
    ],
)
def test_who_pays_and_when(charge: Charge, start_s: float, same_s: float, other_s: float) -> None:
    overhead = replace(Overhead(restart_s=0.0), charge=charge)
    assert overhead.pause_s((), ((0, 1),), first=True) == start_s
    assert overhead.pause_s(((0, 2),), ((0, 1),), first=False) == same_s
    assert overhead.pause_s(((0, 2),), ((1, 1),), first=False) == other_s
    assert overhead.useful(4) == (pytest.approx(1 - 8.0 / 240) if charge == "slices" else 1.0)


def test_sizes_end_at_the_batch() -> None:
    table = rate_table("net", 8, [(1, 8.0), (2, 16.0), (4, 24.0), (8, 20.0), (16, 72.0)])
    assert table is not None
    job = TableJob(table, 100.0, Overhead())
    assert job.observed(10.0, (1, 2, 3, 16)).rates.tolist() == [1.0, 2.0, 0.0, 0.0]
    assert job.observed(10.0, (1,)).remaining == 90.0
    assert sorted(job.rates) == [1, 2, 4, 8]
    assert job.segment(0.0, (2, 2)) == job.segment(0.0, (4,))
    assert job.segment(0.0, (3,)).speed == 0.0


def test_a_trace_becomes_jobs(tmp_path: Path) -> None:
    rows = "a,5,100,net,205,8,3,100\nb,7,50,net,9,8,16,20\n"
    tables, trace = folder(tmp_path, rows)
    one, two = ElasticFlowPhysics(tables).entries(trace, NODE, adaptive=False)
    assert (one.id, one.submit_s, one.deadline_s, one.requested) == ("a", 5.0, 205.0, 2)
    assert (two.model.total, two.requested) == (50.0, 8)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("a,5,100,other,205,8,1,100\n", "has no other at batch 8"),
        ("a,5,100,net,205,64,1,100\n", "has no net at batch 64"),
        ("a,5,none,net,205,8,1,100\n", "bad rows"),
    ],
)
def test_a_trace_that_the_tables_do_not_fit_is_refused(
    tmp_path: Path, rows: str, says: str
) -> None:
    tables, trace = folder(tmp_path, rows)
    with pytest.raises(WorkloadError, match=says):
        ElasticFlowPhysics(tables).entries(trace, NODE, adaptive=False)


# --- in the world ---------------------------------------------------------------------------------


def run(physics: ElasticFlowPhysics, trace: Path, policy: Policy, cluster: Cluster) -> Outcome:
    jobs = physics.entries(trace, cluster, adaptive=False)
    options = Options(
        cluster=cluster,
        on_events=True,
        round_s=math.inf,
        merge_s=60.0,
        sizes=physics.sizes,
        instant=physics.instant,
    )
    return simulate(jobs, policy, options)


def test_pauses_delay_and_slots_gather_what_happens(tmp_path: Path) -> None:
    # a alone on 4 GPUs, 3 a second. b comes 10 s after a and is seen 60 s after it.
    tables, trace = folder(tmp_path, "a,0,300,net,900,8,4,1\nb,10,30,net,900,8,4,1\n")
    paid = ElasticFlowPhysics(tables, overhead=Overhead(restart_s=0.0, charge="full"))
    out = run(paid, trace, Edf(), NODE)
    assert out.start_s.tolist() == [0.0, 60.0]
    assert out.end_s.tolist() == [pytest.approx(2 + 6 + 100), pytest.approx(60 + 8 + 10)]
    out = run(replace(paid, charge="none"), trace, Edf(), NODE)
    assert out.end_s.tolist() == [pytest.approx(100), pytest.approx(70)]


def test_a_declined_job_never_runs_and_counts(tmp_path: Path) -> None:
    rows = "a,0,300,net,150,8,4,1\nb,10,300,net,100,8,4,1\n"
    tables, trace = folder(tmp_path, rows)
    out = run(ElasticFlowPhysics(tables), trace, ElasticFlow(), NODE)
    assert out.refused.tolist() == [0, 1]
    assert out.end_s[0] <= 150.0
    assert out.end_s[1] == math.inf


# --- the published data ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.data
@needs_data
@pytest.mark.parametrize(
    ("policy", "published"),
    [
        (Edf(most="largest"), 0.436),
        (Tiresias(thresholds_gpu_s=(3250.0, 7200.0)), 0.466),
        (Gandiva(), 0.413),
        (ElasticFlow(), 0.910),
    ],
    ids=["edf", "tiresias", "gandiva", "elasticflow"],
)
def test_deadline_ratios_are_the_published_simulators(policy: Policy, published: float) -> None:
    """32 nodes of 8 A100, slots of 60 s; each pays what it pays there (docs/results/peers.md)."""
    physics = ElasticFlowPhysics(DATA / "throughputs" / "A100").charging(policy.name)
    out = run(physics, DATA / "traces" / "philly_103959.csv", policy, Cluster(32, 8))
    assert len(out.ids) == 876
    met = float(np.mean(out.end_s <= out.deadline_s))
    assert met == pytest.approx(published, abs=0.03)
    # Who is admitted is in time, overheads and all.
    if policy.name == "elasticflow":
        assert met == pytest.approx(1.0 - out.refused.mean())
