"""`tidegate submit job.yaml`: what a file says becomes one job, and what it should not is named."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.console.conftest import Run
from tests.console.test_operate import jobs, said

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jobs.md"
WHOLE = """
job: nightly
tenant: vision
command: [python3, train.py, --steps, 200, --rate, 0.5]
environment: {LEVEL: debug, THREADS: 1, HF_TOKEN: {secret: hub}}
workdir: /opt/work
sizes: 1..4
total_steps: 200
deadline: 2h
priority: 10
"""


def written(tmp_path: Path, text: str, name: str = "job.yaml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def test_a_file_says_all_that_a_job_is(tidegate: Run, log: Path, tmp_path: Path) -> None:
    ran = tidegate("submit", written(tmp_path, WHOLE), "--log", log)
    assert (ran.code, ran.out) == (0, "nightly\n"), ran.err
    (job,), (asked,) = jobs(log), said(log)
    assert (job.tenant, job.gpus_min, job.gpus_max, job.priority) == ("vision", 1, 4, 10)
    assert job.deadline_s == pytest.approx(asked.asked_s + 7200.0)
    assert job.program is not None
    assert job.program.argv == ["python3", "train.py", "--steps", "200", "--rate", "0.5"]
    assert job.program.env == {"LEVEL": "debug", "THREADS": "1"}
    assert job.program.secrets == {"HF_TOKEN": "hub"}
    assert job.program.workdir == "/opt/work"


SEVERAL = """
comand: [true]
program: {image: x, gpu: 3}
sizes: 4-8
deadline: soon
priority: high
environment: {DAY: 2026-01-01, LEVEL: debug}
total_steps: -5
"""


def test_all_that_is_wrong_with_a_file_is_said_at_once(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, SEVERAL)
    lines = tidegate.refuses("submit", file, "--log", log).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    fields = [re.split(r"[: ]", line.removeprefix(f"{file}: "))[0] for line in lines]
    assert fields == [
        "'comand'", "'program.gpu'", "sizes", "environment.DAY", "total_steps", "priority",
        "deadline",
    ]  # fmt: skip


def test_all_values_that_no_field_can_have_are_said_at_once(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, "command: [a]\npriority: high\ntotal_steps: -5\ndeadline: soon\n")
    lines = tidegate.refuses("submit", file, "--log", log).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["total_steps", "priority", str(file)]
    flags = ("--steps", "-5", "--priority", "5000", "--rate", "1=1", "--deadline", "soon")
    said = tidegate.refuses("submit", *flags, "--log", log)
    assert [line.partition(" ")[0] for line in said.splitlines()] == [
        "--steps", "--priority", "--deadline:",
    ]  # fmt: skip


def test_the_file_of_the_page_is_taken_and_flags_go_before_it(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    block, *_ = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    file = written(tmp_path, block, "job.yml")
    ran = tidegate("submit", "--gpus", "2", "--job", "mine", file, "--log", log)
    assert ran.code == 0, ran.err
    (job,) = jobs(log)
    assert (job.job, job.gpus_min, job.gpus_max, job.total_steps) == ("mine", 2, 2, 200)


def test_a_line_for_the_shell_and_json_in_short(tidegate: Run, log: Path, tmp_path: Path) -> None:
    line = written(tmp_path, "command: make | tee out\n")
    short = '{"command": ["true"], "sizes": "2..3", "deadline": "1h"}'
    for file in (line, written(tmp_path, short, "job.json")):
        ran = tidegate("submit", file, "--log", log)
        assert ran.code == 0, ran.err
    one, other = jobs(log)
    assert one.program is not None
    assert one.program.argv == ["sh", "-c", "make | tee out"]
    assert (other.gpus_min, other.gpus_max) == (2, 3)


def test_a_number_that_is_a_text_stays_as_it_is_written(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    text = """
job: 007
command: [python3, train.py, --at, 12:30:00, --rate, 1.0e-3, --run, 0123]
environment: {VERSION: 3.10, BIG: 1_000}
total_steps: 1_000
samples_per_step: 1.50
"""
    ran = tidegate.does("submit", written(tmp_path, text), "--log", log)
    (job,) = jobs(log)
    assert (ran.out, job.total_steps, job.samples_per_step) == ("007\n", 1000, 1.5)
    assert job.program is not None
    assert job.program.argv[3::2] == ["12:30:00", "1.0e-3", "0123"]
    assert job.program.env == {"VERSION": "3.10", "BIG": "1_000"}


def test_a_number_with_an_exponent_needs_no_point_and_no_sign(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    text = """
job: 1e6
command: [python3, train.py, --rate, 5e-3]
environment: {LIMIT: 1E6, NAME: 1e6x}
tenant: 1e5
total_steps: 1E6
checkpoint_cost_s: 5e-3
samples_per_step: .5e1
"""
    ran = tidegate.does("submit", written(tmp_path, text), "--log", log)
    (job,) = jobs(log)
    assert (ran.out, job.total_steps) == ("1e6\n", 1_000_000)
    assert (job.checkpoint_cost_s, job.samples_per_step) == (0.005, 5.0)
    assert job.program is not None
    assert (job.program.argv[-1], job.tenant) == ("5e-3", "1e5"), "texts stay so"
    assert job.program.env == {"LIMIT": "1E6", "NAME": "1e6x"}
    for steps in ("1.5e0", "1e999", "15e-1"):
        said = tidegate.refuses("submit", written(tmp_path, f"command: [a]\ntotal_steps: {steps}"))
        assert "total_steps: should be a valid integer" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: [true]", "command[0]: is read as True, and must be a text; put quotes"),
        ("command: [a]\nenvironment: {DAY: 2026-01-01}", "environment.DAY: is read as"),
        ("command: [a]\nenvironment: {NO: 1}", "environment.False: the name is read as False, and"),
        ("command: [a]\nenvironment: {A: {secrets: b}}", "environment.A: must be a text, or {se"),
        ("command: [a]\nenvironment: [A]", "environment: must have variables"),
        ("command: [a]\ncommand: [b]", "line 2, column 1: 'command' is said twice"),
        ("command: [a", "line 1"),
        ("command: {a: b}", "command: must be a list of words"),
        ("command: [a]\nsizes: 4-8", "sizes: '4-8' is no size; write 4, or 1..8"),
        ("command: [a]\nsizes: 4\ngpus_min: 2", "gpus_min: is said by sizes, too"),
        ("command: [a]\nprogram: {argv: [b]}", "program.argv: is said twice"),
        ("workdir: /x", "command: is missing"),
        ("command: [a]\ndeadline: soon", "deadline: 'soon' is no length of time"),
        ("command: [a]\ndeadline: 7200", "deadline: 7200 has no unit; say 7200s, 7200m or 7200h."),
        ("comand: [a]", "'comand' is no field of a job; did you mean command?"),
        ("- command", "holds no fields of a job"),
        ("? [command]\n: [a]", "line 1, column 3: found unhashable key"),
        ("command: !!python/object/apply:os.system [a]", "line 1, column 10: *aliases and !tags"),
        ("command: &it [a]\nenvironment: *it", "line 2, column 14: *aliases and !tags are not"),
        (f"priority: {'0x' + 'f' * 5000}", "line 1, column 11: this number is too large"),
        ("program: {1: a, b: c}", "'program.1' is no field of a job"),
        (f"priority: {'59:' * 900}0.5", "int too large to convert to float"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    tidegate: Run, log: Path, tmp_path: Path, text: str, words: str
) -> None:
    ran = tidegate("submit", written(tmp_path, text), "--log", log)
    assert ran.code == 2
    assert "job.yaml" in ran.err
    assert words in ran.err


def test_a_wrong_size_is_named_where_speeds_are_guessed_by_sizes(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    for size, words in (
        ("gpus_min: many", "valid integer"),
        ("sizes: 99999", "equal to 65536"),
        ("sizes: 0", "or equal to 1"),
    ):
        file = written(tmp_path, f"command: [a]\n{size}")
        said = tidegate.refuses("submit", file, "--log", log)
        assert (said.startswith("gpus_min: "), words in said) == (True, True), said
        assert "rates" not in said


def test_of_submits_with_one_key_all_ask_for_the_same(tidegate: Run, log: Path) -> None:
    given = ("submit", "--key", "dag-17", "--log", log, "--", "true")
    first, second = tidegate(*given), tidegate(*given)
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    assert [one.id for one in said(log)] == ["dag-17", "dag-17"]
    assert tidegate("submit", "--key", "a b", "--log", log, "--", "true").code == 2


def coded(tmp_path: Path) -> tuple[Path, str]:
    """Make a folder of code; give it, and the address of a store for it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    return tmp_path / "code", f"file://{tmp_path}/store"


def test_a_folder_of_code_is_stored_once_and_named_by_its_digest(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    folder, store = coded(tmp_path)
    file = written(tmp_path, "command: [python3, train.py]\ncode: ./code\n")
    flags = ("submit", "--code-store", store, "--log", log)
    first = tidegate.does(*flags, file)
    again = tidegate.does(*flags, "--code", folder, "--", "python3", "train.py")
    (stored,) = (tmp_path / "store").iterdir()
    digest = hashlib.sha256(stored.read_bytes()).hexdigest()
    assert "is now at" in first.err
    assert "was there already" in again.err
    for job in jobs(log):
        assert job.program is not None
        assert job.program.code == f"{store}/{digest}.tar.gz"
        assert job.program.code_sha256 == digest


def test_code_may_lie_somewhere_already(tidegate: Run, log: Path, tmp_path: Path) -> None:
    text = f"command: [a]\ncode: s3://bucket/a.zip\ncode_sha256: {'ab' * 32}\n"
    tidegate.does("submit", written(tmp_path, text), "--log", log)
    tidegate.does("submit", "--code", "s3://b/b.zip", written(tmp_path, text), "--log", log)
    one, other = (job.program for job in jobs(log))
    assert one is not None and other is not None  # noqa: PT018
    assert (one.code, one.code_sha256) == ("s3://bucket/a.zip", "ab" * 32)
    assert (other.code, other.code_sha256) == ("s3://b/b.zip", None)


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        ("command: [a]\ncode: ./code", (), "--code-store is missing"),
        ("command: [a]\ncode: ./none", (), "none: is no folder"),
        ("command: [a]\ncode: s3://b/a b.zip", (), "code: must be the address of an archive"),
        ("command: [a]\ncode: s3://b/a.txt", (), "code: must end in .tar.gz, .tgz, .zip"),
        ("command: [a]\ncode: s3://b/a.zip\nworkdir: /x", (), "workdir: leave it out"),
        ("command: [a]\ncode_sha256: b", (), "code_sha256: must be 64 digits"),
        ("command: [a]\nenvironment: {1A: b}", (), "must be a variable's name"),
        ("command: [a]\ncode: [b]", (), "code: "),
        ("model: m\nrates: [{gpus: 1, samples_per_s: 2}]", ("--code", "c"), "program.code"),
    ],
)
def test_code_that_cannot_be_is_named(
    tidegate: Run, log: Path, tmp_path: Path, text: str, flags: tuple[str, ...], words: str
) -> None:
    coded(tmp_path)
    ran = tidegate("submit", *flags, written(tmp_path, text), "--log", log)
    assert ran.code == 2, ran
    assert words in ran.err
    assert not (tmp_path / "store").exists()


def test_a_folder_of_code_is_not_found_wrong_beside_what_is(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, "command: [a]\ncode: ./code\nsize: 4\n")
    (line,) = tidegate.refuses("submit", file, "--log", log).splitlines()
    assert "'size' is no field of a job; did you mean sizes?" in line


def test_code_that_a_flag_says_is_named_by_the_flag(tidegate: Run, log: Path) -> None:
    told = tidegate.refuses("submit", "--code", "s3://b/a b.zip", "--log", log, "--", "a")
    assert told.startswith("--code (program.code): must be the address of an archive")


def test_what_is_refused_or_only_tried_stores_nothing(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    folder, store = coded(tmp_path)
    known = tidegate.tells("jobs", "--all", "--log", log)["jobs"][0]["job"]
    flags = ("submit", "--code", folder, "--code-store", store, "--log", log, "--job", known)
    assert f"{known} exists already" in tidegate.refuses(*flags, "--", "true")
    assert not (tmp_path / "store").exists()
    tried = tidegate.does(*flags[:-1], "new", "--dry-run", "--", "true")
    assert "code_sha256: " in tried.out
    assert "Its code" not in tried.err
    assert not (tmp_path / "store").exists(), "nor does a dry run"
