"""What people ask for wrongly, too often, or of a log that is away is refused, and not written."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.contract import BusError
from bus.sqlite import SqliteBus
from bus.sqlite_writer import Task
from gateway.body import BODY_MAX_BYTES
from gateway.limits import WRITES_BURST
from gateway.outbox import Outbox
from gateway.subjects import Role
from tests.builders import submitted
from tests.gateway.conftest import Serving
from tests.gateway.test_access import problem
from tests.gateway.working import CORDON, during, stored, working


def job(**over: Any) -> dict[str, Any]:
    return {"verb": "job.submit", "spec": {**submitted("mine").model_dump(), **over}}


@pytest.mark.parametrize(
    ("said", "status", "parameter", "says"),
    [
        ({"subject": "eve"}, 422, "subject", "leave it out"),
        ({"role": "admin"}, 422, "role", "leave it out"),
        ({"tenant": "t"}, 422, "tenant", "leave it out"),
        ({"id": "x"}, 422, "id", "Idempotency-Key"),
        ({"cell": "b"}, 422, "cell", "parameter cell"),
        ({"via": "x"}, 422, "via", "leave it out"),
        ({"expires_s": 1e10}, 422, "expires_s", "leave it out"),
        ({"colour": "red"}, 422, "colour", "args, reason, dry_run"),
        ({"reason": 7}, 422, "reason", "valid string"),
        ({"dry_run": 1}, 422, "dry_run", "true or false"),
        ({"args": None}, 422, "args", ""),
        ({"args": {"node": "n0"}}, 422, "args.verb", "is missing"),
        ({"args": {"verb": "node.eat"}}, 422, "args.verb", "is none of node.cordon"),
        ({"args": {"verb": "node.cordon"}}, 422, "args.node", "is missing"),
        ({"args": {**CORDON, "force": True}}, 422, "args.force", "not permitted"),
        ({"args": {"verb": "node.cordon", "node": "a b"}}, 422, "args.node", "takes A to Z"),
        ({"args": job(colour="red")}, 422, "args.spec.colour", "there are job, tenant, model"),
        (
            {"args": job(rates=[{"gpus": 1, "samples_per_s": 1.0, "colour": "red"}])},
            422,
            "args.spec.rates[0].colour",
            "there are gpus, samples_per_s",
        ),
        (
            {"args": job(program={"argv": ["train"], "env": {"A": "b"}, "cwd": "/"})},
            422,
            "args.spec.program.cwd",
            "workdir",
        ),
        (
            {"args": job(program={"argv": ["train"], "workdir": "src"})},
            422,
            "args.spec.program.workdir",
            "'src' is relative, and must be a whole path of the agent's machine",
        ),
    ],
)
async def test_a_wrong_field_is_named(
    tmp_path: Path, serving: Serving, said: dict[str, Any], status: int, parameter: str, says: str
) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        answer = await served.client.post("/api/v1/requests", json={"args": CORDON, **said})
        found = problem(answer, status)
        assert found["parameter"] == parameter
        assert says in found["detail"]
        assert await stored(served) == []


@pytest.mark.parametrize(
    ("content", "headers", "status", "says"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415, "Content-Type: application/json"),
        (b"{}", {"Content-Type": ""}, 415, "Content-Type: application/json"),
        (b"{}", {"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
        (b"{", {}, 400, "not JSON"),
        (b"[]", {}, 400, "JSON object"),
        (b'{"args":{},"args":{}}', {}, 400, "occurs twice"),
        (b'{"pad":"' + b"x" * BODY_MAX_BYTES + b'"}', {}, 413, "larger than"),
        (b"{}", {"Idempotency-Key": "no spaces"}, 400, "Idempotency-Key: takes A to Z,"),
        (b"{}", {"Idempotency-Key": "x" * 129}, 400, "Idempotency-Key"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(
    tmp_path: Path,
    serving: Serving,
    content: bytes,
    headers: dict[str, str],
    status: int,
    says: str,
) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        headers = {"Content-Type": "application/json", **headers}
        answer = await served.client.post("/api/v1/requests", content=content, headers=headers)
        assert says.lower() in problem(answer, status)["detail"].lower()


async def test_a_body_without_a_length_is_bounded_too(tmp_path: Path, serving: Serving) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 65_536

    async with working(tmp_path) as (_, log), serving(log) as served:
        headers = {"Content-Type": "application/json"}
        answer = await served.client.post("/api/v1/requests", content=endless(), headers=headers)
        problem(answer, 413)


async def test_a_body_that_never_comes_holds_no_connection_open(
    tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stalled() -> AsyncIterator[bytes]:
        yield b'{"args":'
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.body.BODY_TIMEOUT_S", 0.05)
    async with working(tmp_path) as (_, log), serving(log) as served:
        headers = {"Content-Type": "application/json"}
        answer = await served.client.post("/api/v1/requests", content=stalled(), headers=headers)
        assert "did not come within" in problem(answer, 408)["detail"]
        assert answer.headers["connection"] == "close"
        assert await stored(served) == []


async def test_who_may_not_is_told_which_role_may(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log, role=Role.VIEWER) as served:
        found = await served.ask(CORDON, 403)
        assert found["parameter"] == "role"
        assert "node.cordon is for operator or admin" in found["detail"]
        await served.ask(CORDON, 403, dry_run=True)
        assert await stored(served) == []


async def test_who_writes_too_fast_waits(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        served.gateway.clock.at_s = 1000.0  # type: ignore[attr-defined]
        post = served.client.post
        for _ in range(int(WRITES_BURST)):
            assert (await post("/api/v1/requests", json={})).status_code == 422
        answer = await post("/api/v1/requests", json={})
        assert "nothing of this one was done" in problem(answer, 429)["detail"]
        assert answer.headers["retry-after"] == "1"
        assert (await served.client.get("/api/v1/me")).status_code == 200, "reads are apart"


async def test_a_log_that_is_away_is_said_and_nothing_is_half_done(
    tmp_path: Path, serving: Serving
) -> None:
    path, waits_s = tmp_path / "log.db", iter((0.5, 30.0))
    outbox = Outbox(lambda clock: SqliteBus.open(path, clock, busy_timeout_s=next(waits_s)), path)
    async with working(tmp_path) as (desk, log), serving(log, outbox=outbox) as served:
        key = {"Idempotency-Key": "k1"}
        held = SqliteBus.open(log, served.gateway.clock)
        begun, end = threading.Event(), threading.Event()

        def lock(_: Any) -> int:
            begun.set()
            end.wait()
            return 0

        locking = asyncio.ensure_future(held._do(Task(lock)))
        await asyncio.to_thread(begun.wait)
        body: dict[str, Any] = {"args": CORDON}
        answer = await served.client.post("/api/v1/requests", json=body, headers=key)
        end.set()
        await locking
        await held.close()
        found = problem(answer, 503)
        assert "locked" in found["detail"]
        assert found["request"] == "k1"
        assert answer.headers["retry-after"]
        assert await stored(served) == []
        assert (await during(desk, served.ask(CORDON, headers=key)))["result"] == "done"


async def test_a_log_that_is_gone_is_not_made_anew(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        log.rename(tmp_path / "moved.db")
        answer = await served.client.post("/api/v1/requests", json={"args": CORDON})
        problem(answer, 503)
        assert not log.exists()


async def test_a_broker_that_fails_is_said(tmp_path: Path, serving: Serving) -> None:
    def failing(clock: Any) -> Any:
        raise BusError("kafka: nobody answers")

    outbox = Outbox(failing, None)
    async with working(tmp_path) as (_, log), serving(log, outbox=outbox) as served:
        found = await served.ask(CORDON, 503)
        assert "nobody answers" in found["detail"]


async def test_nobody_asks_a_record_of_a_simulation(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(log) as served:
        monkeypatch.setattr("explain.answer.is_demo", lambda origin_s: False)
        monkeypatch.setattr("explain.answer.is_simulated", lambda origin_s: True)
        found = await served.ask(CORDON, 409)
        assert "nobody goes on" in found["detail"]


async def test_an_unknown_request_is_not_found(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        answer: httpx.Response = await served.client.get("/api/v1/requests/nope")
        assert "no request 'nope'" in problem(answer, 404)["detail"]
