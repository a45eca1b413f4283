"""`tidegate submit` and `cancel`: what they put on the log, and what they refuse."""

import asyncio
import io
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from console.reading import ask_log, read_bus
from scheduler.core.state import ClusterState
from scheduler.dedupe import Dedupe
from scheduler.intake import Intake
from schemas.events import JobSubmitted
from schemas.requests import CancelJob, Request, SubmitJob
from schemas.topics import REQUESTS
from tests.console.conftest import Run
from tests.console.stories import Teller

GOOD = ("--steps", "1000", "--rate", "1=120,2=220,4=400")


def said(log: Path) -> list[Request]:
    async def run() -> list[Request]:
        bus = SqliteBus.open_readonly(log, SystemClock())
        records = [record async for record in bus.read(REQUESTS.name)]
        await bus.close()
        # What the scheduler itself makes of them: nothing may end as a dead letter.
        batch = Intake("default", "test", Dedupe()).read(
            records, ClusterState(), records[-1].time_s
        )
        assert batch.dead == []
        return [envelope.data for _, envelope in batch.requests]

    return asyncio.run(run())


def jobs(log: Path) -> list[JobSubmitted]:
    """The jobs that were submitted."""
    return [one.args.spec for one in said(log) if isinstance(one.args, SubmitJob)]


def test_submit_by_flags_puts_one_event_in_the_logs_own_time(
    tidegate: Run, log: Path, told: Teller
) -> None:
    newest_s = ask_log(str(log), None, read_bus).newest_s
    ran = tidegate(
        "submit", *GOOD, "--job", "mine", "--model", "bert", "--gpus", "1..4",
        "--samples-per-step", "64", "--deadline", "2h", "--memory-mib", "4096",
        "--priority", "5", "--no-edge", "--tenant", "me", "--log", log,
    )  # fmt: skip
    assert (ran.code, ran.out, ran.err) == (0, "mine\n", f"Submitted to {log}.\n")
    (asked,), (job,) = said(log), jobs(log)
    assert asked.asked_s == pytest.approx(newest_s, abs=1e-3)
    assert abs(newest_s - told.now_s) < 1.0
    assert (asked.role, asked.via, asked.cell) == ("operator", "cli", "default")
    assert (job.tenant, job.model, job.gpus_min, job.gpus_max) == ("me", "bert", 1, 4)
    assert (job.priority, job.memory_mib, job.edge_allowed) == (5, 4096, False)
    assert job.samples_per_step == pytest.approx(64.0)
    assert [(p.gpus, p.samples_per_s) for p in job.rates] == [(1, 120.0), (2, 220.0), (4, 400.0)]
    assert job.deadline_s == pytest.approx(newest_s + 7200.0)


def test_two_submissions_are_two_requests_with_ids_of_their_own(tidegate: Run, log: Path) -> None:
    first = tidegate("submit", *GOOD, "--log", log).out.strip()
    second = tidegate("submit", *GOOD, "--log", log).out.strip()
    assert first != second
    assert len({asked.id for asked in said(log)}) == 2
    # Without --gpus, the sizes are those that have a rate.
    job = jobs(log)[0]
    assert (job.gpus_min, job.gpus_max) == (1, 4)


DOCUMENT: dict[str, Any] = {
    "job": "from-file",
    "tenant": "t",
    "model": "m",
    "gpus_min": 1,
    "gpus_max": 2,
    "total_steps": 10,
    "samples_per_step": 1.0,
    "rates": [{"gpus": 1, "samples_per_s": 1.0}],
}


def test_submit_from_a_file_and_from_standard_input(
    tidegate: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(DOCUMENT))
    assert tidegate("submit", path, "--log", log).out == "from-file\n"
    piped = SimpleNamespace(buffer=io.BytesIO(json.dumps(DOCUMENT).encode()))
    monkeypatch.setattr("sys.stdin", piped)
    ran = tidegate("submit", "-", "--job", "piped", "--priority", "3", "--log", log)
    assert ran.out == "piped\n"
    found = jobs(log)
    assert [job.job for job in found] == ["from-file", "piped"]
    assert found[1].priority == 3


@pytest.mark.parametrize(
    ("flags", "starts"),
    [
        ((), "Nothing says what runs: give a command after --"),
        (("--steps", "10"), "Nothing says what runs: give a command after --"),
        ((*GOOD, "--gpus", "eight"), "--gpus: 'eight' is no size"),
        ((*GOOD, "--gpus", "8..1"), "--gpus (gpus_max): must be at least gpus_min"),
        ((*GOOD, "--gpus", "0"), "--gpus: 0 is out of range; sizes go from 1 to 65536."),
        (("--gpus", "0", "--", "true"), "--gpus: 0 is out of range; sizes go from 1 to 65536."),
        (("--gpus", "1..65537", "--", "true"), "--gpus: 65537 is out of range"),
        (("--steps", "10", "--rate", "1:5"), "--rate: '1:5' is no rate"),
        (("--steps", "10", "--rate", "1=-5"), "--rate (rates[0].samples_per_s): "),
        (("--steps", "10", "--rate", "1=nan"), "--rate (rates[0].samples_per_s): "),
        ((*GOOD, "--deadline", "soon"), "--deadline: 'soon' is no length of time"),
        ((*GOOD, "--deadline", "0s"), "--deadline: '0s' is not between"),
        ((*GOOD, "--deadline", "2"), "--deadline: 2 has no unit; say 2s, 2m or 2h."),
        ((*GOOD, "--job", "a b"), "--job (job): "),
        ((*GOOD, "--priority", "9999"), "--priority (priority): "),
        ((*GOOD, "--job", "mover"), "--job: mover exists already (running)"),
        ((*GOOD, "--memory-mib", "-1"), "--memory-mib (memory_mib): "),
        (("--workdir", "rel", "--", "a"), "--workdir: rel is relative, and it is a folder of"),
        (("--workdir", "../a b", "--", "a"), "--workdir: ../a b is relative"),
    ],
)
def test_what_is_wrong_is_said_with_its_flag(
    tidegate: Run, log: Path, flags: tuple[str, ...], starts: str
) -> None:
    before = log.read_bytes()
    why = tidegate.refuses("submit", *flags, "--log", log)
    assert why.startswith(starts), why
    assert why.count("\n") == 1
    assert log.read_bytes() == before, "a refused job must leave no trace"


def test_a_relative_workdir_is_refused_with_the_path_that_may_be_meant(
    tidegate: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the folder in which an agent happens to run, it would be anywhere."""
    monkeypatch.chdir(tmp_path)
    told = tidegate.refuses("submit", "--workdir", "src", "--log", log, "--", "true")
    assert told.endswith(f"--workdir {tmp_path}/src\n")
    # No shell replaces `~` in --workdir=~/src, nor anything in quotation marks.
    monkeypatch.setenv("HOME", str(tmp_path))
    for home in ("~", "$HOME", "${HOME}"):
        told = tidegate.refuses("submit", f"--workdir={home}/src", "--log", log, "--", "true")
        assert told.endswith(f"--workdir {tmp_path}/src\n")
    file = tmp_path / "job.yaml"
    file.write_text("command: [a]\nworkdir: src\nsize: 4\n")
    told = tidegate.refuses("submit", file, "--log", log)
    where = "program.workdir: 'src' is relative, and must be a whole path of the agent's machine"
    assert where in told and "'size' is no field" in told  # noqa: PT018
    file.write_text("command: [a]\nworkdir: src\n")
    assert tidegate.refuses("submit", file, "--log", log).startswith(where)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "is empty"),
        ("[]", "must be a JSON object"),
        ("{", "is not JSON"),
        ('{"job": "a", "job": "b"}', "occurs twice"),
        (json.dumps({**DOCUMENT, "gpu": 3}), "'gpu' is no field of a job; did you mean gpus?"),
        (json.dumps({**DOCUMENT, "steps": 3}), "did you mean total_steps? docs/jobs.md has"),
        (json.dumps({**DOCUMENT, "saves": "on_signal"}), "did you mean program.saves?"),
        (
            json.dumps({**DOCUMENT, "program": {"argv": ["a"], "resise": "in_place"}}),
            "'program.resise' is no field of a job; did you mean program.resize?",
        ),
        (json.dumps({**DOCUMENT, "zzz": 3}), "'zzz' is no field of a job; docs/jobs.md has"),
        (json.dumps({**DOCUMENT, "total_steps": "ten"}), "total_steps: "),
        (json.dumps({**DOCUMENT, "rates": []}), "rates: "),
        (json.dumps({**DOCUMENT, "rates": 7}), "rates: "),
        (json.dumps({**DOCUMENT, "rates": [1]}), "rates[0]: "),
    ],
)
def test_a_bad_file_is_said_with_its_field(
    tidegate: Run, log: Path, tmp_path: Path, content: str, part: str
) -> None:
    path = tmp_path / "job.json"
    path.write_text(content)
    assert part in tidegate.refuses("submit", path, "--log", log)
    assert "none.json" in tidegate.refuses("submit", tmp_path / "none.json", "--log", log)


def test_cancel_asks_for_it_and_refuses_what_makes_no_sense(tidegate: Run, log: Path) -> None:
    ran = tidegate.does("cancel", "waiter", "--reason", "not needed", "--log", log)
    assert str(log) in ran.out
    (asked,) = said(log)
    assert (asked.args, asked.reason) == (CancelJob(job="waiter"), "not needed")
    assert "nobody: no such job" in tidegate.refuses("cancel", "nobody", "--log", log)
    ran = tidegate("cancel", "done", "--log", log)
    assert (ran.code, ran.err) == (1, "done is completed: it can be cancelled no more.\n")
    why = tidegate.refuses("cancel", "mover", "--reason", "x" * 2000, "--log", log)
    assert why.startswith("--reason")


def test_without_a_scheduler_one_is_told_so(tidegate: Run, tmp_path: Path) -> None:
    path = tmp_path / "off.db"
    Teller().write(path, online=False)
    ran = tidegate.does("submit", *GOOD, "--log", path)
    assert "The demo of this log has ended or stopped" in ran.err
    assert f"tidegate demo --log {path}" in ran.err


def test_programs_are_told_where_it_was_put(tidegate: Run, log: Path) -> None:
    put = {"log": str(log), "scheduler_online": True}
    sent = tidegate("submit", *GOOD, "--job", "mine", "--log", log, "--json", "-")
    assert (json.loads(sent.out), sent.err) == ({"job": "mine", **put}, "")
    gone = tidegate("cancel", "waiter", "--log", log, "--json", "-")
    assert (json.loads(gone.out), gone.err) == ({"job": "waiter", **put}, "")


def test_a_command_is_submitted_as_it_was_written(tidegate: Run, log: Path) -> None:
    ran = tidegate.does(
        "submit", "--job", "cmd", "--gpus", "1..4", "--workdir", "/srv", "--log", log,
        "--json", "-", "--", "python", "train.py", "--gpus", "x y",
    )  # fmt: skip
    assert "how long it takes is guessed as it runs" in ran.err
    assert "deadline" not in ran.err
    (job,) = jobs(log)
    assert job.program is not None
    assert job.program.argv == ["python", "train.py", "--gpus", "x y"]
    assert job.program.workdir == "/srv"
    assert job.total_steps is None
    assert [(point.gpus, point.samples_per_s) for point in job.rates] == [(1, 1), (2, 2), (4, 4)]


def test_what_is_allowed_and_rarely_meant_is_told(
    tidegate: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    ran = tidegate.does("submit", "--gpus", "64", "--log", log, "--", "python", "train.py")
    assert "until a site has 64 GPUs" in ran.err
    assert '--workdir "$PWD"' in ran.err
    there = ("--gpus", "1", "--workdir", tmp_path, "--log", log, "--", "python", "train.py")
    ran = tidegate.does("submit", *there)
    assert "until a site" not in ran.err
    assert "--workdir" not in ran.err
    ran = tidegate("submit", "--gpus", "1", "--log", log, "--", "sleep 5; echo x")
    assert ran.code == 2
    assert "sh -c 'sleep 5; echo x'" in ran.err


@pytest.mark.parametrize(
    ("flags", "resize", "saves"),
    [
        ((), "restart", "by_itself"),
        (("--in-place",), "in_place", "by_itself"),
        (("--saves-on-signal",), "restart", "on_signal"),
        (("--in-place", "--saves-on-signal"), "in_place", "on_signal"),
    ],
)
def test_a_command_says_by_flags_what_else_it_can_do(
    tidegate: Run, log: Path, flags: tuple[str, ...], resize: str, saves: str
) -> None:
    tidegate.does("submit", *GOOD, *flags, "--log", log, "--", "train", "--in-place")
    job = jobs(log)[0]
    assert job.program is not None
    assert (job.program.resize, job.program.saves) == (resize, saves)
    assert job.program.argv == ["train", "--in-place"]


def test_the_command_of_the_page_about_jobs_is_taken(tidegate: Run, log: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "jobs.md"
    found = re.search(r"tidegate (submit --gpus(?:.*\\\n)*.*)", page.read_text(encoding="utf-8"))
    assert found is not None
    words = shlex.split(found[1].replace("/srv/tidegate/bus.db", str(log)))
    assert tidegate(*words).code == 0
    job = jobs(log)[0]
    assert job.program is not None
    assert (job.program.resize, job.program.saves) == ("in_place", "on_signal")


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--workdir", "/srv"), "workdir"),
        (("--in-place",), "resize"),
        (("--saves-on-signal",), "saves"),
    ],
)
def test_what_only_a_command_can_have_is_refused_without_one(
    tidegate: Run, log: Path, tmp_path: Path, flags: tuple[str, ...], field: str
) -> None:
    before = log.read_bytes()
    ran = tidegate("submit", *GOOD, *flags, "--log", log)
    assert (ran.code, ran.err) == (2, f"{flags[0]}: goes with a command; put it after --.\n")
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**DOCUMENT, "program": {"argv": ["true"]}}))
    why = tidegate.refuses("submit", path, *flags, "--log", log)
    assert why == f"{flags[0]}: goes with a command; in a job's file it is program.{field}.\n"
    assert log.read_bytes() == before


@pytest.mark.parametrize("words", ["{}", json.dumps(DOCUMENT), ' {"job": "a"}'])
def test_a_job_as_json_is_not_taken_for_a_command(tidegate: Run, log: Path, words: str) -> None:
    before = log.read_bytes()
    why = tidegate.refuses("submit", words, "--log", log)
    assert why.startswith("The job as JSON goes into a file whose name ends in .json")
    assert log.read_bytes() == before


@pytest.mark.parametrize("name", ["job.jsn", "job.JSON", "job.jsonl", "job"])
def test_a_file_that_is_named_badly_is_not_taken_for_a_command(
    tidegate: Run, log: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name == "job":  # known by what is in it; the others by their name, there or not
        path.write_text(json.dumps(DOCUMENT))
    before = log.read_bytes()
    why = tidegate.refuses("submit", path, "--log", log)
    assert why.startswith(f"{path}: looks like the file of a job, but those end in .json or .yaml;")
    assert log.read_bytes() == before
    # What the sentence says for a command does work; so do other commands of one word.
    for words in (("env", path), (tmp_path / "train.sh",), ("env", tmp_path)):
        assert tidegate("submit", "--log", log, "--", *words).code == 0


def test_a_folder_is_no_command(tidegate: Run, log: Path, tmp_path: Path) -> None:
    why = tidegate.refuses("submit", tmp_path, "--log", log)
    assert why.startswith(f"{tmp_path}: is a folder; name a job's file in it.")


def test_a_file_of_a_job_with_words_after_it_is_no_command(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: [a]\n")
    why = tidegate.refuses("submit", path, "other.yaml", "--log", log)
    assert why.startswith(f"{path}: is a job's file, which 'other.yaml' cannot follow")
    assert tidegate("submit", "--log", log, "--", "env", path, "x").code == 0


def test_where_only_events_are_taken_the_reason_goes_with_a_cancellation(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over Kafka without a key; what is written is the same on any bus."""
    monkeypatch.setattr("console.request.is_kafka", lambda log: True)
    tidegate.does("cancel", "waiter", "--reason", "not needed", "--log", log)

    async def events() -> list[bytes]:
        bus = SqliteBus.open_readonly(log, SystemClock())
        found = [record.value or b"" async for record in bus.read("tidegate.events.v1")]
        await bus.close()
        return found

    assert b'"reason":"not needed"' in asyncio.run(events())[-1]
    before = asyncio.run(events())
    words = ("--job", "told", "--log", log, "--", "true")
    # The event of a submission has no place for it.
    said = tidegate.refuses("submit", "--reason", "for the paper", *words)
    assert said.startswith("--reason: a job that nobody signs for has none over Kafka")
    assert asyncio.run(events()) == before
    tidegate.does("submit", *words)
    assert len(asyncio.run(events())) == len(before) + 1


def test_nothing_is_asked_for_where_the_answer_could_not_be_written(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    where = tmp_path / "none" / "answer.json"
    words = ("--log", log, "--", "sleep", "1")
    assert "--json: " in tidegate.refuses("submit", "--job", "unheard", "--json", where, *words)
    tidegate.does("submit", "--job", "heard", *words)
    assert [job.job for job in jobs(log)] == ["heard"]
