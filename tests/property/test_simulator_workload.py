"""Whatever is in a file, reading it gives jobs or a WorkloadError that says where."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from schemas.events import JobSubmitted
from simulator.csv_rows import LISTED
from simulator.generate import Demand, generate
from simulator.profiles import load_profiles
from simulator.tides import pool_tide
from simulator.trace_formats import FORMATS
from simulator.workload import Workload, WorkloadError, read_workload

HEADERS = ["job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"]
HEADERS += ["name,time,application,num_replicas,batch_size,duration,num_task"]
HEADERS += ["job_id,submit_time,num_gpus,duration,vc,user,model,deadline"]
CELLS = st.one_of(
    st.integers(-3, 10**20).map(str),
    st.floats().map(repr),
    st.sampled_from(["", "bert", "ncf", "infer-x-1", "2020-01-01 00:00:00", "0001-01-01 0:0:0+9"]),
    st.text(max_size=12),
)


def read(data: bytes) -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.csv"
        path.write_bytes(data)
        return read_workload(path)


def check(data: bytes) -> None:
    """It is read, or refused in words."""
    try:
        workload = read(data)
    except WorkloadError:
        return
    for _, submission in workload.submissions(1.7e9):
        assert JobSubmitted.model_validate_json(submission.model_dump_json()) == submission
    assert workload.jobs[0].at_s == 0.0


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    check(data)


@given(st.sampled_from(HEADERS), st.binary(max_size=300))
@example(HEADERS[2], b"a,0001-01-01 00:00:00+23:59,1,1,,,,\n")
def test_any_bytes_after_a_good_header(header: str, data: bytes) -> None:
    check(header.encode() + b"\n" + data)


@given(st.sampled_from(HEADERS), st.lists(st.lists(CELLS, min_size=6, max_size=9), max_size=6))
def test_any_cells(header: str, rows: list[list[str]]) -> None:
    width = header.count(",") + 1
    text = "\n".join(",".join(row[: width + 1]) for row in rows)
    check(f"{header}\n{text}\n".encode("utf-8", "surrogatepass"))


@given(
    st.lists(st.one_of(st.just(None), st.sampled_from(range(1, 7))), min_size=1, max_size=40),
    st.data(),
)
def test_good_rows_survive_and_bad_ones_are_named(
    spoilt: list[int | None], data: st.DataObject
) -> None:
    columns = HEADERS[0].split(",")
    lines = [HEADERS[0]]
    expected = []
    for number, column in enumerate(spoilt):
        cells = [f"job-{number}", f"{number}", "10", "bert", f"{number + 5}", "64", "2", "30"]
        if column is not None and columns[column] != "model_name":
            cells[column] = data.draw(st.sampled_from(["", "x", "NaN", "-1", "inf", "1e400", "٣"]))
            expected.append((number + 2, columns[column]))
        lines.append(",".join(cells))
    text = "\n".join(lines).encode()
    if not expected:
        assert len(read(text).jobs) == len(spoilt)
        return
    with pytest.raises(WorkloadError) as caught:
        read(text)
    named = {(bad.line, bad.column) for bad in caught.value.bad}
    assert named <= set(expected)
    assert (len(named), caught.value.count) == (min(LISTED, len(expected)), len(expected))


@given(st.lists(st.sampled_from([f for kind in FORMATS for f in kind.required]), unique=True))
def test_a_header_is_known_only_with_all_of_a_formats_columns(columns: list[str]) -> None:
    whole = any(not kind.missing(tuple(columns)) for kind in FORMATS)
    with pytest.raises(WorkloadError) as caught:
        read((",".join(columns) + "\n" + ",".join("?" * len(columns)) + "\n").encode())
    assert ("fits no known format" in str(caught.value)) != whole or not columns


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_as_a_throughput_table(data: bytes, has_header: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.csv").write_bytes((b"global_batch_size,1,2\n" * has_header) + data)
        try:
            profiles = load_profiles(Path(folder))
        except WorkloadError as error:
            if "net.csv" not in str(error):
                raise
            return
        for table in profiles.tables.values():
            assert table.gpus_min <= table.gpus_max


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=60), st.floats(0.1, 100.0))
def test_fit_never_alters_work_and_ends_in_time(times: list[float], hours: float) -> None:
    rows = "\n".join(f"j{n},{at_s!r},1,{60 + n}" for n, at_s in enumerate(times))
    whole = read(f"job_id,submit_time,num_gpus,duration\n{rows}\n".encode())
    fitted = whole.fit(hours)
    work = {job.submission.job: job.submission for job in whole.jobs}
    assert fitted.jobs
    assert fitted.span_s <= hours * 3600.0 * 0.75 * (1 + 1e-9)
    assert all(job.submission == work[job.submission.job] for job in fitted.jobs)
    changed = [j.at_s for j in fitted.jobs] != [j.at_s for j in whole.jobs]
    assert changed == (len(fitted.notes) > len(whole.notes)) or whole.span_s == 0.0


@given(st.integers(0, 2**63), st.floats(0.1, 12.0), st.integers(1, 64))
def test_generated_jobs_are_valid(seed: int, hours: float, gpus: int) -> None:
    workload = generate(seed, Demand(hours, gpus))
    assert workload == generate(seed, Demand(hours, gpus))
    assert all(0.0 <= job.at_s <= hours * 3600.0 for job in workload.jobs)
    assert all(job.gpus_asked <= gpus for job in workload.jobs)
    for _, submission in workload.submissions(1.7e9):
        assert JobSubmitted.model_validate_json(submission.model_dump_json()) == submission


@given(st.integers(0, 2**63), st.integers(1, 500), st.floats(0.1, 200.0), st.floats(0, 167.0))
def test_tides_stay_within_the_capacity(seed: int, gpus: int, hours: float, start: float) -> None:
    tide = pool_tide(np.random.Generator(np.random.PCG64(seed)), gpus, hours, start)
    assert tide.needed.min() >= 0
    assert tide.needed.max() <= gpus
    assert bool((tide.load <= tide.needed + 0.01).all())
