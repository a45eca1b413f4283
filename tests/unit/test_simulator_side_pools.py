"""What owners need and report, and which nodes fail."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.public_data import DATA as PUBLIC
from scheduler.policies.interface import Kind
from simulator.csv_rows import WorkloadError
from simulator.layout import Layout
from simulator.physics.base import Cluster
from simulator.pools import Load, Owner, SimulatedPool
from simulator.requests import Serving, load_of_requests
from simulator.tides import pool_tide

DATA = PUBLIC / "inference"
INF = float("inf")


def load(*gpus: float, slot_s: float = 60.0, from_s: float = 0.0) -> Load:
    return Load(np.array(gpus, dtype=np.float64), slot_s, from_s)


@pytest.mark.parametrize(
    ("from_s", "to_s", "have", "needed", "short"),
    [
        (0.0, 60.0, 3.0, 120.0, 0.0),
        (10.0, 20.0, 1.5, 20.0, 5.0),
        (30.0, 150.0, 3.0, 2 * 30 + 5 * 60 + 1 * 30, 2 * 60.0),
        (150.0, 1000.0, 0.5, 850.0, 425.0),  # the last slot goes on
        (0.0, 180.0, 0.0, 60 * (2 + 5 + 1), 60 * (2 + 5 + 1)),
    ],
)
def test_integrals(from_s: float, to_s: float, have: float, needed: float, short: float) -> None:
    found = load(2, 5, 1).integrals(from_s, to_s, have, 10.0)
    assert found == pytest.approx((needed, short))


def test_what_nobody_could_have_does_not_count() -> None:
    assert load(2, 50).integrals(0.0, 120.0, 4.0, 8.0) == pytest.approx((600.0, 240.0))


def test_loads_from_elsewhere() -> None:
    tide = pool_tide(np.random.Generator(np.random.PCG64(1)), 64, 2.0)
    made = Load.of_tide(tide, from_s=-3600.0)
    assert made.at(0.0) == tide.gpus_needed(3600.0)
    day = load(1, 2, slot_s=120.0).scaled(3.0).repeated(500.0)
    assert (day.gpus.tolist(), day.slot_s) == ([3.0, 6.0, 3.0, 6.0, 3.0], 120.0)


def test_an_owner_misses_what_it_lent() -> None:
    owner = Owner("o", Kind.INFERENCE, np.arange(2), load(4, 12, 20), 16)
    owner.serve(16, 0.0)
    owner.serve(-8, 30.0)
    owner.serve(8, 90.0)
    owner.book(200.0)
    assert owner.short_gpu_s == (12 - 8) * 30.0
    assert owner.needed_gpu_s == 4 * 60 + 12 * 60 + 16 * 80


def test_pools_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="loads: serve has 0; give 1"):
        SimulatedPool("serve", Kind.INFERENCE, 2)
    with pytest.raises(ValueError, match="loads: edge has 1; give 3"):
        SimulatedPool("edge", Kind.EDGE, 3, loads=(load(1),))
    with pytest.raises(ValueError, match="speed"):
        SimulatedPool("v100", Kind.TRAINING, 2, speed=0.0)
    with pytest.raises(ValueError, match="gpus"):
        load(-1.0)
    shared = SimulatedPool("p", Kind.TRAINING, 2, agents=2)
    with pytest.raises(ValueError, match="agents of two of them have the same name"):
        Layout(Cluster(2, 4), (shared, SimulatedPool("p-0", Kind.TRAINING, 2)))
    with pytest.raises(ValueError, match="same name"):
        Layout(Cluster(2, 4), (SimulatedPool("train", Kind.TRAINING, 1),))


def test_sites_and_the_way_between_them() -> None:
    pools = (
        SimulatedPool("edge", Kind.EDGE, 2, 1, transfer_mib_per_s=50.0),
        SimulatedPool("serve", Kind.INFERENCE, 2, 4, transfer_mib_per_s=100.0, loads=(load(1),)),
    )
    layout = Layout(Cluster(1, 4, transfer_mib_per_s=200.0), pools)
    assert layout.ids == ("edge-000", "edge-001", "node-000", "serve-000", "serve-001")
    sites = [layout.site(((node, 1),)) for node in range(5)]
    assert sites == [3, 4, 0, 2, 2]
    assert [layout.pool_of(site) for site in sites] == [1, 1, 0, 2, 2]
    assert [layout.is_edge(site) for site in sites] == [True, True, False, False, False]
    assert layout.travel_s(100.0, 0, 2) == 1.0
    assert layout.travel_s(100.0, 3, 4) == 2.0


def test_requests_become_busy_gpus(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:00.0000000,100,0\n"  # 10 s
        "2023-11-16 18:17:50.0000000,0,400\n"  # 40 s, from 50 s on
    )
    found = load_of_requests(file, Serving(10.0, 10.0, 2))
    assert found.gpus.tolist() == pytest.approx([(10 + 10) / 60 / 2, 30 / 60 / 2])


def test_a_trace_with_bad_rows_names_them(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n2023-11-16 18:17:00,-1,1\n")
    with pytest.raises(WorkloadError, match=r"line 2, timestamp(?s:.*)line 3, contexttokens"):
        load_of_requests(file)
    file.write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:17:00,1\n")
    with pytest.raises(WorkloadError, match="no column generatedtokens"):
        load_of_requests(file)


def test_a_slip_in_a_date_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n"
        "2203-11-16 18:15:47,1,1\n2023-11-16 18:15:48,1,1\n"
    )
    with pytest.raises(WorkloadError, match=r"than 366 days; .* line 2, the last on line 3"):
        load_of_requests(path)


@pytest.mark.data
def test_the_published_trace_is_an_hour_of_a_few_gpus() -> None:
    file = DATA / "AzureLLMInferenceTrace_code.csv"
    if not file.exists():
        pytest.skip(f"{file.name} is not there")
    found = load_of_requests(file)
    assert 55 <= len(found.gpus) <= 65
    # All that is served: 8,819 requests, by tokens read and written.
    table = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(1, 2))
    busy_s = float((table[:, 0] / 8000 + table[:, 1] / 30).sum())
    assert float(found.gpus.sum()) * 60 * 16 == pytest.approx(busy_s)
