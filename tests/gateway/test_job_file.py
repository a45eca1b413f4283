"""A job's file is read by the gateway as the command line reads it, within limits."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from explain import job_file
from gateway import body as body_module, routes_requests
from gateway.body import BODY_MAX_BYTES
from gateway.routes_requests import YAML_MAX_BYTES
from gateway.subjects import Role, Subject
from tests.console.conftest import Run
from tests.console.test_job_file import SEVERAL
from tests.gateway.conftest import Served, Serving
from tests.gateway.test_access import problem
from tests.gateway.working import working

WHOLE = """
command: [python3, train.py, --rate, 0.5]
environment: {THREADS: 1, HF_TOKEN: {secret: hub}}
sizes: 1..4
deadline: 1h30m
priority: 10
"""


async def read(served: Served, text: object, status: int = 200) -> dict[str, object]:
    answer = await served.client.post("/api/v1/job-file", json={"text": text})
    assert answer.status_code == status, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_a_file_is_read_as_written_in_yaml_or_json(tmp_path: Path, serving: Serving) -> None:
    fields = {
        "gpus_min": 1, "gpus_max": 4, "priority": 10,
        "program": {"argv": ["python3", "train.py", "--rate", "0.5"], "env": {"THREADS": "1"},
                    "secrets": {"HF_TOKEN": "hub"}},
    }  # fmt: skip
    said = {**fields, "deadline": "5400s"}
    async with working(tmp_path) as (_, log), serving(log, role=Role.VIEWER) as served:
        for text in (WHOLE, "\n " + json.dumps(said)):
            assert await read(served, text) == {"fields": fields, "deadline_after_s": 5400.0}
        # What the form says beside it is not missing.
        assert await read(served, "outputs: [a]") == {
            "fields": {"program": {"outputs": ["a"]}}, "deadline_after_s": None,
        }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "command: [true]",
        "command: [a]\ncommand: [b]",
        "comand: [a]",
        "command: [a]\nworkdir: src",
        "command: &it [a]\nenvironment: *it",
        "deadline: soon\ncommand: [a]",
        "sizes: [1, 2]\ncommand: [a]",
        f"command: [a]\npriority: {'0x' + 'f' * 5000}",
        f"command: [a]\npriority: {'59:' * 900}0.5",
        '{"model": "a", "model": "b"}',
        '{"total_steps": 1e400}',
        '{"program": "abc"}',
        "[" * 5000,
        "- command",
    ],
)
async def test_what_is_wrong_is_said_in_the_words_of_the_command_line(
    tmp_path: Path, serving: Serving, tidegate: Run, text: str
) -> None:
    file = tmp_path / ("job.json" if text.startswith("{") else "job.yaml")
    file.write_text(text)
    async with working(tmp_path) as (_, log), serving(log) as served:
        detail = (await read(served, text, 422))["detail"]
    said = tidegate.refuses("submit", file, "--log", log)
    assert said.removeprefix(f"{file}: ") == f"{detail}\n"


async def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        detail = str((await read(served, SEVERAL, 422))["detail"])
        for field in ("'comand'", "'program.gpu'", "sizes: ", "total_steps: ", "deadline: "):
            assert field in detail
        detail = str((await read(served, "priority: high\ndeadline: soon", 422))["detail"])
        assert detail.startswith("priority: ")
        assert " deadline: 'soon' is no length of time" in detail


async def test_a_form_counts_before_the_file_and_makes_it_a_whole_job(
    tmp_path: Path, serving: Serving
) -> None:
    async def made(text: str, **form: object) -> dict[str, object]:
        answer = await served.client.post("/api/v1/job-file", json={"text": text, "form": form})
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found

    async with working(tmp_path) as (_, log), serving(log) as served:
        found = await made(WHOLE, job="mine", deadline="2h", gpus_max=2, workdir="/data")
        fields = dict(found["fields"])  # type: ignore[call-overload]
        assert found["deadline_after_s"] == 7200.0
        assert fields["rates"] == [{"gpus": n, "samples_per_s": float(n)} for n in (1, 2)]
        assert (fields["job"], fields["gpus_max"], fields["model"]) == ("mine", 2, "unnamed")
        program = fields["program"]
        assert program["argv"][0] == "python3"
        assert (program["workdir"], program["secrets"]) == ("/data", {"HF_TOKEN": "hub"})
        found = await made("", rates="4=1000, 1=300")
        fields = dict(found["fields"])  # type: ignore[call-overload]
        assert (fields["gpus_min"], fields["gpus_max"]) == (1, 4)
        assert "tenant" not in fields, "a request without one is of whoever asks"
        assert str(fields["job"]).startswith("job-")
        # No program, and no field for one, are the same.
        for text, form in (("program: null", {}), ("priority: 1", {"program": None})):
            found = await made(text, rates="1=300", **form)
            assert "program" not in dict(found["fields"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("form", "field", "says"),
    [
        ({}, "rates", "say how fast it is, such as 1=300,4=1000"),
        ({"rates": "fast"}, "rates", "write GPUs=samples per second"),
        ({"rates": "1=2", "gpus_min": "x"}, "gpus_min", "should be a valid integer"),
        ({"rates": "1=2", "deadline": "soon"}, "deadline", "write 90m, 2h or 1h30m"),
        ({"rates": "1=2", "deadline": "2"}, "deadline", "2 has no unit; say 2s, 2m or 2h"),
        ({"rates": "1=2", "priority": 5000}, "priority", "less than or equal to 1000"),
        ({"workdir": "/data"}, "command", "it is what the workers run"),
    ],
)
async def test_what_is_wrong_in_a_form_names_its_field(
    tmp_path: Path, serving: Serving, form: dict[str, object], field: str, says: str
) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        body = {"text": "", "form": form}
        wrong = problem(await served.client.post("/api/v1/job-file", json=body), 422)
        assert wrong["parameter"] == f"form.{field}"
        assert str(wrong["detail"]).startswith(f"form.{field}: ")
        assert says in str(wrong["detail"])


async def test_a_value_that_no_job_has_is_named(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        for text, says in (
            ("memory_mib: -4", "memory_mib: should be greater than or equal to 0, got -4."),
            ("model: 2026-01-01", "model: should be a valid string, got datetime.date(2026, 1, 1)"),
            ("start_cost_s: .inf", "start_cost_s: should be a finite number, got inf."),
            ("program: {env: {1: a}}", "program.env"),
        ):
            assert says in str((await read(served, text, 422))["detail"])
        # Of what a rate does not have nothing is kept, whatever it is.
        await read(served, "rates: [{gpus: 1, samples_per_s: 2.0, ? 2026-01-01 : .nan}]")


async def test_a_file_has_a_limit_and_yaml_a_lower_one(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        long = "model: " + "m" * YAML_MAX_BYTES
        assert "write it in JSON" in str((await read(served, long, 413))["detail"])
        await read(served, " " * BODY_MAX_BYTES, 413)
        for text in (7, None):
            answer = await served.client.post("/api/v1/job-file", json={"text": text})
            assert problem(answer, 422)["parameter"] == "text"


async def test_who_sends_many_files_keeps_nobody_else_waiting_for_them_all(
    tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YAML of 64 KiB takes a third of a second, and 30 may be sent at once."""
    read_in_turn: list[bytes] = []
    read_file = routes_requests._read_file

    def slowly(text: bytes, form: dict[str, Any] | None, *, is_yaml: bool) -> Response:
        time.sleep(0.1)
        read_in_turn.append(text)
        return read_file(text, form, is_yaml=is_yaml)

    monkeypatch.setattr(routes_requests, "_read_file", slowly)

    class Named:
        stranger = ""

        async def subject(self, headers: Mapping[str, str], _: object) -> Subject:
            return Subject(headers["authorization"], Role.VIEWER)

    async with working(tmp_path) as (_, log), serving(log, authority=Named()) as served:

        async def send(name: str) -> None:
            body = {"text": f"command: [{name}]"}
            client = served.stranger(Authorization=name)
            assert (await client.post("/api/v1/job-file", json=body)).status_code == 200

        many = [asyncio.create_task(send("many")) for _ in range(10)]
        await asyncio.sleep(0.05)
        await asyncio.gather(send("one"), *many)
    assert b"command: [one]" in read_in_turn[:3]


async def test_of_very_many_wrong_names_few_are_compared(
    tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find what each of 45,000 was meant to be took ten seconds, and nobody had a turn."""
    compared: list[str] = []
    unknown = job_file._unknown

    def counting(field: str, known: list[str]) -> str:
        compared.append(field)
        return unknown(field, known)

    monkeypatch.setattr(job_file, "_unknown", counting)
    async with working(tmp_path) as (_, log), serving(log, role=Role.VIEWER) as served:
        body = {"text": "", "form": {f"k{number}": 1 for number in range(2000)}}
        answer = await served.client.post("/api/v1/job-file", json=body)
    detail = problem(answer, 422)["detail"]
    assert len(compared) == 20
    assert "'k0' is no field of a job" in detail
    assert detail.endswith("1980 more are no fields of a job.")


async def test_of_many_bodies_of_one_subject_one_is_read_at_a_time(
    tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty large ones were read one right after another, and nobody else had a turn."""
    read_at: list[int] = []
    turns = 0

    def parsed(*_: object) -> dict[str, Any]:
        read_at.append(turns)
        return {}

    monkeypatch.setattr(body_module, "parse_object", parsed)
    async with working(tmp_path) as (_, log), serving(log, role=Role.VIEWER) as served:
        asked = [
            asyncio.create_task(served.client.post("/api/v1/job-file", json={"text": "a"}))
            for _ in range(10)
        ]
        while not all(one.done() for one in asked):
            await asyncio.sleep(0)
            turns += 1
    assert len(set(read_at)) == 10, "others have a turn after each"
