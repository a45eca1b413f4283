"""Reading workloads: the formats, what is refused and how it is named, and fitting to hours."""

import os
from pathlib import Path

import pytest

from schemas.events import JobSubmitted
from simulator.csv_rows import MAX_LINE_BYTES
from simulator.trace_formats import FORMATS
from simulator.workload import BadRow, WorkloadError, read_workload
from tests.composed import ROOT

EF_HEAD = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"
EF_ROW = "a,1000,600,resnet50,2500,128,2,1200"
PHILLY_HEAD = "job_id,submit_time,num_gpus,duration"
POLLUX_HEAD = "name,time,application,num_replicas,batch_size"


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "w.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(tmp_path: Path, text: str | bytes) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        read_workload(write(tmp_path, text))
    return caught.value


def bad_cell(tmp_path: Path, head: str, row: str) -> BadRow:
    error = refused(tmp_path, f"{head}\n{row}\n")
    assert error.count == 1, str(error)
    return error.bad[0]


# --- formats ------------------------------------------------------------------------------------


def test_elasticflow_row(tmp_path: Path) -> None:
    later = "b,1600,10,vgg16,1700,64,1,100"
    workload = read_workload(write(tmp_path, f"{EF_HEAD}\n{later}\n{EF_ROW}\n"))
    assert workload.source_format == "elasticflow"
    assert [job.submission.job for job in workload.jobs] == ["a", "b"]
    assert [job.at_s for job in workload.jobs] == [0.0, 600.0]
    job = workload.jobs[0]
    assert (job.deadline_after_s, job.gpus_asked) == (1500.0, 2)
    assert (job.submission.total_steps, job.submission.samples_per_step) == (600, 128.0)
    at_asked = next(p for p in job.submission.rates if p.gpus == 2)
    assert at_asked.samples_per_s == pytest.approx(600 * 128 / 1200)
    assert job.gpu_s == pytest.approx(2 * 1200)


def test_what_used_no_gpu_is_left_out_and_said(tmp_path: Path) -> None:
    head = "job_id,user,gpu_num,cpu_num,state,submit_time,duration,queue"
    rows = (
        "1,u,0,4,COMPLETED,2020-04-01 00:00:01,300,1",  # processors alone
        "2,u,8,32,COMPLETED,2020-04-01 00:00:03,3600,1",
        "3,u,1,4,FAILED,2020-04-01 00:10:03,0,1",  # never ran
    )
    workload = read_workload(write(tmp_path, "\n".join((head, *rows))))
    assert [job.submission.job for job in workload.jobs] == ["2"]
    assert "2 of 3 rows are left out: their jobs had no GPU, or ran for 0 s." in workload.notes
    assert "no training job" in str(refused(tmp_path, "\n".join((head, rows[0]))))


def test_older_elasticflow_columns_and_best_effort(tmp_path: Path) -> None:
    head = (
        "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,"
        "real_duration,duration,iteration,best_effort"
    )
    rows = "1,0,9,bert,inf,64,1,9,100,700,1\n2,5,9,bert,60,64,1,9,100,700,0"
    jobs = read_workload(write(tmp_path, f"{head}\n{rows}\n")).jobs
    assert [job.deadline_after_s for job in jobs] == [None, 55.0]
    assert [job.submission.total_steps for job in jobs] == [700, 700]
    notes = read_workload(tmp_path / "w.csv").notes
    assert "Columns not used: real_iteration, real_duration." in notes


def test_pollux_row_takes_the_tuned_run_without_profiles(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path, f"{POLLUX_HEAD}\nc-0,107,cifar10,12,4096\n"))
    assert workload.source_format == "pollux"
    assert workload.jobs[0].gpu_s / 12 == pytest.approx(573.0)
    assert any("Pollux jobs take as many samples" in note for note in workload.notes)


def test_deepboot_inference_rows_are_kept_apart(tmp_path: Path) -> None:
    text = (
        f"{POLLUX_HEAD},duration,num_task\n"
        "inference-1,19,infer-yolov3-1,1,1,5,7\n"
        "ncf-0,20,ncf,1,32768,4.0,-1\n"
    )
    workload = read_workload(write(tmp_path, text))
    assert [job.submission.job for job in workload.jobs] == ["ncf-0"]
    assert workload.services == ((-1.0, "infer-yolov3-1", 5.0),)
    assert any("1 inference rows are no training jobs" in note for note in workload.notes)


def test_philly_row_with_dates_and_tenant(tmp_path: Path) -> None:
    text = (
        "jobid,vc,submitted_time,gpus,duration,state\n"
        "application_1,vc-a,2017-10-03 06:21:04,4,3600,Killed\n"
        "application_2,vc-b,2017-10-03T07:21:04+00:00,1,60.5,Pass\n"
    )
    workload = read_workload(write(tmp_path, text))
    assert workload.source_format == "philly"
    assert [job.at_s for job in workload.jobs] == [0.0, 3600.0]
    assert [job.submission.tenant for job in workload.jobs] == ["vc-a", "vc-b"]
    assert workload.jobs[0].gpu_s == pytest.approx(4 * 3600)


def test_the_page_has_the_columns_that_are_read() -> None:
    lines = (ROOT / "docs" / "traces.md").read_text().splitlines()
    found = {
        name.strip(" `"): tuple(other.strip(" `") for other in others.split(",") if other.strip())
        for name, others in (line.split("|")[1:3] for line in lines if line.startswith("| `"))
    }
    by_name = {one.name: one for one in FORMATS}
    listed = {name: others for name, others in found.items() if " " not in name}
    assert listed == {**by_name["philly"].required, **by_name["philly"].optional}
    several = [name for name in found if " " in name]
    for kind, cell in zip(("elasticflow", "pollux"), several, strict=True):
        assert cell.split("`")[0].split() == list(by_name[kind].required)


def test_mark_crlf_and_blank_lines_are_fine(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + f"{PHILLY_HEAD}\r\n\r\na,0,1,60\r\n \r\n".encode()
    assert len(read_workload(write(tmp_path, text)).jobs) == 1


def test_unknown_header_lists_formats_and_what_they_lack(tmp_path: Path) -> None:
    text = str(refused(tmp_path, "job_id,when,num_gpus,duration\na,1,2,3\n"))
    assert "fits no known format" in text
    assert "philly: lacks submit_time/submission_time/submitted_time" in text
    assert "elasticflow: lacks submission_time/submit_time" in text
    assert "pollux: lacks name, time, application" in text


# --- bad rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("a,x,600,resnet50,2500,128,2,1200", "submission_time", "not a number"),
        ("a,nan,600,resnet50,2500,128,2,1200", "submission_time", "not a number"),
        ("a,1_0,600,resnet50,2500,128,2,1200", "submission_time", "not a number"),
        ("a,-5,600,resnet50,2500,128,2,1200", "submission_time", "at least 0"),
        ("a,1e11,600,resnet50,2500,128,2,1200", "submission_time", "at most"),
        ("a,1000,1.5,resnet50,2500,128,2,1200", "num_iteration", "whole number"),
        ("a,1000,600,resnet50,2500,128,0,1200", "num_gpu", "at least 1"),
        ("a,1000,600,resnet50,2500,128,2,0", "duration", "above 0"),
        ("a,1000,600,resnet50,2500,128,2,", "duration", "is blank"),
        ("a,1000,600,resnet50,999,128,2,1200", "deadline", "before the job's submission"),
        ("a,1000,600,resnet50,2500,0,2,1200", "batch_size", "at least 1"),
        ("a b,1000,600,resnet50,2500,128,2,1200", "job_id", "no spaces"),
        (",1000,600,resnet50,2500,128,2,1200", "job_id", "is blank"),
        ("a,1000,600,resnet50,2500,128,2,1e-300", "duration", "impossible job"),
        ("a,1000,600,resnet50,2500,128,2", "duration", "is missing"),
        ("a,1000,600,resnet50,2500,128,2,1200,7", "", "one cell too many"),
    ],
)
def test_bad_cell_is_named(tmp_path: Path, row: str, column: str, problem: str) -> None:
    bad = bad_cell(tmp_path, EF_HEAD, row)
    assert (bad.line, bad.column) == (2, column)
    assert problem in bad.problem


def test_column_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    head = EF_HEAD.replace("submission_time", "submit_time")
    assert bad_cell(tmp_path, head, EF_ROW.replace("1000", "x")).column == "submit_time"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'"a,0,1,60', "is not CSV"),
        (b"a\xff,0,1,60", "is not UTF-8 at byte 2"),
        (b"a,0,1,60\0", "NUL byte"),
        (b"a,0,1," + b"6" * MAX_LINE_BYTES, "longer than"),
    ],
)
def test_bad_line_is_named_and_spoils_no_other(tmp_path: Path, line: bytes, problem: str) -> None:
    text = PHILLY_HEAD.encode() + b"\n" + line + b"\nb,0,1,60\n"
    error = refused(tmp_path, text)
    assert [(bad.line, bad.column) for bad in error.bad] == [(2, "")]
    assert problem in error.bad[0].problem


@pytest.mark.parametrize("moment", ["Unknown", "2026-05-04", "08:00", "nan"])
def test_what_is_no_moment_is_told_what_one_looks_like(tmp_path: Path, moment: str) -> None:
    bad = bad_cell(tmp_path, PHILLY_HEAD, f"a,{moment},1,60")
    assert bad.problem == "is neither seconds nor a time like 2017-10-03 06:21:04"


def test_a_file_whose_rows_are_all_left_out_says_why(tmp_path: Path) -> None:
    text = str(refused(tmp_path, f"{PHILLY_HEAD}\na,0,0,60\nb,0,8,0\n"))
    assert "2 of 2 rows are left out: their jobs had no GPU, or ran for 0 s." in text


@pytest.mark.parametrize(
    "row",
    [
        "b,5,0,60,Unknown",  # no moment
        "b,5,0,60,2020-01-01 00:10:00",  # a date beside seconds
        "b,5,0,60,4",  # before its submission
        "b,Unknown,0,60,",
        "b,5,0,Unknown,",  # it has not ended
        "b,5,0.0,-1,",
        "b,5,Unknown,0,",
        "b c,5,1,0,",
        "a,5,1,0e0,",
    ],
)
def test_what_is_wrong_in_a_row_that_is_left_out_refuses_no_file(tmp_path: Path, row: str) -> None:
    workload = read_workload(write(tmp_path, f"{PHILLY_HEAD},deadline\na,0,1,60,90\n{row}\n"))
    assert [job.submission.job for job in workload.jobs] == ["a"]
    assert "1 of 2 rows are left out: their jobs had no GPU, or ran for 0 s." in workload.notes


def test_duplicate_id_names_the_first_line(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{PHILLY_HEAD}\na,0,1,60\na,1,1,60\n")
    assert str(error.bad[0]) == "line 3, job_id: 'a' is on line 2 too"


def test_dates_and_seconds_do_not_mix(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{PHILLY_HEAD}\na,2020-01-01 00:00:00,1,60\nb,5,1,60\n")
    assert (error.bad[0].line, error.bad[0].column) == (3, "submit_time")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a,5,1,60,2020-01-01 00:10:00", "is a date, but the submission seconds"),
        ("a,2020-01-01 00:00:00,1,60,600", "is seconds, but the submission a date"),
    ],
)
def test_a_deadline_is_a_moment_of_the_same_kind(tmp_path: Path, row: str, problem: str) -> None:
    bad = bad_cell(tmp_path, f"{PHILLY_HEAD},deadline", row)
    assert (bad.column, bad.problem) == ("deadline", problem)


@pytest.mark.parametrize(
    "when", ["2020-13-01 00:00:00", "1969-01-01 00:00:00", "9999-12-31 23:59:59", "12:30"]
)
def test_bad_dates(tmp_path: Path, when: str) -> None:
    assert bad_cell(tmp_path, PHILLY_HEAD, f"a,{when},1,60").column == "submit_time"


def test_every_bad_cell_is_listed_up_to_20_then_counted(tmp_path: Path) -> None:
    rows = "\n".join(f"j{n},0,x,60" for n in range(50))
    error = refused(tmp_path, f"{PHILLY_HEAD}\n{rows}\n")
    assert (len(error.bad), error.count) == (20, 50)
    assert "50 bad rows" in str(error)
    assert str(error).endswith("and 30 more")
    assert [bad.line for bad in error.bad] == list(range(2, 22))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (f"{PHILLY_HEAD}\n", "no rows"),
        ("job_id,job_id,submit_time\n1,2,3\n", "twice"),
        (b"\xff\xfe,b\n1,2\n", "header cannot be read"),
        ("name,time,application,num_replicas,batch_size,duration\ni,0,infer-x-1,1,1,5\n", "no tr"),
        (f"{POLLUX_HEAD}\na,0,alexnet,1,64\n", "is not one of bert, cifar10"),
    ],
)
def test_unusable_file(tmp_path: Path, text: str | bytes, says: str) -> None:
    assert says in str(refused(tmp_path, text))


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no such file"):
        read_workload(tmp_path / "absent.csv")
    with pytest.raises(WorkloadError, match="not a regular file"):
        read_workload(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WorkloadError, match="not a regular file"):
        read_workload(tmp_path / "pipe")
    with pytest.raises(WorkloadError, match=r"cannot be read|no such file"):
        read_workload(Path("nul\0byte"))


# --- times --------------------------------------------------------------------------------------


def philly(tmp_path: Path, times: list[float]) -> Path:
    rows = "\n".join(f"j{n},{at_s},1,60" for n, at_s in enumerate(times))
    return write(tmp_path, f"{PHILLY_HEAD}\n{rows}\n")


def test_submissions_have_absolute_deadlines(tmp_path: Path) -> None:
    later = "b,1600,10,vgg16,1700,64,1,100"
    workload = read_workload(write(tmp_path, f"{EF_HEAD}\n{EF_ROW}\n{later}\n"))
    (at_s, submission), (second_at_s, second) = workload.submissions(1e9)
    assert (at_s, submission.deadline_s) == (1e9, 1e9 + 1500.0)
    assert (second_at_s, second.deadline_s) == (1e9 + 600.0, 1e9 + 700.0)
    assert JobSubmitted.model_validate_json(submission.model_dump_json()) == submission


def test_fit_leaves_a_short_trace_whole(tmp_path: Path) -> None:
    workload = read_workload(philly(tmp_path, [0.0, 1000.0]))
    assert workload.fit(24.0) is workload
    with pytest.raises(WorkloadError, match="hours"):
        workload.fit(0.0)


def test_fit_picks_the_busiest_window_unchanged(tmp_path: Path) -> None:
    times = [n * 100_000.0 for n in range(10)] + [970_000.0 + n * 60.0 for n in range(30)]
    fitted = read_workload(philly(tmp_path, times)).fit(24.0)
    assert [job.at_s for job in fitted.jobs] == [n * 60.0 for n in range(30)]
    assert "the busiest 18 hours" in fitted.notes[-1]


def test_fit_takes_the_first_of_equal_windows(tmp_path: Path) -> None:
    times = [start + n for start in (0.0, 500_000.0) for n in range(25)]
    fitted = read_workload(philly(tmp_path, times)).fit(24.0)
    assert [job.submission.job for job in fitted.jobs] == [f"j{n}" for n in range(25)]


def test_fit_compresses_a_sparse_trace(tmp_path: Path) -> None:
    fitted = read_workload(philly(tmp_path, [n * 86_400.0 for n in range(30)])).fit(24.0)
    assert len(fitted.jobs) == 30
    assert fitted.span_s == pytest.approx(18 * 3600.0)
    assert "times as fast" in fitted.notes[-1]
