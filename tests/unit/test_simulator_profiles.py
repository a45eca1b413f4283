"""Throughput tables: what is read, what is refused, and the built-in curve."""

from pathlib import Path

import pytest

from simulator.csv_rows import WorkloadError
from simulator.pollux_profiles import APPS
from simulator.profiles import Profiles, RateTable, builtin_table, load_profiles, rate_table


def table_of(profiles: Profiles, model: str, batch: float) -> RateTable:
    found = profiles.find(model, batch)
    assert found is not None
    return found


def sizes(table_rates: object) -> list[int]:
    assert isinstance(table_rates, tuple)
    return [point.gpus for point in table_rates]


def test_elasticflow_table(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text(
        "global_batch_size,1,2,4,8,16\n64,1.0,1.8,1.7,0,nan\n128,,1,,,"
    )
    profiles = load_profiles(tmp_path)
    small, large = table_of(profiles, "net", 64), table_of(profiles, "net", 128.0)
    assert [(p.gpus, p.samples_per_s) for p in small.rates] == [
        (1, 64.0),
        (2, pytest.approx(115.2)),
        (4, pytest.approx(108.8)),
    ]
    assert (small.gpus_min, small.gpus_max) == (1, 2)
    assert (large.gpus_min, large.gpus_max) == (2, 2)
    assert profiles.find("net", 64.5) is None
    assert profiles.find("other", 64) is None


def test_batch_that_never_runs_has_no_table(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text("global_batch_size,1,2\n64,0,nan\n")
    assert load_profiles(tmp_path).find("net", 64) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("global_batch_size,1,2\n64,fast,1\n", "line 2, 1: 'fast' is not a number"),
        ("global_batch_size,1,2\n64,-1,1\n", "at least 0"),
        ("global_batch_size,1,2\n0,1,1\n", "line 2, global_batch_size"),
        ("batch,1,2\n64,1,1\n", "the header must be"),
        ("global_batch_size,one\n64,1\n", "the header must be"),
        ("", "is empty"),
        ("global_batch_size,1\n4000,1e6\n", "line 2, 1: '1e6' must be at most 250000"),
        (
            "global_batch_size,1\n64,1\n32,1\n64.0,2\n",
            "line 4, global_batch_size: '64.0' is on line 2 too",
        ),
    ],
)
def test_bad_table(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "net.csv").write_text(text)
    with pytest.raises(WorkloadError) as caught:
        load_profiles(tmp_path)
    assert says in str(caught.value)


def test_directory_without_tables_says_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no <model>\.csv"):
        load_profiles(tmp_path)
    (tmp_path / "T4").mkdir()
    (tmp_path / "T4" / "net.csv").write_text("global_batch_size,1\n64,1\n")
    with pytest.raises(WorkloadError, match="It has them in T4"):
        load_profiles(tmp_path)
    with pytest.raises(WorkloadError, match="not a directory"):
        load_profiles(tmp_path / "absent")


def test_largest_size_that_pays_is_the_smallest_best() -> None:
    table = rate_table("net", 8, [(1, 5.0), (2, 4.0), (4, 6.0), (8, 6.0)])
    assert table is not None
    assert (table.gpus_max, sizes(table.rates)) == (4, [1, 2, 4, 8])
    assert rate_table("net", 8, [(1, 0.0)]) is None


@pytest.mark.parametrize(
    ("model", "gpus", "expected", "gpus_max"),
    [
        ("unknown", 1, [1, 2, 4, 8, 16], 16),
        ("unknown", 6, [1, 2, 4, 6, 8, 16], 16),
        ("unknown", 64, [1, 2, 4, 8, 16, 32, 64, 128], 128),
        ("bert", 64, [1, 2, 4, 8, 16, 64], 64),
        ("ncf", 2, [1, 2], 1),
        ("unknown", 65_536, [1 << n for n in range(17)], 65_536),
    ],
)
def test_builtin_curve(model: str, gpus: int, expected: list[int], gpus_max: int) -> None:
    table = builtin_table(model, 64, gpus, 100.0)
    assert sizes(table.rates) == expected
    assert table.gpus_max == gpus_max
    assert {p.gpus: p.samples_per_s for p in table.rates}[gpus] == 100.0
    per_gpu = [p.samples_per_s / p.gpus for p in table.rates]
    assert per_gpu == sorted(per_gpu, reverse=True)


def pollux_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "yolov3"
    folder.mkdir()
    (folder / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n"
        "1,4,0.2,0\n1,8,0.4,0\n2,4,0.3,0.1\n2,8,0.5,0.1\n11,8,9,8\n4,4,0.3,0.1\n4,8,0.5,0.1\n"
    )
    (folder / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,8,4,0.6,0.3\n2,8,8,0.8,0.3\n"
    )
    rows = "\n".join(f"{epoch * 10},{epoch * 2}" for epoch in range(1, 61))
    (folder / "validation-32.csv").write_text(f"progress,iteration\n{rows}\n")
    return tmp_path


def test_pollux_profiles_by_hand(tmp_path: Path) -> None:
    profiles = load_profiles(pollux_folder(tmp_path))
    rates = {p.gpus: 32 / p.samples_per_s for p in table_of(profiles, "yolov3", 32).rates}
    # 1 GPU: 4 passes of 8. 2 GPUs in one node, not the spread placement: 2 passes of 8.
    assert rates == {
        1: pytest.approx(1.6),
        2: pytest.approx(0.5 + 0.4),
        4: pytest.approx(0.5),
        8: pytest.approx(0.6),
    }
    # 50 epochs, so progress 500, which takes 100 real iterations.
    assert profiles.steps["yolov3", 32] == 2 * APPS["yolov3"].epochs


def test_one_gpu_above_the_initial_batch_accumulates_twice(tmp_path: Path) -> None:
    folder = tmp_path / "deepspeech2"  # initial batch 20, at most 80 on one GPU
    folder.mkdir()
    (folder / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,10,0.2,0\n1,40,0.5,0\n2,20,0.4,0.1\n"
    )
    (folder / "validation-20.csv").write_text("progress,iteration\n10,10\n")
    (folder / "validation-40.csv").write_text("progress,iteration\n10,6\n")
    profiles = load_profiles(tmp_path)
    small, large = (table_of(profiles, "deepspeech2", batch) for batch in (20, 40))
    assert 20 / small.rates[0].samples_per_s == pytest.approx(0.3)
    assert [40 / p.samples_per_s for p in large.rates] == [
        pytest.approx(0.6),
        pytest.approx(0.4),
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("placements.csv", "placement,local_bsz\n1,4\n", "has no column step_time, sync_time"),
        (
            "placements.csv",
            "placement,local_bsz,step_time,sync_time\n-1,4,x,0\n",
            "line 2, placement: '-1' must be at least 1",
        ),
        ("validation-32.csv", "", "is empty"),
        ("validation-32.csv", None, "no validation"),
    ],
)
def test_bad_pollux_profile(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    file = pollux_folder(tmp_path) / "yolov3" / name
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        load_profiles(tmp_path)
    assert says in str(caught.value)
